"""Comparison of two runs, or two sets of runs: the typed form of `stepscope.compare/1`.

`a` is the reference, `b` the side that is judged. Times are milliseconds per step (mean over ranks), shares are 0..1,
None means unknown. A difference is reported only where it is significant and large enough to matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.vocabulary import Cause, Notice, TimeCategory

COMPARE_SCHEMA = "stepscope.compare/1"


class Change(StrEnum):
    """Comparison document: how a figure changed from a to b."""

    SLOWER = "slower"
    """a time rose"""
    FASTER = "faster"
    """a time fell"""
    HIGHER = "higher"
    """a rate or a size rose"""
    LOWER = "lower"
    """a rate or a size fell"""
    NEW = "new"
    GONE = "gone"
    NOT_SEEN = "not_seen"
    """no change beyond the noise; a change would have to be larger than `smallest_visible`"""
    UNKNOWN = "unknown"
    """one side lacks the figure"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Comparison document: one figure on both sides.

    Attributes:
        a, b: mean over the runs of the side; a run has the median over its steps for step times, the mean for parts.
        change: b - a.
        relative: change / a; None where a is 0.
        interval: 95% confidence interval of `change`.
        smallest_visible: half of the interval's width; a smaller change would not be detected.
    """

    a: float | None
    b: float | None
    change: float | None = None
    relative: float | None = None
    interval: tuple[float, float] | None = None
    smallest_visible: float | None = None
    state: Change = Change.UNKNOWN


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """Comparison document: one side of a comparison.

    Attributes:
        name: as given on the command line.
        step_source: "unprofiled" (steps/rank{r}.jsonl) or "captured" (whole steps of the traces).
        num_steps: number of steps of each run behind the step time.
        median_ms, mean_ms, p95_ms: over all its steps.
    """

    name: str
    runs: list[str]
    step_source: str
    num_steps: list[int]
    median_ms: float
    mean_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class CategoryDifference:
    """Comparison document: milliseconds per step in one category, from the captured steps."""

    heading: TimeCategory
    ms: Difference


@dataclass(frozen=True, slots=True)
class CauseDifference:
    """Comparison document: milliseconds of a captured step by cause, and the ranks at fault on each side.

    Attributes:
        ranks_a, ranks_b: at fault on each side, worst first.
    """

    cause: Cause
    ms: Difference
    ranks_a: list[int]
    ranks_b: list[int]


@dataclass(frozen=True, slots=True)
class RecordedDifference:
    """Comparison document: what the records of all unprofiled steps tell of a part of the mean step.

    Attributes:
        name: of a phase (checkpoint, evaluation, ...); or data_loading, garbage_collection, compilation; run_delay,
            for which threads were ready to run and had no CPU; rest, all other time.
    """

    name: str
    ms: Difference


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """Comparison document: a setting of the runs, or a variable of their environment, that differs.

    Attributes:
        name: as in run.json, with a dot into lists and sections ("loaders.num_workers", "trainer.save_steps").
        a, b: its values on either side; None where no run of the side has it.
        acts_on: causes and recorded parts that it acts on.
        explains_ms: by how much these got slower, or faster where the step did, ms per step; the order is by it.
    """

    name: str
    a: str | None
    b: str | None
    acts_on: list[str]
    explains_ms: float


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """Comparison document: kernels of one name, or operator and shapes: time and number per step, mean over ranks.

    Attributes:
        name: of the kernels, or operator and input shapes.
        calls_a, calls_b: number per step on each side.
    """

    name: str
    ms: Difference
    calls_a: float
    calls_b: float


@dataclass(frozen=True, slots=True)
class CollectiveDifference:
    """Comparison document: collectives of one kind and size in a group. `wait_ms` is the mean over its members.

    Attributes:
        group: name of the process group, or its ranks.
        kind: all_reduce, all_gather, reduce_scatter, p2p, ...
        bytes: of one call; None where unknown.
        calls_a, calls_b: number per step on each side.
    """

    group: str
    kind: str
    bytes: int | None
    calls_a: float
    calls_b: float
    transfer_ms: Difference
    wait_ms: Difference
    busbw_gbs: Difference


@dataclass(frozen=True, slots=True)
class MemoryDifference:
    """Comparison document: the largest value of one memory figure that the training loop reported.

    Attributes:
        name: of the figure.
        a, b: its largest value on each side.
    """

    name: str
    a: float
    b: float


class GateOutcome(StrEnum):
    """Comparison document: result of a gate of `--fail-on`."""

    PASSED = "passed"
    """the whole interval is on the allowed side of the threshold"""
    FAILED = "failed"
    """the whole interval is beyond the threshold"""
    INCONCLUSIVE = "inconclusive"
    """the threshold is inside the interval"""
    NOT_MEASURED = "not_measured"
    """the runs lack the figure"""


UNDECIDED = frozenset({GateOutcome.INCONCLUSIVE, GateOutcome.NOT_MEASURED})
"""Outcomes with which a gate neither passes nor fails by what was measured."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Comparison document: one condition of `--fail-on` and its result.

    Attributes:
        text: as given, "step_time:+3%".
        metric: the part before the threshold.
        threshold: in the figure's unit.
        unit: "ms", "fraction" or "GB/s".
        needed_runs: runs per side that would decide it at the observed spread; None when decided or out of reach.
        summary: one line with the figures.
    """

    text: str
    metric: str
    difference: Difference
    threshold: float | None
    unit: str
    outcome: GateOutcome
    needed_runs: int | None
    summary: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The document `stepscope.compare/1`.

    Attributes:
        summary: the result in one line.
        step_time: by each run's median step.
        step_time_mean: by each run's mean step, which a rare stall changes and the median does not.
        run_spread: standard deviation between runs of the same code, as a share of the step.
        run_spread_source: "measured" from these runs, or "assumed" where they are too few.
        kernels: by name.
        calls: the same time by operator and input shapes; calls that every run has.
        findings: conclusions from several figures together.
        warnings: where the two sides are not comparable.
        device_kind: "gpu" or "cpu"; None where not all runs have the same.
        recorded: parts of the mean step by the records of all unprofiled steps, the largest change first.
        settings: those that differ, the most likely cause of what got slower first.
    """

    a: ComparedSide
    b: ComparedSide
    summary: str
    step_time: Difference
    step_time_mean: Difference
    run_spread: float
    run_spread_source: str
    mfu: Difference
    busbw_gbs: Difference
    headings: list[CategoryDifference]
    causes: list[CauseDifference]
    kernels: list[KernelDifference]
    calls: list[KernelDifference]
    collectives: list[CollectiveDifference]
    memory: list[MemoryDifference]
    gates: list[Gate]
    findings: list[Notice]
    warnings: list[Notice]
    device_kind: str | None = None
    recorded: list[RecordedDifference] = field(default_factory=list)
    settings: list[SettingDifference] = field(default_factory=list)
    schema: str = COMPARE_SCHEMA
