"""Goodput of a job: its attempts one after the other, each instant of the wall-clock in exactly one class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.goodput.attempts import AttemptRecord
from stepscope.analyzer.goodput.checkpoint_interval import checkpoint_advice
from stepscope.analyzer.job_time.step_numbers import is_kept, is_repeated
from stepscope.analyzer.job_time.steps import Flags, Floats
from stepscope.core.documents.goodput import AttemptGoodput, CheckpointCost, ClusterGoodput, JobGoodput
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import GoodputClass, Notice

_FINISHED, _KILLED, _STOPPED = "finished", "killed", "measuring stopped"

_SAME_TIME_SECONDS = 1e-3
"""Records that overlap by less do so by rounding, and by clocks of two hosts."""


_UNWRITTEN_SECONDS = 1.5
"""A rank's lines are written once a second, of steps that ended up to a quarter of a second before."""


def overlapping(records: Sequence[AttemptRecord]) -> bool:
    """Whether attempts of different runs were at work at the same time: then they are no attempts of one job."""
    spans = sorted((one.begin_ns, _end_of_work_ns(one), one.run) for one in records)
    latest: tuple[float, str] | None = None
    for begin, end, run in spans:
        if latest is not None and run != latest[1] and begin < latest[0] - 1e9 * _SAME_TIME_SECONDS:
            return True
        latest = (end, run) if latest is None or end > latest[0] else latest
    return False


def _end_of_work_ns(record: AttemptRecord) -> float:
    """Its recorded end, else that of its last step, else its begin."""
    if record.end_known_ns is not None:
        return record.end_known_ns
    return record.begin_ns if record.last_step_ns is None else record.last_step_ns


def job_goodput(
    job: str,
    records: Sequence[AttemptRecord],
    *,
    on_device: bool,
    checkpoint_bytes: int | None = None,
) -> tuple[JobGoodput, list[Notice]]:
    """Goodput of a job, and notices of what its records do not tell.

    Args:
        job: its name.
        records: all attempts of all its runs, at least one.
        on_device: whether its ranks train on GPUs.
        checkpoint_bytes: of one checkpoint, all ranks together; None where unknown.
    """
    records = sorted(records, key=lambda one: (one.begin_ns, one.run, one.attempt))
    numbers = np.concatenate([one.numbers for one in records])
    steps = _Executions(is_kept(numbers), is_repeated(numbers))
    account = _Account()
    places = np.cumsum([0, *(len(one.numbers) for one in records)])
    for place, one in enumerate(records):
        kept = steps.is_kept[places[place] : places[place + 1]]
        account.add(one, kept, is_first=place == 0)
    attempts = _attempts(records, steps, places)
    rank_seconds = sum(account.seconds.values())
    time = {one: account.seconds[one] / rank_seconds if rank_seconds else 0.0 for one in GoodputClass}
    is_known = all(one.is_resumed_known for one in records[1:])
    checkpoints = _checkpoints(records, checkpoint_bytes)
    last_is_open = attempts[-1].ended is None
    failed = [one for one in attempts[: len(attempts) - last_is_open] if one.ended not in {_FINISHED, _STOPPED}]
    seconds = np.concatenate([one.seconds for one in records])
    productive = account.productive_seconds
    document = JobGoodput(
        job=job,
        runs=list(dict.fromkeys(one.run for one in records)),
        device_kind="gpu" if on_device else "cpu",
        world_sizes=[size for size, _ in groupby(one.world_size for one in records)],
        wall_seconds=account.wall_seconds,
        rank_seconds=rank_seconds,
        goodput=time[GoodputClass.PRODUCTIVE_TRAINING],
        time=time,
        num_kept_steps=int(steps.is_kept.sum()) if is_known else None,
        num_lost_steps=int((~steps.is_kept).sum()) if is_known else None,
        num_repeated_steps=int(steps.is_repeated.sum()) if is_known else None,
        attempts=attempts,
        checkpoints=checkpoints,
        checkpoint_advice=checkpoint_advice(
            len(failed),
            sum((_end_of_work_ns(one) - one.begin_ns) / 1e9 for one in records),
            None if checkpoints is None else checkpoints.seconds,
            productive / int(steps.is_kept.sum()) if len(seconds) and productive > 0 else None,
        ),
    )
    return document, _notices(job, records, account)


class _Executions(NamedTuple):
    """All executions of steps of a job, in order."""

    is_kept: Flags
    is_repeated: Flags


