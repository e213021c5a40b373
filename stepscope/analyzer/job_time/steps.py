"""Steps of a job as a table: one row for each step of each attempt, one column for each rank.

A step of several ranks runs from the latest end of the step before to its own latest end, so that a rank that is late
once makes one step long, not two. Ends are by one clock as far as the steps show it (clocks.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.clocks import clock_changes, end_offsets
from stepscope.core.documents.run_directory import RankSteps, Step
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.core.vocabulary import Notice

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class HostLoss(StrEnum):
    """What a step record knows the host to have done instead of launching work; one instant counts to the first."""

    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    DATA_WAIT = "data_wait"
    COLLECTION = "collection"
    COMPILATION = "compilation"
    RUN_DELAY = "run_delay"
    LATENESS = "lateness"
    """A rank ends most steps later than the others, and no record tells why."""


_PHASES = {
    HostLoss.CHECKPOINT: frozenset({"checkpoint", "checkpointing", "save", "saving"}),
    HostLoss.EVALUATION: frozenset({"evaluation", "evaluate", "eval", "validation", "validate"}),
}
"""Names of phases by the loss that they are."""

ON_HOST = frozenset({HostLoss.COLLECTION, HostLoss.COMPILATION, HostLoss.RUN_DELAY})
"""Losses that no record measures on the device."""

COLLECTION_FIGURE = "gc_pause_ns"
OVERFLOW_FIGURE = "overflow"
_LOSS_FIGURE = "loss"
_MEMORY_FIGURE = "memory_allocated_bytes"
"""Recorded where the process uses a GPU."""
_MOSTLY = 0.9
MIN_LATE_SHARE = 0.10
"""Least lateness of a rank's end for it to count, as a share of the step."""
MIN_USUAL_STEPS = 8
"""Fewer steps do not show that a rank ends them late."""


@dataclass(frozen=True, slots=True)
class JobSteps:
    """All steps of a job in order of attempt and index; times in ms.

    Attributes:
        ranks: the ranks of the columns.
        period_ms: from the latest end of the step before, an attempt's first from its earliest start.
        end_ms: by step and rank, since the start of the run's first step; NaN without a record.
        host_ms: by loss, step and rank: how long the host was held up, where measured only the part in which the GPU
            had nothing queued; what may lie within a phase is the phase's.
        unmeasured: losses that were measured on the host alone: on GPUs, queued work may hide them.
        starts_ms: by attempt, start of its first step.
        is_profiled: a profiler was set up, recorded or wrote its trace in the step, or just before.
        is_captured: a profiler recorded the step.
        has_compiled: a rank compiled in the step.
        is_skipped: its update was left out: gradients overflowed, or the loss is not finite.
        has_overflowed: gradients overflowed.
        figures: means over the ranks, NaN without a value.
        phases: names of the phases in the step, sorted.
        origin_ns: time of 0 ms, ns since the epoch.
        is_after_gap: lines of steps before this one are missing, so its period holds theirs.
        are_ends_comparable: ends of all ranks are by one clock, or by clocks of known offsets.
        clock_change_ms: by attempt, by how much the first rank's clock was set until its end.
        notices: of clocks and missing lines.
        on_device: a rank recorded a GPU's time or memory.
    """

    ranks: list[int]
    attempt: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    period_ms: Floats
    end_ms: Floats
    host_ms: dict[HostLoss, Floats]
    unmeasured: frozenset[HostLoss]
    starts_ms: dict[int, float]
    is_profiled: Flags
    is_captured: Flags
    has_compiled: Flags
    is_skipped: Flags
    has_overflowed: Flags
    figures: dict[str, Floats]
    phases: list[tuple[str, ...]]
    origin_ns: int
    is_after_gap: Flags
    are_ends_comparable: bool
    clock_change_ms: dict[int, float]
    notices: list[Notice]
    on_device: bool

    def __len__(self) -> int:
        return len(self.index)

    @property
    def latest_end_ms(self) -> Floats:
        """Latest end of any rank, of this step or one before it in its attempt."""
        return _latest(self.end_ms, self.attempt)

    @property
    def known_ends_ms(self) -> Floats:
        """Ends by step and rank; of a rank without a record the first of the others', and all the latest where clocks
        may differ by what nobody knows."""
        if not self.are_ends_comparable:
            return np.repeat(self.latest_end_ms[:, None], len(self.ranks), axis=1)
        return np.where(np.isnan(self.end_ms), np.nanmin(self.end_ms, axis=1, keepdims=True), self.end_ms)


