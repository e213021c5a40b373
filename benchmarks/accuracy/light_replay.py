"""Error of the calibrated replay of light captures, against steps measured without the profiler.

    python -m benchmarks.accuracy.light_replay FOLDER

FOLDER holds light captures (NAME.json.gz) and truth.json: the ends of all steps of the process, which of them were
captured, and the measured step with and without the fault. The cost of a call is fitted to the unprofiled steps just
before the capture, and once more to every other one of them, to see how well it meets the rest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import LightReplay, Removal
from stepscope.trace.reading import read_ranks

_UNSETTLED = 5
"""Steps of a process that are not compared with anything."""
_NEIGHBOURS = 4


def replayed(folder: Path, name: str, truth: dict[str, Any]) -> dict[str, float]:
    """What the replay gives for one capture; times in ms, errors relative."""
    ends = np.array(truth["step_ends_ns"])
    first, stop = truth["first_captured"], truth["capture_ended_in"]
    (trace,) = read_ranks(folder / f"{name}.json.gz")
    capture = LightReplay([LightCapture(trace, ends[first:stop].tolist())])
    unprofiled = np.diff(ends)[_UNSETTLED - 1 : first - 2] / 1e6
    neighbours_ms = truth.get("neighbours_ms") or float(unprofiled[-_NEIGHBOURS:].mean())
    fit = capture.calibrated(neighbours_ms)
    half = capture.calibrated(float(unprofiled[::2].mean()))
    without = {removal.value: capture.replayed_ms(1e3 * fit.call_cost_us, removal) for removal in Removal}
    return {
        "captured": capture.step_ms,
        "replay_error": fit.captured_error,
        "unprofiled": neighbours_ms,
        "cost_us": fit.call_cost_us,
        "fit_error": fit.error,
        "held_out_error": half.step_ms / float(unprofiled[1::2].mean()) - 1,
    } | without


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
