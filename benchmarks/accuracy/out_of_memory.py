"""Accuracy of `stepscope memory` on real jobs that run out of GPU memory, compared with torch to the byte.

    python -m benchmarks.accuracy.out_of_memory [JOB ...] [-o DIR]

Each job of `out_of_memory_jobs` ends in torch's own OutOfMemoryError inside `stepscope.profile`. Checked are the cause,
the part of the step, the first advice and, for a leak, the bytes kept by each step; allocated, reserved and active
bytes of the snapshots are compared with torch's counters at the same moment, and those of the failure with torch's
message. Jobs with a limit run in parallel, the others alone. Needs a GPU of 80 to 200 GiB without other users.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.accuracy.out_of_memory_jobs import HOLDER, JOBS, SNAPSHOT_STEP, TRUTH_FILE, Job
from stepscope.collectors.memory_snapshot import read_memory_snapshot
from stepscope.core.documents.memory import MemoryReport, OutOfMemory
from stepscope.core.documents.run_directory import RankFile
from stepscope.workflow.memory import read_memory

_JOB_SECONDS = 240.0
_SAME_SHARE = 0.01
_JOBS_FILE = "out_of_memory_jobs.py:"
_REPOSITORY = Path(__file__).resolve().parent.parent
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MESSAGE = {
    "requested": r"Tried to allocate ([\d.]+) (\w+)",
    "free": r"of which ([\d.]+) (\w+) is free",
    "allocated": r"([\d.]+) (\w+) is allocated by PyTorch",
    "unused": r"([\d.]+) (\w+) is reserved by PyTorch but unallocated",
}
_LARGEST_ROUNDING_BYTES = 20 << 20
"""torch asks the driver for a multiple of 2 MiB, and for 20 MiB where 1 to 10 are needed."""


def main() -> int:
    """Print the table; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all by default")
    parser.add_argument("-o", "--output", type=Path, help="folder in which the runs are kept")
    options = parser.parse_args()
    if unknown := sorted(set(options.jobs) - set(JOBS)):
        parser.error(f"no such job: {', '.join(unknown)}")
    jobs = [JOBS[name] for name in options.jobs or JOBS]
    output: Path = options.output or Path(tempfile.mkdtemp())
    output.mkdir(parents=True, exist_ok=True)
    if old := [job.name for job in jobs if (output / job.name).exists()]:
        parser.error(f"{output} has already {', '.join(old)}")
    num_wrong = 0
    for together in _batches(jobs):
        run(together, output)
        for job in together:
            faults = judge(job, output / job.name)
            num_wrong += bool(faults)
            said = f"{'WRONG' if faults else 'right'}  {job.name}: {_words(output / job.name)}"
            print("\n".join([said, *faults]), flush=True)
    print(f"{len(jobs) - num_wrong} of {len(jobs)} right")
    if options.output is None:
        shutil.rmtree(output)
    return 1 if num_wrong else 0


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    limited = [job for job in jobs if job.limit_gib is not None]
    return ([limited] if limited else []) + [[job] for job in jobs if job.limit_gib is None]


