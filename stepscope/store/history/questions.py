"""Questions to the metric history, its answers, and the interface that every backend has.

The same question has the same answer from the Parquet files and from a Prometheus server:

step        a step that ends at t covers (t - step, t]; steps end at start + step, start + 2 step, ... up to end
gauge       of each series the mean of its samples within the step; the lowest or highest one for `MIN` and `MAX`
counter     of each series its rate: increase over the time between its first and last sample within the step,
            restarts at 0 taken into account; unknown of fewer than two samples
group       `Statistic` over the series of the group that have a value in the step
job, user   of a GPU by `stepscope_gpu_job_info` of the step's end; a GPU that a job has not alone belongs to none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stepscope.core.metrics import MetricKind, Unit

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs of label name and value."""

Where = Mapping[str, str | Sequence[str]]
"""Values by label; of several any."""


def is_one_of(value: str | None, wanted: str | Sequence[str]) -> bool:
    """Whether a label has a wanted value; one that is not there is empty, as in Prometheus."""
    text = value or ""
    return text == wanted if isinstance(wanted, str) else text in wanted


class GroupBy(StrEnum):
    """What the values of an answer belong to."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"
    RACK = "rack"
    USER = "user"
    TEAM = "team"
    MODEL = "model"
    """Model of a GPU; only `stepscope_gpu_info` has it."""
    MIG_PROFILE = "mig_profile"
    RANK = "rank"
    """Of a run; only metrics of training processes have it."""


GROUP_LABELS: Mapping[GroupBy, tuple[str, ...]] = {
    GroupBy.GPU: ("instance", "gpu", "uuid", "gpu_instance"),
    GroupBy.NODE: ("instance",),
    GroupBy.JOB: ("job_kind", "job_id"),
    GroupBy.RACK: ("rack",),
    GroupBy.USER: ("user",),
    GroupBy.TEAM: ("team",),
    GroupBy.MODEL: ("name",),
    GroupBy.MIG_PROFILE: ("mig_profile",),
    GroupBy.RANK: ("run", "rank"),
}
"""Labels of a group. `instance` is the agent's address, as in Prometheus; a MIG instance has `gpu_instance`."""


class Statistic(StrEnum):
    """How the series of a group become one value."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Question:
    """Which values are asked for.

    Attributes:
        metric: whole Prometheus name.
        by: groups; several make finer ones (GPU and JOB: each GPU with its job); none makes one of all.
        where: values that labels of a series, its target, job or user must have: {"rack": ("r1", "r2")};
            of several values any. A label that is not there is empty.
    """

    metric: str
    by: tuple[GroupBy, ...] = (GroupBy.GPU,)
    statistic: Statistic = Statistic.MEAN
    where: Where = field(default_factory=dict)


_UNITS_NS = (60 * 10**9, 10**9, 10**6)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A span of time in steps; ns since the epoch, and ns.

    Raises:
        ValueError: it ends before it starts, or its step is not positive.
    """

    start_ns: int
    end_ns: int
    step_ns: int

    def __post_init__(self) -> None:
        if self.step_ns <= 0 or self.end_ns < self.start_ns:
            raise ValueError(f"no time range: {self.start_ns} to {self.end_ns} ns in steps of {self.step_ns} ns")

    @classmethod
    def covering(cls, start_ns: int, end_ns: int, step_ns: int) -> TimeRange:
        """The range with a span in it, as histories can answer it.

        Its start and end are moved outwards to the whole minute, second or millisecond that the step is made of: rows
        of lower resolution are of whole minutes. The step is rounded up to a whole millisecond.
        """
        step_ns += -step_ns % _UNITS_NS[-1]
        unit_ns = next(unit_ns for unit_ns in _UNITS_NS if step_ns % unit_ns == 0)
        return cls(start_ns - start_ns % unit_ns, end_ns + -end_ns % unit_ns, step_ns)

    def step_ends(self) -> NDArray[np.int64]:
        """End of each whole step, ns since the epoch."""
        count = (self.end_ns - self.start_ns) // self.step_ns
        return self.start_ns + self.step_ns * np.arange(1, count + 1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """Values of groups over time.

    Attributes:
        groups: labels of each, sorted.
        times_ns: end of each step, ns since the epoch; shape (steps,).
        values: in the metric's unit, a counter's in unit a second; NaN where unknown; shape (groups, steps).
    """

    groups: tuple[Labels, ...]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LatestAnswer:
    """Newest value of each group.

    Attributes:
        groups: labels of each, sorted.
        times_ns: of the newest sample in the value, ns since the epoch; shape (groups,).
        values: in the metric's unit, a counter's total; shape (groups,).
    """

    groups: tuple[Labels, ...]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]


class HistoryEventKind(StrEnum):
    """Kind of an event in the history."""

    HEALTH = "health"
    GAP = "gap"
    """A target did not answer: nothing is known of that time."""
    VERDICT = "verdict"
    """The verdict of a run began or changed."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that began at a time, and may have ended.

    Attributes:
        start_ns, end_ns: ns since the epoch; no end: it lasts, or its end is not known.
        labels: of the GPU, target or run.
        code: of the health event, of the reason of a gap, or the cause of a verdict.
        text: one line.
    """

    kind: HistoryEventKind
    start_ns: int
    end_ns: int | None
    labels: Labels
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class HistoryMetric:
    """A metric that the history has.

    Attributes:
        kind, unit: None where the history does not say.
    """

    name: str
    kind: MetricKind | None
    unit: Unit | None


class MetricHistory(Protocol):
    """Metric history that questions may be put to.

    All methods raise `UsageError` for a question that makes no sense (an unknown metric, too many steps),
    `UnreachableError` where the history does not answer and `DataError` where it cannot be read.
    """

    def metrics(self) -> Sequence[HistoryMetric]:
        """All metrics that it has, by name."""
        ...

    def latest(self, question: Question, *, at_ns: int, within_ns: int = 300 * 10**9) -> LatestAnswer:
        """Newest values at a time. A series whose target or last page does not have it any more has none."""
        ...

    def range(self, question: Question, time: TimeRange) -> SeriesAnswer:
        """Values over time. Groups without any value in the range are left out."""
        ...

    def events(self, start_ns: int, end_ns: int, *, where: Where | None = None) -> Sequence[HistoryEvent]:
        """Events that overlap a span of time, the oldest first."""
        ...
