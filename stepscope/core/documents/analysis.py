"""Analysis of a job: the typed form of `stepscope.analysis/1`.

Field names are the contract's: msgspec encodes these classes to the JSON of `analyze --json` and decodes it again.
Fractions are 0..1 of the window, times are milliseconds unless the name says otherwise, None means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.evidence import Evidence, Notice
from stepscope.core.documents.what_if import PredictedStep
from stepscope.core.vocabulary.categories import TimeCategory
from stepscope.core.vocabulary.causes import Cause, Reason

ANALYSIS_SCHEMA = "stepscope.analysis/1"

Ledger = dict[TimeCategory, float]
"""Fraction of the window by heading; all headings present, sum 1."""


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """Size of each parallel dimension; None where it is not known."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    cp: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What was analysed. `step_ms` is the median over ranks of whole device steps."""

    world_size: int
    ranks: list[int]
    missing_ranks: list[int]
    mesh: MeshSizes
    gpu: str | None
    num_steps: int
    step_ms: float | None
    unprofiled_step_ms: float | None
    mfu: float | None = None
    hfu: float | None = None
    device_kind: str | None = None
    """gpu | cpu: what the ledger is of"""
    simulated_compute: bool = False


@dataclass(frozen=True, slots=True)
class TraceQuality:
    """How far the input can be trusted; shown before any number."""

    repaired: int = 0
    """events whose text was mended"""
    dropped: int = 0
    """events that could not be read or are impossible"""
    clipped: int = 0
    """device activities cut where the next one on the same stream starts"""
    truncated_files: int = 0
    """files left out because they end before their closing bracket"""
    unlinked: float = 0.0
    """share of device activities without their launch"""
    graph_share: float = 0.0
    """share of kernels launched through CUDA/HIP graphs"""
    collective_args: float | None = None
    """share of communication kernels that record what they do; None without communication"""
    unmatched_collectives: float | None = None
    """share of communication calls without their counterpart on the other ranks; None for one rank"""
    lost_launches: float = 0.0
    """share of launches without their device activity, on the worst rank"""
    steps_complete: int = 0
    """steps seen whole on every rank"""
    merged_boundaries: int = 0
    """step boundaries that did not increase"""
    clock_residual_us: float | None = None
    """spread of the clocks after alignment; None when one clock serves all"""
    profiler_distortion: float | None = None
    """captured step / unprofiled step - 1"""
    clipped_us: float = 0.0
    """time cut off the clipped activities"""
    early: float = 0.0
    """share of linked device activities that start before their launch: lost records or a device clock that is off"""
    lost_at_start: int = 0
    """launches without device activity before the first that has one: the profiler was not recording yet"""
    steps_marked: list[int] = field(default_factory=list)
    """steps that some rank's trace marks"""
    steps_used: list[int] = field(default_factory=list)
    """steps booked on every rank"""
    steps_without_device: float = 0.0
    """share of marked steps in which no device activity was launched, on the worst rank"""
    largest_activity: float = 0.0
    """share of the window that one compute kernel or copy takes, on the worst rank"""


@dataclass(frozen=True, slots=True)
class StepLedger:
    """One whole device step of one rank."""

    index: int
    ms: float
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class RankLedger:
    """One rank's window."""

    rank: int
    window_ms: float
    step_ms: float | None
    ledger: Ledger
    hidden_communication: float
    steps: list[StepLedger]