def run(jobs: Sequence[Job], output: Path) -> None:
    """Run jobs in parallel, each in its own process with its output in `<job>.log`."""
    with ExitStack() as stack:
        if any(job.has_company for job in jobs):
            stack.enter_context(_company())
        processes = []
        for job in jobs:
            log = stack.enter_context((output / f"{job.name}.log").open("wb"))
            command = [*_command(job.name), str(output)]
            processes.append(subprocess.Popen(command, env=_environment(), stdout=log, stderr=subprocess.STDOUT))
        for process in processes:
            try:
                process.wait(_JOB_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _company() -> Iterator[None]:
    """Context in which another process holds most of the GPU."""
    command = [*_command(HOLDER), "-"]
    with subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            print(f"another process {holder.stdout.readline().decode().strip() or 'failed'}", flush=True)
            yield
        finally:
            holder.stdin.close()


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.accuracy.out_of_memory_jobs", name]


def _environment() -> dict[str, str]:
    """Environment without variables that would change the jobs or the profile."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STEPSCOPE_", "PYTORCH_", "TORCHELASTIC_", "SLURM_"))
        and name not in ("RANK", "WORLD_SIZE")
    }
    return kept | {"PYTHONPATH": os.pathsep.join([str(_REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])])}


def judge(job: Job, folder: Path) -> list[str]:
    """Errors of a run, one line each."""
    try:
        truth = json.loads((folder / TRUTH_FILE).read_bytes())
        note = json.loads((folder / RankFile.OOM_REPORT.path(0)).read_bytes())
        reports = dict(read_memory([str(folder)]))
        return list(_faults(job, folder, truth, note, reports))
    except Exception as error:  # a job that failed otherwise must not hide the others
        log = folder.with_suffix(".log")
        said = log.read_text(errors="replace").splitlines()[-20:] if log.is_file() else []
        return [f"  {type(error).__name__}: {error}", *(f"  | {line}" for line in said)]


def _faults(
    job: Job,
    folder: Path,
    truth: Mapping[str, Any],
    note: Mapping[str, Any],
    reports: Mapping[str, MemoryReport],
) -> Iterator[str]:
    failed = str(folder / RankFile.OOM_SNAPSHOT.path(0))
    report = reports[failed]
    oom = report.oom
    if oom is None:
        yield "  no failure is reported"
        return
    yield from _differs("cause", str(oom.cause), job.cause)
    yield from _differs("phase", oom.phase, truth["phase"])
    change = report.remedies[0].change if report.remedies else ""
    if job.remedy is not None and not (change.startswith(job.remedy) and (job.cause != "leak" or _JOBS_FILE in change)):
        yield f"  first change: {change!r}, not {job.remedy!r}"
    kept = report.growth.bytes_per_step if report.growth is not None else 0
    if abs(kept - job.kept_bytes) > _SAME_SHARE * job.kept_bytes:
        yield f"  bytes each step keeps: {kept:,}, not {job.kept_bytes:,}"
    yield from _differs("taken", note["taken"], "at the allocation")
    totals = {"allocated": note["allocated_bytes"], "reserved": note["reserved_bytes"]}
    yield from _differences("at the failure", _read(failed, report), truth["at_failure"] or totals)
    yield from _differences("note at the failure", totals, truth["at_failure"] or totals)
    at_failure = {"allocated": oom.allocated_bytes, "reserved": oom.reserved_bytes}
    yield from _differences("post-mortem", at_failure, totals)
    yield from _differs("free", oom.device_free_bytes, note["device_free_bytes"])
    yield from _message_faults(truth["message"], note, oom)
    if job.begins_inside or job.name == "optimizer":  # over before a snapshot was due
        return
    quiet = truth["quiet"]
    yield from _differences("counters during the snapshot", quiet["after"], quiet["before"])
    if quiet["before"]["active"] == quiet["before"]["allocated"]:
        yield "  no block awaits its stream: active is compared with nothing"
    periodic = str(folder / RankFile.PERIODIC_SNAPSHOT.path(0, SNAPSHOT_STEP))
    yield from _differences(f"step {SNAPSHOT_STEP}", _read(periodic, reports[periodic]), quiet["before"])


def _read(path: str, report: MemoryReport) -> dict[str, int]:
    """Analysis of a snapshot by stepscope."""
    blocks = [block for segment in read_memory_snapshot(Path(path)).segments for block in segment.blocks]
    active = sum(block.size for block in blocks if block.is_allocated or block.is_awaited)
    return {"allocated": report.allocated_bytes, "reserved": report.reserved_bytes, "active": active}


def _message_faults(message: str, note: Mapping[str, Any], oom: OutOfMemory) -> Iterator[str]:
    """Differences from torch's message, which has two decimals."""
    expected = {
        "requested": note["requested_bytes"],
        "free": note["device_free_bytes"],
        "allocated": oom.allocated_bytes,
        "unused": oom.reserved_bytes - oom.allocated_bytes,
    }
    for name, pattern in _MESSAGE.items():
        found = re.search(pattern, message)
        if found is None:
            yield f"  torch's message lacks {name!r}: {message}"
            continue
        said, unit = float(found[1]), _UNITS[found[2]]
        if abs(said * unit - expected[name]) > 0.00501 * unit:
            yield f"  {name}: {expected[name]:,}, but torch says {found[1]} {found[2]}"
    if not 0 <= note["requested_bytes"] - oom.requested_bytes < _LARGEST_ROUNDING_BYTES:
        yield f"  asked for {oom.requested_bytes:,}, but the note has {note['requested_bytes']:,}"


def _differences(when: str, found: Mapping[str, int], expected: Mapping[str, int]) -> Iterator[str]:
    for name in sorted(found.keys() & expected.keys()):
        yield from _differs(f"{when}: {name}", found[name], expected[name])


def _differs(what: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"  {what}: {found}, not {expected}"


def _words(folder: Path) -> str:
    """Summary of a run: its result, and the size of its snapshots."""
    try:
        _, report = read_memory([str(folder)])[0]
    except Exception as error:  # said again by `judge`
        return f"{type(error).__name__}"
    sizes = [f"{path.stat().st_size / 1e6:.2f}" for path in sorted(folder.rglob("*.pickle"))]
    oom = report.oom
    said = "nothing" if oom is None else f"{oom.cause} in {oom.phase}; {'; '.join(oom.evidence)}"
    change = report.remedies[0].change if report.remedies else "nothing to change"
    exact = f"{report.allocated_bytes:,} of {report.reserved_bytes:,} B"
    return f"{said}\n  > {change}\n  {exact}; snapshots {', '.join(sizes)} MB"


if __name__ == "__main__":
    raise SystemExit(main())
