"""Comparison of two runs, or two sets of runs: the typed form of `stepscope.compare/1`.

`a` is the side compared against, `b` the one that is judged. Times are milliseconds a step (mean over ranks), shares
are 0..1, None means unknown. A difference is called one only when it is significant and large enough to matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.documents.evidence import Notice
from stepscope.core.vocabulary.categories import TimeCategory
from stepscope.core.vocabulary.causes import Cause

COMPARE_SCHEMA = "stepscope.compare/1"


class Change(StrEnum):
    """What became of a figure from a to b."""

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
    """no change can be told from noise; `smallest_visible` says how small one would have to be"""
    UNKNOWN = "unknown"
    """one side does not have the figure"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure on both sides.

    Attributes:
        a, b: the figure: the median over a run's steps for step times, the mean for parts of a step, then the mean
            over the runs of a side.
        change: b - a.
        relative: change / a; None where a is 0.
        interval: 95 % confidence interval of `change`.
        smallest_visible: half of the interval's width; a smaller change would not be seen.
        state: what may be said.
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
    """One side.

    Attributes:
        name: as given on the command line.
        runs: the runs it stands for.
        step_source: "unprofiled" (steps/rank{r}.jsonl) or "captured" (whole steps of the traces).
        num_steps: steps by run that the step time stands on.
        median_ms, mean_ms, p95_ms: of all its steps.
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
    """Milliseconds a step under one ledger heading, from the captured steps."""

    heading: TimeCategory
    ms: Difference


@dataclass(frozen=True, slots=True)
class CauseDifference:
    """Milliseconds a step charged to one cause, from the captured steps, and the ranks to blame on each side."""

    cause: Cause
    ms: Difference
    ranks_a: list[int]
    ranks_b: list[int]


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """Kernels of one name, or of one operator and shapes: time and kernels a step, mean over ranks."""

    name: str
    ms: Difference
    calls_a: float
    calls_b: float


@dataclass(frozen=True, slots=True)
class CollectiveDifference:
    """One kind and size of collective in one group. Waiting is the mean over the group's members."""

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
    """The largest value of one memory figure that the training loop reported."""

    name: str
    a: float
    b: float


class GateOutcome(StrEnum):
    """How a gate of `--fail-on` ended."""

    PASSED = "passed"
    """the interval lies on the allowed side of the threshold"""
    FAILED = "failed"
    """the interval lies beyond the threshold"""
    INCONCLUSIVE = "inconclusive"
    """the threshold lies inside the interval"""
    NOT_MEASURED = "not_measured"
    """the runs do not have the figure"""


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition of `--fail-on`, judged.

    Attributes:
        text: as given, "step_time:+3%".
        metric: the part before the threshold.
        threshold: in the figure's unit.
        unit: "ms", "fraction" or "GB/s".
        needed_runs: runs a side that would decide it at the spread seen; None when decided or out of reach.
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
    """The whole answer.

    Attributes:
        summary: the one line to read.
        step_time: of each run's median step.
        step_time_mean: of each run's mean step, which a rare stall moves and the median does not.
        run_spread: standard deviation between runs of the same code, as a share of the step.
        run_spread_source: "measured" from the runs given, or "assumed" when they are too few.
        kernels: by name.
        calls: the same time by operator and the shapes it was called with; calls that every run has.
        findings: what follows from several figures together.
        warnings: where the comparison is not like with like.
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
    schema: str = COMPARE_SCHEMA
