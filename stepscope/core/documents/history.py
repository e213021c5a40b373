"""Answers of the metric history: to one question (`stepscope.history/1`), and its jobs (`stepscope.history-jobs/1`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.vocabulary import Notice

HISTORY_SCHEMA = "stepscope.history/1"


@dataclass(frozen=True, slots=True)
class AskedMetric:
    """History document: the metric that was asked for.

    Attributes:
        kind: gauge | counter; None where the history does not say.
        unit: of the values, `watts`, of a counter `joules per second`; empty for a number; None where not known.
    """

    name: str
    kind: str | None
    unit: str | None


@dataclass(frozen=True, slots=True)
class AskedGroup:
    """History document: one GPU, node, job, rack or user, or several of these together.

    Attributes:
        labels: what it is; empty: all series together.
        values: one a step, in the metric's unit; None where unknown.
        last: the newest known value; None without one.
        mean, min, max: over the known values; None without one.
        deviation: mean difference from the median of its job, in the metric's unit; of groups that belong to no single
            job from the median of all; None where fewer than two are compared, and unless it was asked for.
        deviation_ratio: the same as a share of that median; None where the median is 0.
    """

    labels: dict[str, str]
    values: list[float | None]
    last: float | None
    mean: float | None
    min: float | None
    max: float | None
    deviation: float | None = None
    deviation_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PastEvent:
    """History document: a gap, a health event or a verdict.

    Attributes:
        kind: gap | health | verdict.
        start_ns: ns since the epoch.
        end_ns: None where it lasts, or its end is not known.
        labels: of the GPU, target or run; empty: of all.
        code: of the health event, the reason of the gap, or the cause of the verdict.
        text: one line.
    """

    kind: str
    start_ns: int
    end_ns: int | None
    labels: dict[str, str]
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """History document.

    Attributes:
        by: gpu, node, job, rack, user, rank; empty: all series together.
        statistic: over the series of a group: mean | min | max | sum | count.
        where: labels that were asked for, and the values of which each has one.
        start_ns, end_ns: asked for, ns since the epoch.
        step_ns: a value is over this long; ns.
        times_ns: end of each step, ns since the epoch.
        groups: sorted by their labels; with `--top` by their deviation, the largest first.
        num_groups: that there are, with those that `--top` leaves out.
        events: that overlap the time, the oldest first; None unless asked for.
    """

    metric: AskedMetric
    by: list[str]
    statistic: str
    where: dict[str, list[str]]
    start_ns: int
    end_ns: int
    step_ns: int
    times_ns: list[int]
    groups: list[AskedGroup]
    num_groups: int
    events: list[PastEvent] | None = None
    warnings: list[Notice] = field(default_factory=list)
    schema: str = HISTORY_SCHEMA


JOBS_SCHEMA = "stepscope.history-jobs/1"


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Jobs document: a job that had GPUs.

    Attributes:
        kind, id: slurm, kubernetes or processes, and what identifies the job there.
        user, team: None where the job's node did not know them.
        nodes: addresses of the agents.
        num_gpus: GPUs and MIG instances that it had at any time.
        first_ns, last_ns: when it was seen, ns since the epoch, by whole steps.
        is_live: whether it was there in the last steps.
        runs: names of runs whose ranks trained on its GPUs.
    """

    kind: str
    id: str
    user: str | None
    team: str | None
    nodes: list[str]
    num_gpus: int
    first_ns: int
    last_ns: int
    is_live: bool
    runs: list[str]


@dataclass(frozen=True, slots=True)
class JobsReport:
    """The document `stepscope.history-jobs/1`: jobs in the metric history, the latest first.

    Attributes:
        start_ns, end_ns, step_ns: the time, ns since the epoch, and how finely it was looked at.
    """

    start_ns: int
    end_ns: int
    step_ns: int
    jobs: list[RecordedJob]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = JOBS_SCHEMA