@dataclass(frozen=True, slots=True)
class RootCause:
    """One row of the root-cause table; the fractions of all rows add up to 1, the milliseconds to the job's step.

    `ms_per_step` is of the whole steps; None where all of the cause's time lies in the last, which the trace cuts.
    `interval` is of the fraction, `ms_interval` of the milliseconds: 90 %, from a bootstrap over steps.
    """

    cause: Cause
    reasons: list[Reason]
    fraction: float
    ms_per_step: float | None
    interval: tuple[float, float] | None
    ranks: list[int]
    evidence: list[Evidence]
    ms_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class SecondaryCause:
    """A further cause worth naming."""

    cause: Cause
    fraction: float
    summary: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line that a tired engineer understands, with what it stands on."""

    cause: Cause
    reasons: list[Reason]
    confidence: float
    summary: str
    ranks: list[int]
    evidence: list[Evidence]
    actions: list[str]
    secondary: list[SecondaryCause]


@dataclass(frozen=True, slots=True)
class Collective:
    """All matched calls of one kind and size in one group. Bandwidths are GB/s (1e9 bytes).

    `transfer_ms` adds up the shortest member of each call, `wait_ms` and the exposed times all members. `hidden_wait`
    and `hidden_transfer` are shares of the waiting and of the transfer; `expected_busbw_gbs` is of the link at this
    size; `latency_bound` says that the size is so small that bandwidth hardly counts. `last_arriver` is the rank that
    was waited for longest in all, `times_last` how often it came last; `skew_ms` is the mean over the calls. `bytes` of
    an uneven all-to-all is the mean over the members (the median of it over the row's calls).
    """

    group: str
    dimension: str | None
    kind: str
    bytes: int | None
    count: int
    algbw_gbs: float | None
    busbw_gbs: float | None
    expected_busbw_gbs: float | None
    transfer_ms: float | None
    wait_ms: float | None
    hidden: float
    skew_ms: float | None
    last_arriver: int | None
    times_last: int | None = None
    largest_skew_ms: float | None = None
    hidden_wait: float | None = None
    hidden_transfer: float | None = None
    exposed_wait_ms: float | None = None
    exposed_transfer_ms: float | None = None
    link: str | None = None
    """nvlink | xgmi | pcie: what its bytes should travel over; None between hosts and where unknown"""
    latency_bound: bool | None = None


@dataclass(frozen=True, slots=True)
class DimensionCost:
    """What the calls of one parallel dimension cost; fractions of all windows together.

    The exposed ones of all dimensions add up to the ledger's communication headings (`wait` includes `bubble`).
    """

    dimension: str | None
    """tp | pp | dp | ep | cp; None where nothing tells"""
    num_calls: int
    wait: float
    transfer: float
    unsplit: float
    hidden_wait: float
    hidden_transfer: float
    hidden_unsplit: float
    unsplit_wait_at_least: float = 0.0
    """of `unsplit`, what is waiting for members whose traces are there; at most all of it is"""


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """How late one rank comes to its collectives. `mean_late_ms` is after the first member's arrival."""

    rank: int
    num_collectives: int
    times_last: int
    mean_late_ms: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline's bubble, measured and explained; the parts are fractions of the pipelined span."""

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    period_ms: float
    measured: float
    structural: float
    imbalance: float
    variance: float
    textbook: float


@dataclass(frozen=True, slots=True)
class RooflineCoverage:
    """Share of kernel time by how its limit was decided; the shares add up to 1."""

    model: float
    """from the shapes that the kernel's operator recorded"""
    by_name: float
    """by what kind of work its name tells"""
    none: float
    borrowed: float = 0.0
    """launched before the trace begins: from the same kernel seen with its operator"""
    parameters: float = 0.0
    """passes over the parameters: from the grid and the gradients' sizes"""

    @property
    def costed(self) -> float:
        """Share whose FLOPs and bytes are known, whichever way."""
        return self.model + self.borrowed + self.parameters


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Kernels of one name (or of one operator, module or call). None is unknown.

    Attributes:
        ms: the time they own in the ledger, over all ranks and steps.
        operator, module, shapes: where most of that time comes from: what launched it, the module or annotated region
            around that, and the dimensions of its tensors.
        mean_us: a kernel's mean duration.
        roof_share: least time at the GPU's peaks / duration, of the kernels whose operator has a cost model.
        occupancy: share of a multiprocessor's warps that the launches could keep resident.
        achieved_occupancy: the same, but no more than their grids fill.
        limiter: what keeps that from being more: registers | shared_memory | blocks | grid | threads.
        grid, block, registers_per_thread, shared_memory_bytes: of the launch with most of the time; empty or None
            where not recorded.
        findings: codes of Roofline.findings that hold for at least half of the time.
        step_ms: its time in each of the first whole steps, the mean over ranks; of kernel names alone.
    """

    name: str
    count: int
    ms: float
    limit: TimeCategory
    decided_by: str
    operator: str | None = None
    module: str | None = None
    shapes: str | None = None
    mean_us: float | None = None
    roof_share: float | None = None
    occupancy: float | None = None
    achieved_occupancy: float | None = None
    limiter: str | None = None
    grid: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    registers_per_thread: int | None = None
    shared_memory_bytes: int | None = None
    findings: list[str] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Copies of one kind, "HtoD (Pageable -> Device)"; bandwidths are GB/s (1e9 bytes), None is unknown.

    `ms` is their duration, over all ranks and steps; `link_gbs` is what the host's link carries in one direction.
    """

    kind: str
    count: int
    ms: float
    bytes: int
    gbs: float | None
    link_gbs: float | None


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """Something that makes kernels or copies slower than they need be.

    `fraction` is the affected time's share of all ranks' windows.
    """

    code: str
    fraction: float
    ms: float
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """What limits the kernels."""

    coverage: RooflineCoverage
    kernels: list[KernelTime]
    by_operator: list[KernelTime] = field(default_factory=list)
    by_module: list[KernelTime] = field(default_factory=list)
    by_call: list[KernelTime] = field(default_factory=list)
    """by operator and the shapes it was called with"""
    copies: list[CopyTime] = field(default_factory=list)
    findings: list[KernelFinding] = field(default_factory=list)
    """largest first"""
    tiny_kernels: float | None = None
    """share of the kernels, by number, that take under 10 us"""


@dataclass(frozen=True, slots=True)
class WhatIf(PredictedStep):
    """A prediction in an analysis.

    Attributes:
        replay_error: replayed / measured step - 1, with nothing changed.
        measured_step_ms: of the replayed steps: not the job's step where some are left out.
        skipped_steps: whole steps that are left out, as what they waited for began before the traces.
    """

    replay_error: float = field(kw_only=True)
    measured_step_ms: float | None = None
    skipped_steps: list[int] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Share of the replayed step that the fix saves."""
        return 1.0 - 1.0 / self.speedup if self.speedup > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """The whole answer."""

    job: Job
    trace_quality: TraceQuality
    ledger: Ledger
    ranks: list[RankLedger]
    root_causes: list[RootCause]
    verdict: Verdict
    what_if: list[WhatIf]
    collectives: list[Collective]
    pipeline: Pipeline | None
    roofline: Roofline
    warnings: list[Notice]
    communication_by_dimension: list[DimensionCost] = field(default_factory=list)
    arrivals: list[RankArrivals] = field(default_factory=list)
    """latest first"""
    schema: str = ANALYSIS_SCHEMA
