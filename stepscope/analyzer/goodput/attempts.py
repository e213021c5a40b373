"""Attempts of one run as records of time: every step of each attempt, cut into classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.job_time.step_numbers import Numbers, step_numbers
from stepscope.analyzer.job_time.steps import Flags, Floats, HostLoss, JobSteps
from stepscope.analyzer.job_time.training_time import TrainingTime, attempt_bounds
from stepscope.core.documents.run_directory import Attempt
from stepscope.core.vocabulary import GoodputClass

_CLASS_OF_LOSS = {
    HostLoss.EVALUATION: GoodputClass.EVALUATION,
    HostLoss.DATA_WAIT: GoodputClass.DATA_LOADING,
    HostLoss.COMPILATION: GoodputClass.STALLS,
}
"""Losses of kept steps that are no training; checkpoints count of all steps, other losses are how the steps run."""


class AttemptRecord(NamedTuple):
    """One start of a job; arrays are by step, in order, each beginning where the one before ended.

    Attributes:
        begin_ns: ns since the epoch; its first step where the start is not known.
        start_ns, end_ns, ended: as run.json has them; None where unknown.
        first_step_ns: start of its first step; None without one.
        end_known_ns: the recorded end by the clock of the steps, at least that of the last step; None where unknown.
        seconds: of each step, from the end of the one before.
        numbers: the job's own.
        is_resumed_known: whether the step that it began with is known.
        parts: seconds of each step by class; what they leave is productive, or lost.
        is_skipped: without an update.
        has_checkpoint: training waited for a checkpoint in the step.
        is_whole: its last steps cannot be missing: it recorded its end, or the next attempt found how far it had come.
    """

    run: str
    attempt: int
    world_size: int
    begin_ns: float
    start_ns: int | None
    end_ns: int | None
    ended: str | None
    first_step_ns: float | None
    end_known_ns: float | None
    seconds: Floats
    numbers: Numbers
    is_resumed_known: bool
    parts: dict[GoodputClass, Floats]
    is_skipped: Flags
    has_checkpoint: Flags
    is_whole: bool

    @property
    def last_step_ns(self) -> float | None:
        """End of its last step; None without one."""
        return None if self.first_step_ns is None else self.first_step_ns + 1e9 * float(self.seconds.sum())


def attempt_records(
    run: str, steps: JobSteps | None, training: TrainingTime | None, attempts: Sequence[Attempt]
) -> list[AttemptRecord]:
    """All attempts of a run: those that the manifest lists, and those that only have steps.

    Args:
        run: path of the run directory.
        steps, training: of its step records; None without one.
        attempts: as the manifest lists them; empty where unknown.
    """
    if steps is None or training is None:
        return [_without_lines(run, number, attempts) for number in range(1, len(attempts) + 1)]
    numbers, known = step_numbers(steps, attempts)
    bounds = attempt_bounds(steps, attempts)
    parts = _parts(steps, training)
    records = []
    for number in sorted({*bounds, *range(1, len(attempts) + 1)}):
        manifest = attempts[number - 1] if 0 < number <= len(attempts) else None
        if number not in bounds:
            records.append(_without_lines(run, number, attempts, steps))
            continue
        rows = np.flatnonzero(steps.attempt == number)
        bound, is_ended = bounds[number], manifest is not None and manifest.end_ns is not None
        kind = GoodputClass.START_UP if number == 1 else GoodputClass.RESTART
        own = {(kind if one is GoodputClass.START_UP else one): ms[rows] / 1e3 for one, ms in parts.items()}
        record = AttemptRecord(
            run=run,
            attempt=number,
            world_size=len(steps.ranks) if manifest is None else manifest.world_size,
            begin_ns=steps.origin_ns + bound.begin_ms * 1e6,
            start_ns=None if manifest is None else manifest.start_ns,
            end_ns=None if manifest is None else manifest.end_ns,
            ended=None if manifest is None else manifest.ended,
            first_step_ns=steps.origin_ns + steps.starts_ms[number] * 1e6,
            end_known_ns=steps.origin_ns + bound.end_ms * 1e6 if is_ended else None,
            seconds=steps.period_ms[rows] / 1e3,
            numbers=numbers[rows],
            is_resumed_known=known[number],
            parts=own,
            is_skipped=steps.is_skipped[rows],
            has_checkpoint=steps.host_ms[HostLoss.CHECKPOINT][rows].max(axis=1) > 0,
            is_whole=is_ended,
        )
        if manifest is not None and manifest.last_step is not None and manifest.last_step_ns is not None:
            num_more = manifest.last_step - int(steps.index[rows].max())
            record = _with_steps(record, num_more, manifest.last_step_ns)
        records.append(record)
    return records


def _with_steps(record: AttemptRecord, num_more: int, last_step_ns: int) -> AttemptRecord:
    """The attempt with steps at its end that have no line, equally long."""
    before_ns = record.last_step_ns
    assert before_ns is not None
    num_more = max(num_more, 0)
    more = np.full(num_more, max(last_step_ns - before_ns, 0.0) / 1e9 / max(num_more, 1))
    no_flags = np.zeros(num_more, np.bool_)
    last = int(record.numbers[-1]) if len(record.numbers) else -1
    return record._replace(
        seconds=np.concatenate((record.seconds, more)),
        numbers=np.concatenate((record.numbers, last + 1 + np.arange(num_more))),
        parts={kind: np.concatenate((seconds, np.zeros(num_more))) for kind, seconds in record.parts.items()},
        is_skipped=np.concatenate((record.is_skipped, no_flags)),
        has_checkpoint=np.concatenate((record.has_checkpoint, no_flags)),
        is_whole=True,
    )


def _without_lines(run: str, number: int, attempts: Sequence[Attempt], steps: JobSteps | None = None) -> AttemptRecord:
    """An attempt that left no line of a step; the next one may have found how far it had come."""
    attempt = attempts[number - 1]
    first_ns, last, last_ns = attempt.first_step_ns, attempt.last_step, attempt.last_step_ns
    first = attempt.first_step
    if first is None:  # numbered on
        before = None if steps is None else steps.index[steps.attempt < number]
        first = int(before[-1]) + 1 if before is not None and len(before) else 0
    no_flags = np.zeros(0, np.bool_)
    record = AttemptRecord(
        run=run,
        attempt=number,
        world_size=attempt.world_size,
        begin_ns=attempt.start_ns,
        start_ns=attempt.start_ns,
        end_ns=attempt.end_ns,
        ended=attempt.ended,
        first_step_ns=None,
        end_known_ns=None if attempt.end_ns is None else max(attempt.end_ns, attempt.start_ns),
        seconds=np.zeros(0),
        numbers=np.zeros(0, np.int64),
        is_resumed_known=True,
        parts={},
        is_skipped=no_flags,
        has_checkpoint=no_flags,
        is_whole=attempt.end_ns is not None,
    )
    if first_ns is None or last is None or last_ns is None or last < first:
        return record
    begun = record._replace(
        first_step_ns=float(first_ns),
        numbers=np.array([first - 1]),  # which the first one follows
        is_resumed_known=attempt.first_step is not None,
    )
    trained = _with_steps(begun, last - first + 1, last_ns)
    return trained._replace(numbers=trained.numbers[1:], parts={})


def _parts(steps: JobSteps, training: TrainingTime) -> dict[GoodputClass, Floats]:
    """By class, ms of each step that are no training; together a step at most."""
    losses, left = training.losses.ms, steps.period_ms.copy()
    parts: dict[GoodputClass, Floats] = {}

    def take(kind: GoodputClass, ms: Floats) -> None:
        nonlocal left
        taken = np.clip(ms, 0.0, left)
        left = left - taken
        parts[kind] = parts[kind] + taken if kind in parts else taken

    excess_ms = steps.period_ms - training.counts_as_ms
    take(GoodputClass.START_UP, np.where(training.is_start, excess_ms, 0.0))
    take(GoodputClass.PROFILING, np.where(training.is_profiling, excess_ms, 0.0))
    take(GoodputClass.UNKNOWN, np.where(steps.is_after_gap, excess_ms, 0.0))
    take(GoodputClass.CHECKPOINT, losses[HostLoss.CHECKPOINT])
    for loss, kind in _CLASS_OF_LOSS.items():
        take(kind, losses[loss])
    slow = training.slow
    take(GoodputClass.STALLS, np.where(slow.is_slow, training.losses.rest_ms - slow.ordinary_ms, 0.0))
    return parts
