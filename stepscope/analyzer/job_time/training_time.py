"""Training time of a run by one formula, and the parts of its wall-clock time.

Training time is the sum over all steps of all attempts, where a step that does not show the job as it runs (an
attempt's first, one that compiles before the first that does not, one that a profiler touched, one that a host ran
through while the GPU's queue still filled, one before which lines are missing) counts as the mean of the settled steps
of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.job_time.step_losses import (
    SlowSteps,
    StepLosses,
    slow_steps,
    step_losses,
    with_surroundings,
)
from stepscope.analyzer.job_time.step_numbers import is_kept, step_numbers
from stepscope.analyzer.job_time.steps import Flags, Floats, JobSteps
from stepscope.analyzer.job_time.trend import step_trend, trend_score
from stepscope.core.documents.analysis import Goodput, StepTrend
from stepscope.core.documents.run_directory import Attempt
from stepscope.core.documents.training_settings import LoaderSettings

MAX_FILLING_RATIO = 0.5
"""A step that the host ran through while the launch queue filled takes less than this part of a later one."""
SLOWER_AFTER_CAPTURE = 1.05
MIN_STEPS_TO_COMPARE = 8
"""Fewer settled steps before or after a capture do not show whether it left training slower."""


class TrainingTime(NamedTuple):
    """Training time of a run; arrays are by step.

    Attributes:
        weight: for how many steps a settled one stands; 0 where another stands for the step.
        is_lost: a later attempt repeated the step.
        counts_as_ms: what each step counts as.
        is_start, is_profiling: steps that count as less than they took, as a start or a profiler made them longer.
        num_settled: 0 where no step shows the job as it runs; `settled` then holds those that come closest.
    """

    steps: JobSteps
    losses: StepLosses
    slow: SlowSteps
    settled: Flags
    weight: Floats
    is_lost: Flags
    num_settled: int
    goodput: Goodput
    trend: StepTrend | None
    counts_as_ms: Floats
    is_start: Flags
    is_profiling: Flags

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def training_ms(self) -> float:
        """Training time over all steps."""
        return float((self.weight * self.steps.period_ms).sum())

    @property
    def mean_step_ms(self) -> float:
        return self.training_ms / self.num_steps

    @property
    def median_step_ms(self) -> float:
        return float(np.median(self.steps.period_ms[self.settled]))

    def mean_ms(self, by_step: Floats) -> float:
        """Mean over all steps of a part of each."""
        return float((self.weight * by_step).sum()) / self.num_steps


def training_time(steps: JobSteps, attempts: Sequence[Attempt], loader: LoaderSettings | None = None) -> TrainingTime:
    """Training time and wall-clock parts of a run; attempts as its manifest lists them, empty where unknown."""
    is_start, is_filling = _starting(steps), _filling(steps)
    settled = ~(is_start | steps.is_profiled | is_filling | steps.is_after_gap)
    losses = step_losses(steps, settled, loader)
    slower = _slower_after_capture(steps, losses.rest_ms, settled)
    settled &= ~slower
    num_settled = int(settled.sum())
    if not num_settled:
        settled = ~is_start if (~is_start).any() else np.ones(len(steps), np.bool_)
    slow = slow_steps(steps, losses.rest_ms, settled)
    losses = with_surroundings(losses, slow.ordinary_ms)
    weight, stand_in_ms = _weights(steps, settled, slow.is_slow)
    is_lost = ~is_kept(step_numbers(steps, attempts).numbers)
    excess = steps.period_ms - stand_in_ms
    is_start &= ~settled
    is_profiling = (steps.is_profiled | slower) & ~settled & ~is_start
    counted = {"start_up": is_start, "profiling": is_profiling}
    goodput = _goodput(
        steps, attempts, stand_in_ms, is_lost, {name: float(excess[at].sum()) for name, at in counted.items()}
    )
    return TrainingTime(
        steps,
        losses,
        slow,
        settled,
        weight,
        is_lost,
        num_settled,
        goodput,
        step_trend(steps, losses.rest_ms, settled & ~slow.is_slow),
        stand_in_ms,
        is_start,
        is_profiling,
    )


def _starting(steps: JobSteps) -> Flags:
    """The first step of each attempt, and those that compile before the first one that does not, if one does not."""
    is_start = np.zeros(len(steps), np.bool_)
    for attempt in np.unique(steps.attempt):
        rows = np.flatnonzero(steps.attempt == attempt)
        compiled = steps.has_compiled[rows]
        num = int(np.argmin(compiled))  # 0 where all compile: then that is how the job runs
        is_start[rows[: max(num, 1)]] = True
    return is_start


def _filling(steps: JobSteps) -> Flags:
    """Steps that the host ran through while the launch queue filled: after a start or a capture, far shorter than later
    ones."""
    is_filling = np.zeros(len(steps), np.bool_)
    quiet = ~steps.is_profiled
    for attempt in np.unique(steps.attempt):
        rows = np.flatnonzero(steps.attempt == attempt)
        later = rows[len(rows) // 2 :]
        later = later[quiet[later]]
        if not len(later):
            continue
        usual = float(np.quantile(steps.period_ms[later], 0.25))
        is_drained = True
        for row in rows[1:].tolist():
            is_drained = is_drained or bool(steps.is_profiled[row])
            if steps.is_profiled[row]:
                continue
            is_drained = is_drained and steps.period_ms[row] < MAX_FILLING_RATIO * usual
            is_filling[row] = is_drained
    return is_filling


def _slower_after_capture(steps: JobSteps, rest_ms: Floats, settled: Flags) -> Flags:
    """Steps after an attempt's first capture, if they are longer than the ones before it and neither get longer.

    On a GPU alone: what slows them is CUPTI, where it stays attached. Without one a profiler leaves nothing behind.
    """
    slower = np.zeros(len(steps), np.bool_)
    if not steps.on_device:
        return slower
    for attempt in np.unique(steps.attempt):
        rows = np.flatnonzero(steps.attempt == attempt)
        captured = rows[steps.is_captured[rows]]
        if not len(captured):
            continue
        before = rows[(rows < captured[0]) & settled[rows]]
        after = rows[(rows > captured[0]) & settled[rows]]
        if min(len(before), len(after)) < MIN_STEPS_TO_COMPARE:
            continue
        near, then = rest_ms[before], rest_ms[after]
        grows = trend_score(near) > 2.0 or trend_score(then) > 2.0
        noise = 2.0 * float(np.std(near)) / np.sqrt(len(near))
        least = max(SLOWER_AFTER_CAPTURE * float(np.median(near)), float(np.median(near)) + noise)
        slower[after] = not grows and float(np.median(then)) > least
    return slower


def _weights(steps: JobSteps, settled: Flags, is_slow: Flags) -> tuple[Floats, Floats]:
    """For how many steps each settled one stands, and what each step counts as, ms.

    Steps of a kind have the same phases, are slow or not, and keep their update or skip it. Those of a kind without a
    settled one stand for themselves.
    """
    kinds = list(zip(steps.phases, is_slow.tolist(), steps.is_skipped.tolist(), strict=True))
    number = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    kind = np.array([number[one] for one in kinds])
    weight, counts_as = np.zeros(len(steps)), steps.period_ms.copy()
    for one in range(len(number)):
        own = kind == one
        stands = own & settled if (own & settled).any() else own
        weight[stands] = own.sum() / stands.sum()
        if stands is not own:
            counts_as[own & ~settled] = steps.period_ms[stands].mean()
    return weight, counts_as


def _goodput(
    steps: JobSteps, attempts: Sequence[Attempt], counts_as_ms: Floats, is_lost: Flags, excess_ms: dict[str, float]
) -> Goodput:
    """The parts of the wall; what a queue still held at the end of an attempt belongs to the tail."""
    numbers = np.unique(steps.attempt).tolist()
    bounds = attempt_bounds(steps, attempts)
    begins = [bounds[number].begin_ms for number in numbers]
    ends = [bounds[number].end_ms for number in numbers]
    lost = float(counts_as_ms[is_lost].sum())
    training = float(counts_as_ms.sum()) - lost
    before = sum(steps.starts_ms[number] - begin for number, begin in zip(numbers, begins, strict=True))
    start_up = max(before + excess_ms["start_up"], 0.0)
    profiling = max(excess_ms["profiling"], 0.0)
    restarts = sum(max(begin - end, 0.0) for begin, end in zip(begins[1:], ends, strict=False))
    wall = max(ends) - begins[0]
    tail = max(wall - training - lost - start_up - restarts - profiling, 0.0)
    return Goodput(start_up, training, profiling, lost, restarts, tail)


class AttemptBounds(NamedTuple):
    """Begin and end of an attempt, ms since the run's first step; its first and last step where they are not known."""

    begin_ms: float
    last_step_end_ms: float
    end_ms: float


def attempt_bounds(steps: JobSteps, attempts: Sequence[Attempt]) -> dict[int, AttemptBounds]:
    """Begin and end of each attempt with steps; attempts as the manifest lists them, by the clock of the steps."""
    last_end = steps.latest_end_ms
    bounds = {}
    after_ms = 0.0
    for number in np.unique(steps.attempt).tolist():
        known = attempts[number - 1] if 0 < number <= len(attempts) else None
        before_ms, after_ms = after_ms, steps.clock_change_ms.get(number, after_ms)
        first_ms, last_ms = steps.starts_ms[number], float(last_end[steps.attempt == number].max())
        began_ms = min((known.start_ns - steps.origin_ns) / 1e6 - before_ms if known else first_ms, first_ms)
        ended_ms = (known.end_ns - steps.origin_ns) / 1e6 if known is not None and known.end_ns else last_ms
        by_clock_ms = (ended_ms, ended_ms - after_ms)  # another host's, or the one that was set
        ended_ms = max(min(by_clock_ms, key=lambda ms: abs(ms - last_ms)), last_ms)
        bounds[number] = AttemptBounds(began_ms, last_ms, ended_ms)
    return bounds
