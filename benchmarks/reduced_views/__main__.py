"""Step time beside the process that reduces traces to views, over that without it; views against traces, and sizes.

    python -m benchmarks.reduced_views [--device cuda|cpu] [--step-ms 30] [--rounds 8] [--seconds 8] [--out FOLDER]

One process trains the same model all the time. Each round has two profiles, by turns first: one with `reduce="view"`
and one without. Both capture three steps. The steps that follow are timed, for so many seconds and at least until the
view is whole. The ratio is that of the two medians of a round; the median over the rounds and their range are printed,
also of the training thread's processor time, which other work on the machine changes less.
At the end a run whose trace went is analysed beside the same run with its trace. Exits with status 1 where the analyses
differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import stepscope
from benchmarks.training_step import Workload
from stepscope.store.documents import encode_document
from stepscope.workflow.analyze import analyze
from stepscope.workflow.what_if import what_if

_FIRST, _ACTIVE = 6, 3
_VIEW_WITHIN_SECONDS = 300.0


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--host-bound", action="store_true", help="kernels so small that the host is the limit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="timed after each capture")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.pop("STEPSCOPE_VIEWS", None)
    folder = options.out or Path(tempfile.mkdtemp(prefix="reduced-views-"))
    if options.device == "cpu":
        torch.set_num_threads(1)
    workload = Workload(options.device, options.step_ms, host_bound=options.host_bound)
    print(f"{options.device}: {workload}", flush=True)
    ratios, processor_ratios, within = [], [], []
    for number in range(options.rounds):
        times: dict[bool, list[float]] = {}
        for is_reduced in (True, False) if number % 2 else (False, True):
            name = f"{'view' if is_reduced else 'bare'}{number}"
            *times[is_reduced], seconds = _train(workload, folder, name, is_reduced, options.seconds)
            within += [] if seconds is None else [seconds]
        (bare, bare_processor), (beside, beside_processor) = times[False], times[True]
        ratios.append(beside / bare)
        processor_ratios.append(beside_processor / bare_processor)
        print(f"round {number}: {1e3 * bare:.3f} ms, beside {1e3 * beside:.3f} ms", flush=True)
    for what, values in (("step", ratios), ("processor time of a step", processor_ratios)):
        spread = f"rounds: {min(values):.4f} to {max(values):.4f}"
        print(f"{what} beside the process over that without: {median(values):.4f} ({spread})")
    print(f"view whole {median(within):.1f} s after the capture (median of {len(within)})")
    return 0 if _compare(folder / "view0", folder / "again") else 1


def _train(
    workload: Workload, out: Path, name: str, is_reduced: bool, seconds: float
) -> tuple[float, float, float | None]:
    """Median step after the capture and its processor time, and how long after it the trace was gone; seconds."""
    durations: list[float] = []
    processor: list[float] = []
    view_after: float | None = None
    options: dict[str, Any] = {"reduce": "view", "keep_traces": "none"} if is_reduced else {"reduce": "off"}
    schedule = stepscope.once(wait=_FIRST - 1, warmup=1, active=_ACTIVE)
    trace = out / name / "traces" / f"step{_FIRST}" / "rank0.json.gz"
    spare = out / "again" / trace.relative_to(out / "view0") if name == "view0" else None
    with stepscope.profile(name, out, schedule, **options) as prof:
        for _ in range(_FIRST + _ACTIVE):
            workload.step()
            prof.step()
        workload.synchronize()
        began = time.perf_counter()
        while not trace.exists() and time.perf_counter() - began < 60.0:
            workload.step()
            prof.step()
        if spare is not None:
            spare.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(trace, spare)
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds or (is_reduced and view_after is None):
            before = time.thread_time()
            workload.step()
            workload.synchronize()
            prof.step()
            processor.append(time.thread_time() - before)
            durations.append(time.perf_counter() - now)
            if is_reduced and view_after is None and not trace.exists():
                view_after = now - began
            if now - began > _VIEW_WITHIN_SECONDS:
                break
    return median(durations), median(processor), view_after


def _compare(reduced: Path, again: Path) -> bool:
    """Print whether a run analysed by its view gives what it gives by its trace."""
    if list(reduced.glob("traces/*/*.gz")):
        print("the trace was not removed: nothing to compare")
        return False
    shutil.copytree(reduced, again, dirs_exist_ok=True, ignore=shutil.ignore_patterns("views", "traces"))
    trace, view = next(again.glob("traces/*/*.gz")), next(reduced.glob("views/*/*.view"))
    began = time.perf_counter()
    by_trace = _documents(again)
    between = time.perf_counter()
    by_view = _documents(reduced)
    ended = time.perf_counter()
    is_same = by_trace == by_view
    print(f"trace {trace.stat().st_size:,} bytes, view {view.stat().st_size:,} bytes")
    print(f"analysis and what-if by the trace {between - began:.2f} s, by the view {ended - between:.2f} s")
    print(f"analysis and what-if by the view: {'equal' if is_same else 'DIFFERENT'}")
    return is_same


def _documents(run: Path) -> list[Any]:
    os.environ["STEPSCOPE_VIEWS"] = "off"  # only those that stand for traces are read
    analysis = encode_document(analyze([str(run)], keep=False).analysis)
    predicted = encode_document(what_if([str(run)]))
    return [json.loads(text.replace(str(run).encode(), b"RUN")) for text in (analysis, predicted)]


if __name__ == "__main__":
    sys.exit(main())
