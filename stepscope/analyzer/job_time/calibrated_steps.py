"""Calibrated steps of a job: what the light captures of its ranks tell of unprofiled steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import MAX_ERROR, Calibration, LightReplay, ReplayedSteps
from stepscope.analyzer.what_if.planned_calls import Removal
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

NOISE_SIGMAS = 2.0
"""Standard errors of the unprofiled mean within which a gain is none."""

FASTER_HOST = 0.25
"""Part of a step by which the host was at most faster without a fault than its replay, on recorded pairs: blocking
calls, copies and the driver's allocations also slow the calls after them. What the GPU needs bounds it."""

MOSTLY_ONE_HOST = 0.5
"""Least part of what the host costs that goes with what one rank's host does longer than the others, for that rank to
be the cause: hosts that do the same differ by a tenth."""

SLOWED_BY_WAIT_MS = 0.1
"""By how much a wait for the GPU may slow the profiled host beside the wait itself: 0.08 ms where a rank that waited
after every layer was compared with one that did not."""

MAX_RANKS = 16
"""Captures of more ranks are not replayed: each takes a tenth of a second a replay."""

HOST_DECIDES = 0.9
"""Ratio of the step without host time to the step below which the host's pace decides how long it takes."""

_CALIBRATED = (
    Removal.NOTHING,
    Removal.BLOCKING_CALLS,
    Removal.COPIES,
    Removal.ALLOCATIONS,
    Removal.COLLECTIVES,
    Removal.UNEVEN_HOST,
)
"""What the verdict asks of the calibrated replay, beside the step without host time."""


class CalibratedSteps(NamedTuple):
    """Replay of a job's light captures, times in ms a step.

    Attributes:
        unprofiled_ms: mean of the steps just before it.
        noise: relative standard error of that mean.
        floor_ms: the GPU's work of a step without any host time, which no calibration changes.
        without: the replayed steps without each cost, and with all of them; without any host time alone where the
            calibration is not sound.
    """

    unprofiled_ms: float
    noise: float
    floor_ms: float
    calibration: Calibration
    without: Mapping[Removal, ReplayedSteps]

    @property
    def is_sound(self) -> bool:
        """Whether the replay predicts anything."""
        return self.calibration.is_sound

    @property
    def host_ms(self) -> tuple[float, float] | None:
        """Least and most of what the host needs for a step; None where the calibration is not sound.

        Equal where the host's pace decides how long a step takes, so that the calibration shows it; else the profiler
        may have added to it.
        """
        if not self.is_sound:
            return None
        most = self.without[Removal.NOTHING].host_ms
        decides = self.without[Removal.HOST_TIME].step_ms < HOST_DECIDES * self.calibration.step_ms
        return (most if decides else 0.0, most)

    @property
    def error(self) -> float:
        """Relative error of what the replay predicts."""
        return max(abs(self.calibration.captured_error), abs(self.calibration.error), MAX_ERROR)

    def error_without(self, removal: Removal) -> float:
        """Relative error of the replay without a cost: the host may then be faster than it was beside that."""
        step_ms = self.without[removal].step_ms
        return max(self.error, min(1.0 - self.floor_ms / step_ms, FASTER_HOST)) if step_ms > 0 else self.error

    @property
    def late_host(self) -> int | None:
        """Place of the rank whose host alone holds up the others; None where none does, or nothing is calibrated."""
        if not self.is_sound:
            return None
        uneven = self.without[Removal.UNEVEN_HOST]
        of_all = self.saved(Removal.HOST_TIME) - self.saved(Removal.BLOCKING_CALLS)
        by_waits = SLOWED_BY_WAIT_MS * uneven.num_waits / self.calibration.step_ms
        is_one = self.saved(Removal.UNEVEN_HOST) - by_waits >= MOSTLY_ONE_HOST * of_all > 0
        return uneven.evened if is_one else None

    def saved(self, removal: Removal) -> float:
        """Share of the step that is saved without a cost; 0 where that is within the noise of what it is fitted to."""
        saved = 1.0 - self.without[removal].step_ms / self.calibration.step_ms
        least = max(NOISE_SIGMAS * self.noise, abs(self.calibration.error))
        return saved if saved > least else 0.0


class RankCapture(NamedTuple):
    """Light capture of a rank.

    Attributes:
        steps: all steps of the rank in the capture's attempt.
        first_step: index of the first profiled one.
    """

    trace: TraceColumns
    steps: Sequence[Step]
    first_step: int


def calibrated_steps(ranks: Sequence[RankCapture]) -> CalibratedSteps | None:
    """Calibrate the light captures of all ranks by their own unprofiled steps before them.

    None where captures or such steps are missing or too few, or the ranks do not launch the same collectives.
    """
    if not 0 < len(ranks) <= MAX_RANKS or len({rank.first_step for rank in ranks}) > 1:
        return None
    before = _before(ranks)
    unprofiled_ns = float(np.mean(before)) if before else 0.0
    captured = [
        _plain_run([step for step in rank.steps if step.index >= rank.first_step], unprofiled_ns) for rank in ranks
    ]
    common = set.intersection(*({step.index for step in steps} for steps in captured))
    profiled = [[step for step in steps if step.index in common] for steps in captured]
    if len(before) < MIN_NEIGHBOURS or not common:
        return None
    try:
        replay = LightReplay(
            [
                LightCapture(rank.trace, [steps[0].start_ns, *(step.end_ns for step in steps)])
                for rank, steps in zip(ranks, profiled, strict=True)
            ]
        )
    except ValueError:
        return None
    calibration = replay.calibrated(unprofiled_ns / 1e6)
    without = {Removal.HOST_TIME: replay.replayed(0.0, Removal.HOST_TIME)}
    floor_ms = without[Removal.HOST_TIME].step_ms
    if calibration.is_sound:
        cost_ns = 1e3 * calibration.call_cost_us
        without |= {removal: replay.replayed(cost_ns, removal) for removal in _CALIBRATED}
    noise = float(np.std(before, ddof=1)) / len(before) ** 0.5 / unprofiled_ns
    return CalibratedSteps(unprofiled_ns / 1e6, noise, floor_ms, calibration, without)


def _before(ranks: Sequence[RankCapture]) -> list[float]:
    """Durations of the last unprofiled steps before the captures, means of the ranks, ns."""
    by_index: dict[int, list[int]] = {}
    for rank in ranks:
        for step in rank.steps:
            if step.index < rank.first_step and step.state == "wait":
                by_index.setdefault(step.index, []).append(_duration_ns(step))
    means = [float(np.mean(by_index[index])) for index in sorted(by_index) if len(by_index[index]) == len(ranks)]
    means = means[NUM_SETTLING:][-MAX_NEIGHBOURS:]
    return [duration for duration in means if duration <= LIKE_THE_OTHERS * float(np.median(means))]


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
