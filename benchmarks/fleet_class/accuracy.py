"""Accuracy of the fleet class on recorded GPU time, with all counters and with fewer.

    python -m benchmarks.fleet_class.accuracy ../shared/traces/h100x2     # the recorded runs
    python -m benchmarks.fleet_class.accuracy windows.jsonl               # what fleet_class.sampling recorded

Prints the tables of docs/explanation/accuracy.md. Training is counted separately from idle time, which would hide it.
Each source is a projection of the same samples; windows shorter than a minute are extended to one, with the power of
their own work.
"Held out" fits the thresholds on all other runs, from wide ranges and without the defaults, and applies them to the run
that was left out. `--write FILE` stores the windows of training.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.fleet_class.windows import (
    MODES,
    RESTING,
    Labelled,
    as_minute,
    projected,
    read_windows,
    recorded,
    write_windows,
)
from stepscope.analyzer.fleet import classify_gpu, classify_job
from stepscope.analyzer.fleet.samples import LIMITS, FleetThresholds
from stepscope.core.documents.jobs import FleetClass
from stepscope.core.vocabulary import Cause

_WORDS = {"compute": "computing", "exposed_comm": "communication", "copy": "copying", "idle": "empty"}
_RANGES: dict[str, tuple[float, ...]] = {
    "min_loss": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
    "compute_density": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "waiting_density": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3),
    "compute_tensor": (0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
    "compute_dram": (0.4, 0.55, 0.7, 0.85, 1.0),
    "compute_power": (0.5, 0.65, 0.8, 0.95, 1.1, 1.3),
    "waiting_power": (0.0, 0.03, 0.06, 0.1),
    "memory_busy": (0.5, 0.6, 0.7, 0.8, 0.9),
    "memory_dram": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    "small_kernels": (0.1, 0.2, 0.3, 0.4, 0.5),
    "idle_busy": (0.005, 0.01, 0.02, 0.03, 0.05, 0.08),
}
_AS_COUNTERS_SEE = {Cause.PIPELINE_BUBBLE: Cause.COMMUNICATION}
"""A bubble is a wait for a peer; which, only a trace tells."""
_PASSES = 2
_NUM_HELD_OUT = 4
"""Sources for which thresholds are fitted, the best first."""
_FEWEST_RUNS = 3
"""To fit thresholds to some of them."""


def _class_of(window: Labelled, limits: FleetThresholds = LIMITS) -> FleetClass:
    return classify_gpu(window.samples, window.facts, window.host, limits)


def _score(by_run: Iterable[Sequence[Labelled]], limits: FleetThresholds) -> float:
    """Each run counts the same, however long it was."""
    return fmean(fmean(_class_of(window, limits).cause in window.right for window in windows) for windows in by_run)


def fitted(by_run: Sequence[Sequence[Labelled]]) -> FleetThresholds:
    """Thresholds fitted to runs: one after the other, the middle of all values that are as good as the best."""
    limits = replace(LIMITS, **{name: values[len(values) // 2] for name, values in _RANGES.items()})
    for _ in range(_PASSES):
        for name, values in _RANGES.items():
            scores = {value: _score(by_run, replace(limits, **{name: value})) for value in values}
            best = [value for value, score in scores.items() if score == max(scores.values())]
            limits = replace(limits, **{name: best[len(best) // 2]})
    return limits


def _by_run(windows: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    runs: dict[str, list[Labelled]] = defaultdict(list)
    for window in windows:
        runs[window.run].append(window)
    return runs


def held_out(windows: Sequence[Labelled]) -> list[tuple[Labelled, Cause]]:
    """Each window with its class by thresholds that were fitted without its run."""
    runs = _by_run(windows)
    told = []
    for run, left_out in runs.items():
        limits = fitted([others for name, others in runs.items() if name != run])
        told += [(window, _class_of(window, limits).cause) for window in left_out]
    return told


def _windows_table(windows: Sequence[Labelled]) -> None:
    print("| run | GPU | samples | right | class | confidence | counters | trace |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for window in windows:
        told = _class_of(window)
        mark = "" if told.cause in window.right else " **wrong**"
        right, shares = " or ".join(sorted(window.right)), told.summary.partition(": ")[2]
        spent = ", ".join(f"{share:.0%} {_WORDS[name]}" for name, share in window.spent.items() if share >= 0.01)
        print(
            f"| {window.run} | {window.gpu} | {len(window.samples)} | {right} | {told.cause}{mark} | "
            f"{told.confidence:.2f} | {shares} | {spent} |"
        )


def _jobs_table(windows: Sequence[Labelled], truth: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Both GPUs of each run together, against what was built in."""
    print("\n| run | built in | the job's class | confidence | GPU |\n| --- | --- | --- | --- | --- |")
    for run, of_run in _by_run(windows).items():
        built_in = Cause(truth[run]["cause"][0])
        told = classify_job([_class_of(window) for window in of_run])
        mark = "" if told.cause in (built_in, _AS_COUNTERS_SEE.get(built_in)) else " **wrong**"
        which = told.summary.partition(": ")[2]
        print(f"| {run} | {built_in} | {told.cause}{mark} | {told.confidence:.2f} | {which} |")


def _row(name: str, told: Sequence[tuple[Labelled, Cause]]) -> str:
    def seconds(kind: str) -> float:
        return sum(window.seconds for window, cause in told if _outcome(window, cause) == kind)

    judged = seconds("right") + seconds("wrong")
    share = f"{seconds('right') / judged:.1%}" if judged else "none judged"
    windows = [_outcome(window, cause) for window, cause in told]
    counts = " / ".join(str(windows.count(kind)) for kind in ("right", "wrong", "unknown"))
    times = " / ".join(f"{seconds(kind):.1f}" for kind in ("right", "wrong", "unknown"))
    return f"| {name} | {counts} | {times} | {share} |"


def _outcome(window: Labelled, cause: Cause) -> str:
    if cause in window.right:
        return "right"
    return "unknown" if cause is Cause.INSUFFICIENT_EVIDENCE else "wrong"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="h100x2 of the recorded traces, or a file of labelled windows")
    parser.add_argument("--write", type=Path, help="write the windows of training to this file")
    options = parser.parse_args()
    windows = recorded(options.source) if options.source.is_dir() else read_windows(options.source)
    training = [window for window in windows if window.run not in RESTING]
    resting = [window for window in windows if window.run in RESTING]
    if options.write:
        write_windows(options.write, training)
    _windows_table(training)
    if options.source.is_dir():
        _jobs_table(training, json.loads((options.source / "truth.json").read_text()))
    print("\n| source | windows right / wrong / unknown | GPU-seconds | right, of those classified |")
    print("| --- | --- | --- | --- |")
    for mode, missing in MODES.items():
        minutes = [as_minute(projected(window, missing)) for window in training]
        idle = [projected(window, missing) for window in resting]
        for name, chosen in ((f"{mode}, training", minutes), (f"{mode}, idle", idle)):
            print(_row(name, [(window, _class_of(window).cause) for window in chosen]))
    if len(_by_run(windows)) < _FEWEST_RUNS:
        return
    for mode, missing in list(MODES.items())[:_NUM_HELD_OUT]:
        told = held_out([as_minute(projected(window, missing)) for window in windows])
        print(_row(f"{mode}, training, held out", [one for one in told if one[0].run not in RESTING]))


if __name__ == "__main__":
    main()