def job_steps(
    records: Sequence[RankSteps], hosts: Mapping[int, str] | None = None, *, is_one_clock: bool = False
) -> JobSteps | None:
    """Join the step records of all ranks and attempts; None without a step.

    Args:
        records: of each rank all steps that it finished, also those that a later attempt repeated.
        hosts: name of the host by rank; unknown ones are left out.
        is_one_clock: a trace shows that all ranks have the same time, and that they end a step together unless
            something holds one of them up; so a rank whose ends are late is late.
    """
    hosts = hosts or {}
    columns = {rank.rank: column for column, rank in enumerate(records)}
    keys = sorted({(step.attempt, step.index) for rank in records for step in rank.steps})
    if not keys:
        return None
    rows = {key: row for row, key in enumerate(keys)}
    origin_ns = min(step.start_ns for rank in records for step in rank.steps)
    shape = len(keys), len(columns)
    start, end = np.full(shape, np.nan), np.full(shape, np.nan)
    host = {loss: np.zeros(shape) for loss in HostLoss}
    steps_of: list[list[Step]] = [[] for _ in keys]
    attempts = np.array([attempt for attempt, _ in keys], np.int64)
    index = np.array([index for _, index in keys], np.int64)
    is_after_gap = _after_gaps(attempts, index)
    changes = clock_changes(records, hosts)
    change_ms: dict[int, float] = {}
    for rank in records:
        column = columns[rank.rank]
        row_of = [rows[step.attempt, step.index] for step in rank.steps]
        for row, step, change_ns in zip(row_of, rank.steps, changes[rank.rank].tolist(), strict=True):
            steps_of[row].append(step)
            start[row, column] = (step.start_ns - change_ns - origin_ns) / 1e6
            end[row, column] = (step.end_ns - change_ns - origin_ns) / 1e6
            if column == 0:
                change_ms[step.attempt] = change_ns / 1e6
            for loss, nanoseconds in _losses_ns(step).items():
                host[loss][row, column] = nanoseconds / 1e6
        end[row_of, column] = _device_ends_ms(
            rank.steps, row_of, is_after_gap, start[row_of, column], end[row_of, column]
        )
    is_first = np.concatenate(([True], attempts[1:] != attempts[:-1]))
    is_profiled = _profiled(steps_of, is_first)
    has_overflowed = np.array([any(step.figures.get(OVERFLOW_FIGURE) for step in steps) for steps in steps_of])
    is_usual = ~(is_first | is_profiled | is_after_gap)
    are_known = is_one_clock or _align(start, end, attempts, is_usual)
    host = _outside_phases(host)
    if is_one_clock and len(columns) > 1:
        host[HostLoss.LATENESS] = _lateness(end, host, is_usual)
    has_one_host = len({hosts.get(rank) for rank in columns}) == 1 and all(rank in hosts for rank in columns)
    starts = {a: float(np.nanmin(start[np.flatnonzero(attempts == a)[0]])) for a in np.unique(attempts).tolist()}
    latest = _latest(end, attempts)
    begins = np.concatenate(([0.0], latest[:-1]))
    begins[is_first] = [starts[attempt] for attempt in attempts[is_first].tolist()]
    return JobSteps(
        ranks=list(columns),
        attempt=attempts,
        index=index,
        period_ms=np.maximum(latest - begins, 0.0),
        end_ms=end,
        host_ms=host,
        unmeasured=_unmeasured([step for steps in steps_of for step in steps]),
        starts_ms=starts,
        is_profiled=is_profiled,
        is_captured=np.array([any(step.captured for step in steps) for steps in steps_of]),
        has_compiled=np.array([any(step.num_compilations for step in steps) for steps in steps_of]),
        is_skipped=has_overflowed | [any(_LOSS_FIGURE in step.non_finite for step in steps) for steps in steps_of],
        has_overflowed=has_overflowed,
        figures=_figures(steps_of),
        phases=[tuple(sorted({name for step in steps for name in step.phases})) for steps in steps_of],
        origin_ns=origin_ns,
        is_after_gap=is_after_gap,
        are_ends_comparable=len(columns) == 1 or are_known or has_one_host,
        clock_change_ms=change_ms,
        notices=_notices(changes, is_after_gap),
        on_device=uses_gpu(records),
    )


