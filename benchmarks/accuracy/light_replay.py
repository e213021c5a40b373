"""Error of the calibrated replay of light captures, against steps measured without the profiler.

    python -m benchmarks.accuracy.light_replay FOLDER

FOLDER holds light captures (NAME.json.gz) and truth.json: the ends of all steps of the process, which of them were
captured, and the measured step with and without the fault. Steps go through the function that `analyze` calibrates by:
the cost of a call is fitted to the unprofiled steps just before the capture, and once more to every other one of them,
to see how well it meets the rest. `noise` is the standard error of their mean, and `halves` how far the two halves of
them are apart: no replay meets steps better than they meet themselves.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyzer.job_time.calibrated_steps import RankCapture, calibrated_steps
from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import LightReplay
from stepscope.core.documents.run_directory import Step
from stepscope.trace.reading import read_ranks

_UNSETTLED = 5
"""Steps of a process that are not compared with anything."""


def recorded_steps(truth: dict[str, Any]) -> list[Step]:
    """The step records of a process: the one before the recording began and the first recorded one count as warm-up."""
    first, stop = truth["first_captured"], truth["capture_ended_in"]
    states = {index: "wait" if index < first - 1 else "active" for index in range(stop)} | {
        first - 1: "warmup",
        first: "warmup",
    }
    ends = list(pairwise(truth["step_ends_ns"]))[: stop - 1]
    return [
        Step(index, start, end, captured=states[index] == "active", state=states[index])
        for index, (start, end) in enumerate(ends, 1)
    ]


def replayed(folder: Path, name: str, truth: dict[str, Any]) -> dict[str, float]:
    """What the replay gives for one capture; times in ms, errors relative."""
    ends = np.array(truth["step_ends_ns"])
    first, stop = truth["first_captured"], truth["capture_ended_in"]
    (trace,) = read_ranks(folder / f"{name}.json.gz")
    steps = calibrated_steps([RankCapture(trace, recorded_steps(truth), first + 1)])
    if steps is None:
        return {}
    unprofiled = np.diff(ends)[_UNSETTLED - 1 : first - 2] / 1e6
    halves = [float(unprofiled[part::2].mean()) for part in (0, 1)]
    replay = LightReplay([LightCapture(trace, ends[first:stop].tolist())])
    half = replay.calibrated(halves[0])
    fit = steps.calibration
    return {
        "captured": replay.step_ms,
        "replay_error": fit.captured_error,
        "unprofiled": steps.unprofiled_ms,
        "noise_error": steps.noise,
        "cost_us": fit.call_cost_us,
        "fit_error": fit.error,
        "held_out_error": half.step_ms / halves[1] - 1,
        "halves_error": halves[0] / halves[1] - 1,
    } | {removal.value: steps.unprofiled_ms * (1 - steps.saved(removal)) for removal in steps.without}


def main() -> None:
    """Print a line a capture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, truth in json.loads((folder / "truth.json").read_text()).items():
        figures = replayed(folder, name, truth)
        shown = ", ".join(
            f"{key} {value:{'.1%' if key.endswith('error') else '.1f'}}" for key, value in figures.items()
        )
        print(f"{name}: {shown}; measured without the fault: {truth['fixed_ms']}")


if __name__ == "__main__":
    main()
