"""Step telemetry: each rank's steps, steps of a training framework's log, and the report `stepscope.steps/1`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from stepscope.core.vocabulary import Notice

STEPS_SCHEMA = "stepscope.steps/1"


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step of one rank, by the clock of its host: one line of steps/rank{r}.jsonl.

    In a line, `figures` are fields of their own beside these, and what is empty or has its default may be left out.

    Attributes:
        start_ns, end_ns: ns since the epoch.
        data_wait_ns: time that the loop waited for its batches.
        phases: ns by name; one phase may lie inside another.
        figures: what the training code passed to `prof.step`, and what is measured beside (loss, tokens, memory, ...).
        captured: a profiler recorded the step, which makes it longer.
        anomalies: kinds of anomaly found in the step.
        non_finite: names of figures that were NaN or infinite; they are not among the others.
        attempt: which start of the job, from 1 on.
        state: of the profiler's schedule: wait, warmup, active.
        export_ns: time spent after the step to write a trace; not part of a step.
        prepare_ns: time spent after the step to set up and start the profiler; not part of a step.
    """

    index: int
    start_ns: int
    end_ns: int
    data_wait_ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    captured: bool = False
    anomalies: list[str] = field(default_factory=list)
    non_finite: list[str] = field(default_factory=list)
    attempt: int = 1
    state: str = "wait"
    export_ns: int = 0
    prepare_ns: int = 0


RESERVED_FIELDS = frozenset(each.name for each in fields(Step)) - {"figures"}
"""Names of a line's own fields, which no figure can have."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """A rank's steps in order. Steps that a restart repeats replace the earlier ones."""

    rank: int
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Append a step, which replaces an earlier one of its index and all that followed it."""
        while self.steps and self.steps[-1].index >= step.index:
            self.steps.pop()
        self.steps.append(step)


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """Steps that one line of a training framework's log stands for.

    Attributes:
        index: of the last one, in the log's own count.
        num_steps: how many.
        ms: mean duration of a step; the next two are means as well.
        data_wait_rank: the rank whose wait it is; None where the log does not say.
        attempt: which start of the job, from 1 on.
    """

    index: int
    num_steps: int
    ms: float
    data_wait_ms: float | None = None
    data_wait_rank: int | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """Steps of one log, in order. Steps that a restart repeats replace the earlier ones.

    Attributes:
        source: the framework that wrote it.
    """

    source: str
    steps: list[LoggedSteps]
    notices: list[Notice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the job. Times are the longest of any rank, in ms: all ranks wait for the slowest.

    Attributes:
        slowest_rank: the rank with the longest step; None where all take equally long, as ranks that wait for each
            other do, and where a log does not say.
        data_wait_rank: the rank with the longest wait for data; None without one.
        num_steps: steps that the row stands for, of which `index` is the last; more than one in a log, which gives
            means of several steps.
        figures: mean over the ranks that recorded it.
    """

    index: int
    ms: float
    slowest_rank: int | None
    data_wait_ms: float
    phases_ms: dict[str, float]
    figures: dict[str, float]
    captured: bool
    anomalies: list[str]
    data_wait_rank: int | None = None
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of the settled steps in ms; all None without one."""

    p50: float | None
    p95: float | None
    max: float | None


DATA_WAIT = "data"
"""Name of a wait for data among long waits; other names are phases."""


@dataclass(frozen=True, slots=True)
class LongWait:
    """A step that took long because ranks waited, for data or in a phase, while the others waited for them.

    Attributes:
        name: `data`, or the phase.
        ranks: that waited themselves; empty where a log does not say.
        ms: the longest such wait.
        usual_ms: median of the other steps.
        step_ms, usual_step_ms: the same of the step.
    """

    step: int
    name: str
    ranks: list[int]
    ms: float
    usual_ms: float
    step_ms: float
    usual_step_ms: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """All steps of a job.

    Attributes:
        num_settled: steps behind the figures below: neither captured nor the first.
        data_wait: share of the settled steps' time, over all ranks; None where it is not recorded.
        longest_data_wait: the same of the rank that waited longest at each step, for which the others waited.
        phases: the same for each phase.
        steps: in order.
        source: what recorded the steps: stepscope, torchtitan, or the framework of a log.
    """

    ranks: list[int]
    num_steps: int
    num_settled: int
    step_ms: StepTime
    data_wait: float | None
    phases: dict[str, float]
    steps: list[StepRow]
    warnings: list[Notice] = field(default_factory=list)
    longest_data_wait: float | None = None
    long_waits: list[LongWait] = field(default_factory=list)
    source: str = "stepscope"
    schema: str = STEPS_SCHEMA