def _device_ends_ms(
    steps: Sequence[Step], rows: Sequence[int], is_after_gap: Flags, start_ms: Floats, host_end_ms: Floats
) -> Floats:
    """When a rank's GPU, where its time is known, had done each step, else when the host had.

    The GPU's time runs on from step to step. When it began is not recorded, but no step is done on the GPU before the
    host has ended it, and the two are the same whenever the host has waited: the latest of all steps in a row counts.
    """
    ends = host_end_ms.copy()
    if not steps:
        return ends
    attempts = np.array([step.attempt for step in steps], np.int64)
    is_new = np.array([step.device_ns is None for step in steps]) | is_after_gap[rows]
    is_new |= (np.diff(rows, prepend=-2) > 1) | (np.diff(attempts, prepend=0) > 0)
    device_ms = np.array([(step.device_ns or 0) / 1e6 for step in steps])
    attempt, done_ms = 0, 0.0
    for begin, stop in itertools.pairwise([*np.flatnonzero(is_new).tolist(), len(steps)]):
        done_ms = max(done_ms if attempts[begin] == attempt else 0.0, float(start_ms[begin]))
        elapsed_ms = np.cumsum(device_ms[begin:stop])
        began_ms = max(done_ms, float((host_end_ms[begin:stop] - elapsed_ms).max()))
        ends[begin:stop] = began_ms + elapsed_ms
        attempt, done_ms = int(attempts[begin]), float(ends[stop - 1])
    return ends


def uses_gpu(records: Sequence[RankSteps]) -> bool:
    """Whether a rank recorded a GPU's time or memory."""
    return any(s.device_ns is not None or _MEMORY_FIGURE in s.figures for rank in records for s in rank.steps)


def _after_gaps(attempts: npt.NDArray[np.int64], index: npt.NDArray[np.int64]) -> Flags:
    """Steps before which others are missing: their number is further from the one before than usual."""
    is_after_gap = np.zeros(len(index), np.bool_)
    distance = np.diff(index)
    within = attempts[1:] == attempts[:-1]
    if within.any():
        is_after_gap[1:] = within & (distance > max(float(np.median(distance[within])), 1.0))
    return is_after_gap


def _latest(end: Floats, attempts: npt.NDArray[np.int64]) -> Floats:
    """By step, the latest end of any rank so far; of its attempt, as the clock of the next one may be behind."""
    latest: Floats = np.nanmax(end, axis=1)
    for attempt in np.unique(attempts):
        rows = attempts == attempt
        latest[rows] = np.maximum.accumulate(latest[rows])
    return latest


def _align(start: Floats, end: Floats, attempts: npt.NDArray[np.int64], is_usable: Flags) -> bool:
    """Take the ranks' offsets off their starts and ends, by attempt; whether all of them are known."""
    if end.shape[1] < 2:
        return True
    are_known = True
    for attempt in np.unique(attempts):
        rows = attempts == attempt
        offsets = end_offsets(end[rows], is_usable[rows])
        start[rows] -= offsets.ms
        end[rows] -= offsets.ms
        are_known &= offsets.are_known
    return are_known


def _lateness(end: Floats, host: Mapping[HostLoss, Floats], is_usual: Flags) -> Floats:
    """How much later than the first of them a rank ends its steps usually, beyond what its records tell."""
    done = end - host[HostLoss.CHECKPOINT] - host[HostLoss.EVALUATION] - host[HostLoss.COLLECTION]
    later = end - np.nanmin(done, axis=1, keepdims=True)
    recorded = sum(host[loss] for loss in HostLoss if loss is not HostLoss.DATA_WAIT)
    unrecorded = np.maximum(np.nan_to_num(later) - recorded, 0.0)
    rows = np.flatnonzero(is_usual[1:]) + 1
    if len(rows) < MIN_USUAL_STEPS:
        return np.zeros_like(end)
    latest = np.nanmax(end, axis=1)
    usual = np.median(unrecorded[rows], axis=0)
    usual[usual < MIN_LATE_SHARE * float(np.median(latest[rows] - latest[rows - 1]))] = 0.0
    lateness: Floats = np.minimum(unrecorded, usual)
    return lateness


def _notices(changes: Mapping[int, npt.NDArray[np.int64]], is_after_gap: Flags) -> list[Notice]:
    notices = []
    sizes = {rank: np.diff(change, prepend=0) / 1e6 for rank, change in changes.items()}
    largest = max((float(own[np.abs(own).argmax()]) for own in sizes.values() if len(own)), key=abs, default=0.0)
    if largest:
        ranks = [rank for rank, own in sizes.items() if own.any()]
        text = f"the clock of {ranks_words(ranks)} was set during the run (by {largest:+,.0f} ms); steps follow each"
        notices.append(Notice("clock_set", f"{text} other by their durations instead"))
    if is_after_gap.any():
        gaps = counted(int(is_after_gap.sum()), "place")
        text = f"lines of steps are missing at {gaps}: how long steps took there is unknown, their time counts as tail"
        notices.append(Notice("missing_steps", text))
    return notices