class _Account:
    """GPU-time of a job by class, attempt by attempt.

    Attributes:
        seconds: number of ranks times wall-clock time, by class.
        productive_seconds: wall-clock time of productive training.
        overlap_seconds: by which attempts begin before those before them end.
        silent: attempts of unknown length: without a step and without an end.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(GoodputClass, 0.0)
        self.productive_seconds = 0.0
        self.overlap_seconds = 0.0
        self.silent: list[AttemptRecord] = []
        self._begin_ns = self._now_ns = 0.0
        self._between, self._num_ranks_before = GoodputClass.NO_ATTEMPT, 0

    @property
    def wall_seconds(self) -> float:
        return (self._now_ns - self._begin_ns) / 1e9

    def add(self, one: AttemptRecord, is_kept: Flags, *, is_first: bool) -> None:
        """Add an attempt, which begins no earlier than the one before."""
        if is_first:
            self._begin_ns = self._now_ns = one.begin_ns
        elif self._now_ns - one.begin_ns > 1e9 * _SAME_TIME_SECONDS:
            self.overlap_seconds += (self._now_ns - one.begin_ns) / 1e9
        self._until(one.begin_ns, self._between, self._num_ranks_before)
        begins = GoodputClass.START_UP if is_first else GoodputClass.RESTART
        self._num_ranks_before = one.world_size
        if one.first_step_ns is None:
            if one.end_known_ns is not None:
                self._until(one.end_known_ns, begins, one.world_size)
            else:
                self.silent.append(one)
            self._between = GoodputClass.NO_ATTEMPT if one.end_known_ns is not None else GoodputClass.UNKNOWN
            return
        self._until(one.first_step_ns, begins, one.world_size)
        self._add_steps(one, is_kept, begins)
        if one.end_known_ns is not None:
            self._until(one.end_known_ns, GoodputClass.SHUT_DOWN, one.world_size)
        self._between = GoodputClass.NO_ATTEMPT

    def _until(self, time_ns: float, kind: GoodputClass, num_ranks: int) -> None:
        """The time from now on is of this class."""
        if time_ns > self._now_ns:
            self.seconds[kind] += num_ranks * (time_ns - self._now_ns) / 1e9
            self._now_ns = time_ns

    def _add_steps(self, one: AttemptRecord, is_kept: Flags, begins: GoodputClass) -> None:
        assert one.first_step_ns is not None
        ends = one.first_step_ns + 1e9 * np.cumsum(one.seconds)
        starts = ends - 1e9 * one.seconds
        seen = np.maximum(ends - np.maximum(starts, self._now_ns), 0.0) / 1e9  # the rest overlaps
        is_whole = one.seconds - seen <= _SAME_TIME_SECONDS
        left = seen.copy()
        parts: dict[GoodputClass, Floats] = {GoodputClass.UNKNOWN: np.where(is_whole, 0.0, seen)}
        left -= parts[GoodputClass.UNKNOWN]
        always = {GoodputClass.START_UP, GoodputClass.RESTART, GoodputClass.PROFILING, GoodputClass.UNKNOWN}
        always |= {GoodputClass.CHECKPOINT}
        is_trained = is_kept & ~one.is_skipped
        for kind, seconds in one.parts.items():
            taken = (
                np.minimum(seconds, left) if kind in always else np.where(is_trained, np.minimum(seconds, left), 0.0)
            )
            target = begins if kind in {GoodputClass.START_UP, GoodputClass.RESTART} else kind
            parts[target] = parts[target] + taken if target in parts else taken
            left = left - taken
        for kind, of in (
            (GoodputClass.LOST_STEPS, ~is_kept),
            (GoodputClass.SKIPPED_STEPS, is_kept & one.is_skipped),
            (GoodputClass.PRODUCTIVE_TRAINING, is_trained),
        ):
            parts[kind] = np.where(of, left, 0.0)
        self.productive_seconds += float(parts[GoodputClass.PRODUCTIVE_TRAINING].sum())
        for kind, taken in parts.items():
            self.seconds[kind] += one.world_size * float(taken.sum())
        self._now_ns = max(self._now_ns, float(ends[-1]))


def _attempts(records: Sequence[AttemptRecord], steps: _Executions, places: Floats) -> list[AttemptGoodput]:
    attempts = []
    reached: int | None = None
    last_step_ns: float | None = None
    for place, one in enumerate(records):
        rows = slice(int(places[place]), int(places[place + 1]))
        later = records[place + 1 :]
        is_last = not later
        has_steps = one.first_step_ns is not None
        restart = recovery = None
        if one.first_step_ns is not None and last_step_ns is not None:
            restart = max(one.first_step_ns - last_step_ns, 0.0) / 1e9
        if has_steps and reached is not None and one.is_resumed_known:
            recovery = _recovery_seconds(one, reached)
        attempts.append(
            AttemptGoodput(
                run=one.run,
                attempt=one.attempt,
                start_ns=one.start_ns,
                end_ns=one.end_ns,
                ended=one.ended if one.ended is not None or is_last else _KILLED,
                world_size=one.world_size,
                first_step=int(one.numbers[0]) if has_steps else None,
                last_step=int(one.numbers[-1]) if has_steps else None,
                num_steps=len(one.numbers),
                num_lost_steps=int((~steps.is_kept[rows]).sum())
                if all(other.is_resumed_known for other in later)
                else None,
                num_repeated_steps=int(steps.is_repeated[rows].sum()) if one.is_resumed_known or not place else None,
                restart_seconds=restart,
                recovery_seconds=recovery,
            )
        )
        if has_steps:
            reached = int(one.numbers.max()) if reached is None else max(reached, int(one.numbers.max()))
            last_step_ns = one.last_step_ns
    return attempts


def _recovery_seconds(one: AttemptRecord, reached: int) -> float | None:
    """From the attempt's first step until it has trained step `reached`; 0 where it resumed behind that."""
    if one.numbers[0] > reached:
        return 0.0
    done = np.flatnonzero(one.numbers >= reached)
    return float(one.seconds[: done[0] + 1].sum()) if len(done) else None


