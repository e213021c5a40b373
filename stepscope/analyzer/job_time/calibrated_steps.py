"""Calibrated steps of a job: what its light capture tells of unprofiled steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.what_if.light_replay import MAX_ERROR, Calibration, LightCapture, Removal, ReplayedSteps
from stepscope.core.documents.run_directory import Step
from stepscope.trace.columns import TraceColumns

MAX_NEIGHBOURS = 8
"""Unprofiled steps just before the capture that it is compared with: a host drifts by a quarter within seconds."""
MIN_NEIGHBOURS = 4
NUM_SETTLING = 3
"""First steps of an attempt, which are like no other."""
LIKE_THE_OTHERS = 1.5
"""Ratio to their median beyond which a step is of another kind."""

LIKE_PROFILED = 2.0
"""The same for profiled steps, which a light capture makes up to 1.75 times as long as unprofiled ones."""

_CALIBRATED = (Removal.NOTHING, Removal.BLOCKING_CALLS, Removal.COPIES)
"""What the verdict asks of the calibrated replay, beside the step without host time."""


class CalibratedSteps(NamedTuple):
    """Replay of a rank's light capture, times in ms a step.

    Attributes:
        unprofiled_ms: mean of the steps just before it.
        floor_ms: the GPU's work of a step without any host time, which no calibration changes.
        without: the replayed step without each cost, and with all of them; without any host time alone where the
            calibration is not sound.
    """

    unprofiled_ms: float
    floor_ms: float
    calibration: Calibration
    without: Mapping[Removal, ReplayedSteps]

    @property
    def is_sound(self) -> bool:
        """Whether the replay predicts anything."""
        return self.calibration.is_sound

    @property
    def error(self) -> float:
        """Relative error of what the replay predicts."""
        return max(abs(self.calibration.captured_error), abs(self.calibration.error), MAX_ERROR)

    def saved(self, removal: Removal) -> float:
        """Share of the step that is saved without a cost."""
        return max(1.0 - self.without[removal].step_ms / self.calibration.step_ms, 0.0)


def calibrated_steps(trace: TraceColumns, steps: Sequence[Step], first_step: int) -> CalibratedSteps | None:
    """Calibrate a light capture by the rank's own unprofiled steps before it; None where it or they are too few.

    Args:
        steps: all steps of the rank in the capture's attempt.
        first_step: index of the first profiled one.
    """
    before = [_duration_ns(step) for step in steps if step.index < first_step and step.state == "wait"]
    before = before[NUM_SETTLING:][-MAX_NEIGHBOURS:]
    before = [duration for duration in before if duration <= LIKE_THE_OTHERS * float(np.median(before))]
    profiled = _plain_run([step for step in steps if step.index >= first_step], float(np.mean(before or [0])))
    if len(before) < MIN_NEIGHBOURS or not profiled:
        return None
    try:
        capture = LightCapture(trace, [profiled[0].start_ns, *(step.end_ns for step in profiled)])
    except ValueError:
        return None
    unprofiled_ms = float(np.mean(before)) / 1e6
    calibration = capture.calibrated(unprofiled_ms)
    without = {Removal.HOST_TIME: capture.replayed(0.0, Removal.HOST_TIME)}
    if calibration.is_sound:
        cost_ns = 1e3 * calibration.call_cost_us
        without |= {removal: capture.replayed(cost_ns, removal) for removal in _CALIBRATED}
    return CalibratedSteps(unprofiled_ms, without[Removal.HOST_TIME].step_ms, calibration, without)


def _plain_run(steps: Sequence[Step], unprofiled_ns: float) -> list[Step]:
    """Most profiled steps in a row, from the first of these steps on, that are of the unprofiled ones' kind."""
    runs: list[list[Step]] = [[]]
    for step in itertools.takewhile(lambda step: step.captured, steps):
        if step.phases or step.end_ns - step.start_ns > LIKE_PROFILED * unprofiled_ns:
            runs.append([])
        else:
            runs[-1].append(step)
    return max(runs, key=len)


def _duration_ns(step: Step) -> int:
    """The GPU's time where it is known: a host that runs ahead passes steps sooner."""
    return step.end_ns - step.start_ns if step.device_ns is None else step.device_ns