FREE_CORES_DELAY = 0.02
"""Largest share of the steps' time that launching threads wait for a core where they have cores of their own."""


def has_free_cores(steps: JobSteps) -> bool:
    """Whether the threads that launch work hardly ever wait for a core; False where that is not recorded."""
    delay_ms = steps.host_ms[HostLoss.RUN_DELAY]
    usual = ~steps.is_profiled
    total = float(steps.period_ms[usual].sum())
    return 0.0 < float(delay_ms[usual].mean(axis=1).sum()) < FREE_CORES_DELAY * total if usual.any() else False


def interval_of(steps: JobSteps, loss: HostLoss) -> int | None:
    """How many steps after one with this loss the next one has it, by the median; None where one has it at most."""
    places = np.flatnonzero((steps.host_ms[loss] > 0).any(axis=1))
    return int(np.median(np.diff(places))) if len(places) > 1 else None


def _losses_ns(step: Step) -> dict[HostLoss, float]:
    losses = {  # phases with two names for the same thing lie within each other
        loss: float(max((step.exposed_phases.get(name, step.phases[name]) for name in _named(step, loss)), default=0))
        for loss in _PHASES
    }
    exposed_wait = step.exposed_data_wait_ns
    return losses | {
        HostLoss.DATA_WAIT: float(step.data_wait_ns if exposed_wait is None else min(exposed_wait, step.data_wait_ns)),
        HostLoss.COLLECTION: step.figures.get(COLLECTION_FIGURE, 0.0),
        HostLoss.COMPILATION: float(step.compile_ns),
        HostLoss.RUN_DELAY: float(step.run_delay_ns or 0),
    }


def _named(step: Step, loss: HostLoss) -> list[str]:
    return [name for name in step.phases if name.lower() in _PHASES[loss]]


def _outside_phases(host: dict[HostLoss, Floats]) -> dict[HostLoss, Floats]:
    """Losses without what a phase of their step may contain: more than the rank's usual loss in steps without one."""
    evaluation, phases = host[HostLoss.EVALUATION], host[HostLoss.EVALUATION] + host[HostLoss.CHECKPOINT]
    inner = {}
    for loss in (HostLoss.DATA_WAIT, HostLoss.COLLECTION, HostLoss.COMPILATION):
        own, phase = host[loss], evaluation if loss is HostLoss.DATA_WAIT else phases
        usual = np.array([np.median(o[p == 0]) if (p == 0).any() else 0.0 for o, p in zip(own.T, phase.T, strict=True)])
        inner[loss] = np.where(phase > 0, np.minimum(own, np.maximum(usual, own - phase)), own)
    return host | inner


def _unmeasured(steps: Sequence[Step]) -> frozenset[HostLoss]:
    """Losses of which fewer than nearly all were measured on the device."""
    waits = [step.exposed_data_wait_ns is not None for step in steps if step.data_wait_ns]
    measured = {HostLoss.DATA_WAIT: waits} | {
        loss: [name in step.exposed_phases for step in steps for name in _named(step, loss)] for loss in _PHASES
    }
    return ON_HOST | {loss for loss, known in measured.items() if known and float(np.mean(known)) < _MOSTLY}


def _profiled(steps_of: Sequence[Collection[Step]], is_first: Flags) -> Flags:
    """Steps that a profiler touches: recorded, warmed up, or begun after it was prepared or its trace written."""
    touched = np.array([any(s.captured or s.state != "wait" for s in steps) for steps in steps_of])
    before = np.array([any(s.prepare_ns or s.export_ns for s in steps) for steps in steps_of])
    touched[1:] |= before[:-1] & ~is_first[1:]
    return touched


def _figures(steps_of: Sequence[Collection[Step]]) -> dict[str, Floats]:
    names = {name for steps in steps_of for step in steps for name in step.figures}
    figures = {name: np.full(len(steps_of), np.nan) for name in sorted(names)}
    for row, steps in enumerate(steps_of):
        for name in {name for step in steps for name in step.figures}:
            known = [step.figures[name] for step in steps if name in step.figures]
            figures[name][row] = sum(known) / len(known)
    return figures