def _checkpoints(records: Sequence[AttemptRecord], num_bytes: int | None) -> CheckpointCost | None:
    """What checkpoints cost; None without one."""
    lengths, steps_between, seconds_between = [], [], []
    for one in records:
        rows = np.flatnonzero(one.has_checkpoint)
        waits = one.parts[GoodputClass.CHECKPOINT][rows] if len(rows) else np.zeros(0)  # no row without parts
        lengths += waits.tolist()
        steps_between += np.diff(one.numbers[rows]).tolist()
        seconds_between += np.diff(np.cumsum(one.seconds)[rows]).tolist()
    if not lengths:
        return None
    mean = float(np.mean(lengths))
    return CheckpointCost(
        num_checkpoints=len(lengths),
        seconds=mean,
        bytes=num_bytes,
        gb_per_second=num_bytes / mean / 1e9 if num_bytes is not None and mean > 0 else None,
        interval_steps=round(float(np.median(steps_between))) if steps_between else None,
        interval_seconds=float(np.median(seconds_between)) if seconds_between else None,
    )


def _notices(job: str, records: Sequence[AttemptRecord], account: _Account) -> list[Notice]:
    notices = []
    unknown = [one for one in records[1:] if not one.is_resumed_known]
    if unknown:
        text = (
            f"{job}: which step {counted(len(unknown), 'attempt')} resumed from is not recorded, so lost steps are not"
        )
        text += " known and count as productive; give profile(first_step=...) or prof.step(step=...)"
        notices.append(Notice("unknown_first_step", text))
    cut = [one for one in records[:-1] if one.first_step_ns is not None and not one.is_whole]
    if cut:
        steps = sum(math.ceil(_UNWRITTEN_SECONDS / max(float(np.median(one.seconds)), 1e-3)) for one in cut)
        attempts = counted(len(cut), "attempt was", "attempts were")
        text = f"{job}: {attempts} killed before the last lines of steps were written: up to about"
        notices.append(Notice("unrecorded_steps", f"{text} {counted(steps, 'step')} more may be lost than are counted"))
    if account.overlap_seconds:
        text = f"{job}: records of attempts overlap by {account.overlap_seconds:,.1f} s; steps there count as unknown"
        notices.append(Notice("overlapping_attempts", text))
    if account.silent:
        ended = (
            " and no end, so its time is unknown" if len(account.silent) == 1 else " and no end; their time is unknown"
        )
        text = f"{job}: {counted(len(account.silent), 'attempt')} left no step{ended}"
        notices.append(Notice("attempt_without_records", text))
    without_start = [one for one in records if one.start_ns is None]
    if without_start:
        text = (
            f"{job}: run.json lacks {counted(len(without_start), 'attempt')}; start-up and world size are by the steps"
        )
        notices.append(Notice("attempt_not_listed", text))
    return notices


def cluster_goodput(jobs: Sequence[JobGoodput]) -> ClusterGoodput:
    """All jobs together."""
    rank_seconds = sum(job.rank_seconds for job in jobs)
    time = {
        kind: sum(job.time[kind] * job.rank_seconds for job in jobs) / rank_seconds if rank_seconds else 0.0
        for kind in GoodputClass
    }
    return ClusterGoodput(
        len(jobs),
        sum(len(job.attempts) for job in jobs),
        rank_seconds,
        time[GoodputClass.PRODUCTIVE_TRAINING],
        time,
    )
