"""Analysis of large jobs: a 2 GB trace, many files, several processes, a thousand ranks.

    python -m benchmarks.speed.scale large   [TRACE] [--megabytes 2000]
    python -m benchmarks.speed.scale workers [TRACE] [--megabytes 500] [--pairs 5]
    python -m benchmarks.speed.scale files   [TRACE] [--files 64] [--megabytes 50]
    python -m benchmarks.speed.scale ranks   TRACE... [--ranks 1024] [--slow RANK]
    python -m benchmarks.speed.scale faults  TRACE... [--ranks 1024] [--seeds 1,2,3]

`large` analyses one trace of that size; `workers` two of them, in one and in two processes by turns; `files` many,
on a terminal so that the bar is shown. `ranks` takes the views of a small recorded job, gives them to many ranks, and
times the cross-rank half alone; with `--slow` that rank has the view of the last trace, all others share the rest.
`faults` lets such a job run with a slow GPU, a bad link and a starved node at once (`faulty_job`), and prints who is
named for each; every seed draws other places and sizes.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.measurement import Cost, measure
from benchmarks.speed.faulty_job import drawn_faults, imitated_job
from benchmarks.speed.large_trace import write_multiplied
from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.trace.columns import ProcessGroup
from stepscope.workflow.rank_views import view_files

_HEAD_BYTES = 1 << 20
_RANK = re.compile(rb'("distributedInfo": \{[^{}]*?"rank": )\d+')
_BAR_STEP = re.compile(r"(\d+)/(\d+)")


def main() -> None:
    """Run one of the five."""
    options = _options()
    if options.what == "ranks":
        _ranks(options.trace, options.ranks, options.slow)
        return
    if options.what == "faults":
        for seed in options.seeds.split(","):
            _faults(options.trace, options.ranks, int(seed))
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-scale-", dir=options.work_directory) as folder:
        first = Path(folder, "rank0.json")
        source = options.trace[0] if options.trace else None
        write_multiplied(first, source, num_bytes=options.megabytes * 1_000_000, num_steps=5)
        if options.what == "large":
            _large(first)
        elif options.what == "workers":
            _workers(first, options.pairs)
        else:
            _files(first, options.files)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("large", "workers", "files", "ranks", "faults"))
    parser.add_argument("trace", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--slow", type=int, metavar="RANK")
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--work-directory", type=Path)
    options = parser.parse_intermixed_args()
    if options.megabytes is None:
        options.megabytes = {"large": 2000, "workers": 500, "files": 50}.get(options.what, 0)
    if options.what in ("ranks", "faults") and not options.trace:
        parser.error(f"{options.what} needs the traces of a small job")
    return options


def _analyze(folder: Path, *further: str) -> list[str]:
    return [sys.executable, "-m", "stepscope", "analyze", str(folder), "--json", *further]


def _large(trace: Path) -> None:
    cost = measure(_analyze(trace))
    size = trace.stat().st_size
    print(f"{size / 1e6:,.0f} MB: {_words(cost)}, {cost.peak_bytes / size:.0%} of the file")


def _workers(first: Path, pairs: int) -> None:
    _copy_for_rank(first, 1)
    ratios = []
    for _ in range(pairs):
        one, two = (measure(_analyze(first.parent, "--workers", str(count))) for count in (1, 2))
        ratios.append(one.wall_seconds / two.wall_seconds)
        print(f"one process: {_words(one)}; two: {_words(two)}; {ratios[-1]:.2f} times", flush=True)
    print(f"median of {pairs} pairs: {median(ratios):.2f} times as fast")


def _files(first: Path, count: int) -> None:
    for rank in range(1, count):
        _copy_for_rank(first, rank)
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*_analyze(first.parent)[:-1]])
    shown = set()
    while chunk := _read(terminal):
        shown |= {step for step in _BAR_STEP.findall(chunk.decode(errors="replace")) if step[1] == str(count)}
    _, status, usage = os.wait4(pid, 0)
    print(
        f"{count} files of {first.stat().st_size / 1e6:.0f} MB: exit {os.waitstatus_to_exitcode(status)},"
        f" {time.monotonic() - began:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} CPU s,"
        f" peak {usage.ru_maxrss * 1024 / 1e6:.0f} MB a process; the bar showed {len(shown)} of {count} places"
    )


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux tells that the other end is closed
        return b""


def _copy_for_rank(first: Path, rank: int) -> None:
    with first.open("rb") as source, first.with_name(f"rank{rank}.json").open("wb") as target:
        target.write(_RANK.sub(rb"\g<1>%d" % rank, source.read(_HEAD_BYTES), count=1))
        shutil.copyfileobj(source, target, _HEAD_BYTES)


def _words(cost: Cost) -> str:
    if not cost.succeeded:
        return f"failed ({cost.last_line})"
    family = f", {cost.family_bytes / 1e6:,.0f} MB with children" if cost.family_bytes else ""
    return f"{cost.wall_seconds:.2f} s, {cost.cpu_seconds:.2f} CPU s, peak {cost.peak_bytes / 1e6:,.0f} MB{family}"


def _ranks(traces: list[Path], count: int, slow: int | None) -> None:
    found = view_files([str(trace) for trace in traces], whole_file=False)
    recorded = [found.views[rank] for rank in sorted(found.views)]
    everyone = tuple(range(count))
    usual = recorded if slow is None else recorded[:-1]
    views = [_imitated(recorded[-1] if r == slow else usual[r % len(usual)], r, everyone) for r in everyone]
    num_calls = sum(len(view.calls) for view in views)
    began, began_cpu = time.monotonic(), time.process_time()
    analysis, _ = analyse_job(views, JobContext())
    wall, cpu = time.monotonic() - began, time.process_time() - began_cpu
    print(f"{count} ranks, {num_calls:,} calls: {wall:.1f} s, {cpu:.1f} CPU s; {analysis.verdict.summary}")


def _imitated(view: RankView, rank: int, everyone: tuple[int, ...]) -> RankView:
    """The view as another rank of a larger job: its groups hold all ranks, its host is one of eight ranks."""
    groups = tuple(ProcessGroup(group.name, group.description, everyone) for group in view.header.groups)
    header = replace(
        view.header,
        rank=rank,
        path=f"rank{rank}.json",
        world_size=len(everyone),
        host_name=f"node{rank // 8}",
        groups=groups,
    )
    calls = [replace(call, rank=rank, group=everyone if call.group else None) for call in view.calls]
    return replace(view, rank=rank, header=header, calls=calls)


def _faults(traces: list[Path], count: int, seed: int) -> None:
    found = view_files([str(trace) for trace in traces], whole_file=False)
    recorded = [found.views[rank] for rank in sorted(found.views)]
    step_ns = float(median(length for view in recorded for length in view.window.whole_step_ns.tolist()))
    faults = drawn_faults(seed, count, step_ns)
    child = os.fork()  # its peak memory is its own
    if child:
        peak_bytes = os.wait4(child, 0)[2].ru_maxrss * 1024
        print(f"  peak memory {peak_bytes / 1e9:.2f} GB", flush=True)
        return
    views = imitated_job(recorded, count, faults, seed)
    num_calls = sum(len(view.calls) for view in views)
    began, began_cpu = time.monotonic(), time.process_time()
    analysis, _ = analyse_job(views, JobContext())
    wall, cpu = time.monotonic() - began, time.process_time() - began_cpu
    print(f"seed {seed}: {count} ranks, {num_calls:,} calls: {wall:.1f} s, {cpu:.1f} CPU s; {analysis.verdict.summary}")
    rows = {row.cause: row for row in analysis.root_causes}
    for cause, ranks in faults.truth().items():
        row = rows.get(cause)
        share, named, reasons = (0.0, [], []) if row is None else (row.fraction, sorted(row.ranks), row.reasons)
        right = "named" if named == ranks else f"NOT NAMED: {named[:12]} ({len(named)})"
        print(f"  {cause} of {ranks[0]}..{ranks[-1]}: {share:.1%} {right} {' '.join(reasons)}")
    print(f"  {faults}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
