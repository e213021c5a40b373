"""Step telemetry: each rank's steps, and the report `stepscope.steps/1` over all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.evidence import Notice

STEPS_SCHEMA = "stepscope.steps/1"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, by the clock of its host.

    Attributes:
        start_ns, end_ns: ns since the epoch.
        data_wait_ns: how long the loop waited for its batches.
        phases: ns by name; one may lie inside another.
        figures: what else was told (tokens, loss, memory, ...).
        captured: a profiler recorded the step, which makes it longer.
        anomalies: what the step was found to be out of line in.
        non_finite: figures that were NaN or infinite; they are not among the others.
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


@dataclass(frozen=True, slots=True)
class RankSteps:
    """A rank's steps in their order. What a restart does again replaces what was done before."""

    rank: int
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Append a step; it takes the place of an earlier one of its index and of all after that."""
        while self.steps and self.steps[-1].index >= step.index:
            self.steps.pop()
        self.steps.append(step)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the job. Times are the longest of any rank, in ms, as all wait for the slowest.

    Attributes:
        slowest_rank: whose step was the longest.
        figures: mean over the ranks that told it.
    """

    index: int
    ms: float
    slowest_rank: int
    data_wait_ms: float
    phases_ms: dict[str, float]
    figures: dict[str, float]
    captured: bool
    anomalies: list[str]


@dataclass(frozen=True, slots=True)
class StepTime:
    """The settled steps' length in ms; all None without one."""

    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """All steps of a job.

    Attributes:
        num_settled: steps that the figures below are of: neither captured nor the first.
        data_wait: share of the settled steps' time, all ranks together.
        phases: the same of each phase.
        steps: in order.
    """

    ranks: list[int]
    num_steps: int
    num_settled: int
    step_ms: StepTime
    data_wait: float | None
    phases: dict[str, float]
    steps: list[StepRow]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = STEPS_SCHEMA
