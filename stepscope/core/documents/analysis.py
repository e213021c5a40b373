"""Analysis of a job: the typed form of `stepscope.analysis/1`.

Field names are the keys of the JSON of `analyze --json`. Fractions are 0..1 of the window, times are milliseconds
unless the name says otherwise, None means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.what_if import PredictedStep
from stepscope.core.vocabulary import Cause, Change, Evidence, GoodputClass, Notice, Reason, TimeCategory

ANALYSIS_SCHEMA = "stepscope.analysis/1"
CAPTURES_SCHEMA = "stepscope.captures/1"

Ledger = dict[TimeCategory, float]
"""Fraction of the window by category; all categories are present, and add up to 1. Empty without a trace."""


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """Analysis document: size of each parallel dimension; None where it is not known."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    cp: int | None = None


@dataclass(frozen=True, slots=True)
class AnalysedJob:
    """Analysis document: the analysed job. `step_ms` is the median over ranks of whole device steps.

    Of a job without a trace `num_steps` is 0 and `step_ms` None; `ranks` are those whose steps are recorded.
    """

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
    """gpu | cpu: the device of the ledger"""
    simulated_compute: bool = False


@dataclass(frozen=True, slots=True)
class TraceQuality:
    """Analysis document: how complete and consistent the traces are."""

    repaired: int = 0
    """events whose damaged text was repaired"""
    dropped: int = 0
    """events left out, as they cannot be read or are impossible"""
    clipped: int = 0
    """device activities cut at the start of the next one on the same stream"""
    truncated_files: int = 0
    """files left out because they end before their closing bracket"""
    unlinked: float = 0.0
    """share of device activities without their launch"""
    graph_share: float = 0.0
    """share of kernels launched through CUDA/HIP graphs"""
    collective_args: float | None = None
    """share of communication kernels with recorded arguments; None without communication"""
    unmatched_collectives: float | None = None
    """share of communication calls without counterpart on the other ranks; None for one rank"""
    lost_launches: float = 0.0
    """share of launches of kernels and graphs that left no kernels, on the worst rank"""
    steps_complete: int = 0
    """steps that are whole on every rank"""
    merged_boundaries: int = 0
    """step boundaries that did not increase"""
    clock_residual_us: float | None = None
    """spread of the clocks after alignment; None with a single clock"""
    profiler_distortion: float | None = None
    """profiled step / unprofiled step - 1"""
    clipped_us: float = 0.0
    """time cut off the clipped activities"""
    early: float = 0.0
    """share of linked device activities that start before their launch: lost records, or a wrong device clock"""
    lost_at_start: int = 0
    """launches without kernels before the first with some: the profiler was not recording the device yet"""
    steps_marked: list[int] = field(default_factory=list)
    """steps that are marked in the trace of any rank"""
    steps_used: list[int] = field(default_factory=list)
    """steps that are analysed on every rank"""
    steps_without_device: float = 0.0
    """share of marked steps in which no device activity was launched, on the worst rank"""
    largest_activity: float = 0.0
    """share of the window that one compute kernel or copy takes, on the worst rank"""
    left_out_before_ms: float = 0.0
    """time of the analysed steps (of the file, without steps) before the window in which the device did nothing, on the
    worst rank"""
    left_out_after_ms: float = 0.0
    """their time after the window, on the worst rank"""


@dataclass(frozen=True, slots=True)
class StepLedger:
    """Analysis document: one whole device step of one rank."""

    index: int
    ms: float
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class RankLedger:
    """Analysis document: one rank's window."""

    rank: int
    window_ms: float
    step_ms: float | None
    ledger: Ledger
    hidden_communication: float
    steps: list[StepLedger]
    span_ms: float | None = None
    """first to last device activity of the file, the window of other tools; None without a device"""
    rank_source: str | None = None
    """header | collectives | file_name | device | only_file | order: where the rank's number comes from. A number taken
    by the order of the files identifies no process, and the verdict names none of these."""
    file: str | None = None
    """name of its trace; in a file of several ranks with the label of its events"""
    place: dict[str, int] = field(default_factory=dict)
    """index by parallel dimension (tp, pp, dp, ep, cp), as far as the file's name gives it"""


@dataclass(frozen=True, slots=True)
class RootCause:
    """Analysis document: one root cause; fractions add up to 1 over the rows, milliseconds to the job's step.

    Attributes:
        cause: as in the reference of causes.
        reasons: which kind of it; empty where not known.
        fraction: of the profiled time of all ranks.
        ms_per_step: over whole steps; None where all of the cause's time is in the last step, which the trace cuts.
        interval, ms_interval: 90% confidence intervals of `fraction` and `ms_per_step`, by a bootstrap over steps.
        ranks: that cause it; empty: all alike.
        evidence: numbers that support it.
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
    """Analysis document: a further large cause."""

    cause: Cause
    fraction: float
    summary: str


@dataclass(frozen=True, slots=True)
class PredictedFix:
    """Analysis document: the mean training time of a useful step once the verdict's cause is removed.

    Attributes:
        action: what to change, as the user writes it.
        step_ms: None where only bounds are known.
        error: relative error of the model on runs with a measured answer; None where unknown.
        basis: telemetry | replay | model | bound.
        interval_ms: least and largest step.
        change: the known change that the step is after; None: after removal of the cause, however that is done.
    """

    action: str
    step_ms: float | None
    speedup: float | None
    error: float | None
    basis: str
    interval_ms: tuple[float, float] | None = None
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class NextCause:
    """Analysis document: the next loss, as a share of training time; reasons tell it from another of its cause."""

    cause: Cause
    share: float
    reasons: list[Reason] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Analysis document: what a known change to the same work would save; not a loss.

    The rows of a verdict are in the order in which to make the changes. Gains of two changes do not add up.

    Attributes:
        action: what to change, as the user writes it.
        step_ms: the mean step after this change alone, as is likely within its interval.
        error: relative error of the model on runs with a measured answer; None where unknown.
        interval_ms: least and most, where an input of the model is unknown; None where none is.
        change: kind of the change.
        why: what of a step it replaces, in one clause.
        together_ms: the step after this change and all rows before it; None where it stands instead of one of those.
    """

    action: str
    step_ms: float
    speedup: float
    basis: str = "model"
    error: float | None = None
    interval_ms: tuple[float, float] | None = None
    change: Change | None = None
    why: str = ""
    together_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Analysis document: the main cause in one line, with evidence and advice.

    Attributes:
        bottleneck: whether a loss reaches a tenth of training time; None where unknown, and of a job that a hang or
            GPU memory that ran out ended: what it lost before is in `next` and `secondary`.
        share: of training time, of the cause for these reasons (`job_time.breakdown` has garbage collection and
            compilation apart from their cause); None where unknown.
        headroom: changes that save at least `headroom_threshold` of the step, in the order in which to make them.
        headroom_threshold: None where changes were not modelled.
    """

    cause: Cause
    reasons: list[Reason]
    confidence: float
    summary: str
    ranks: list[int]
    evidence: list[Evidence]
    actions: list[str]
    secondary: list[SecondaryCause]
    bottleneck: bool | None = None
    share: float | None = None
    fix: PredictedFix | None = None
    next: NextCause | None = None
    headroom: list[Headroom] = field(default_factory=list)
    headroom_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class StepTrend:
    """Analysis document: steps that get longer.

    Attributes:
        ms_per_step: growth of a step from one to the next.
        since_step: the step from which on they are longer than at first.
        first_ms, last_ms: median of the first and of the last fifth.
        grows_with: figures of the step records that grow as well.
    """

    ms_per_step: float
    since_step: int
    first_ms: float
    last_ms: float
    grows_with: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Analysis document: the parts of a run's wall-clock time, ms; they add up to it.

    Attributes:
        lost_steps: steps that a restart repeated, at their first execution.
        tail: after the last step.
    """

    start_up: float
    training: float
    profiling: float
    lost_steps: float
    restarts: float
    tail: float


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """Analysis document: what one source of evidence says of the job without the others; fields as in `Verdict`."""

    cause: Cause
    reasons: list[Reason]
    confidence: float
    ranks: list[int]
    bottleneck: bool | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class EvidenceLayer:
    """Analysis document: one source of evidence: telemetry | trace | counters | flight | memory | nccl.

    Attributes:
        agrees: None where not compared.
        verdict: by this source alone; None where it cannot tell.
    """

    layer: str
    used: bool
    agrees: bool | None
    note: str
    verdict: LayerVerdict | None = None


@dataclass(frozen=True, slots=True)
class UnexplainedSteps:
    """Analysis document: slow steps for which no record and no capture gives a cause.

    Attributes:
        num_steps: of all steps.
        share: of training time, beyond what an ordinary step takes.
        every: they are every n-th step; None where they are not.
        ranks: ranks that end them later than the others.
    """

    num_steps: int
    share: float
    every: int | None
    ranks: list[int]


CAUSE_OF_PART = {"garbage_collection": Cause.HOST_BOUND, "compilation": Cause.HOST_BOUND}
"""Causes of the categories in `JobTime.breakdown` that are parts of a cause."""

OVERLAPPING = "overlapping"
"""Category in `JobTime.breakdown`: time that is lost to several causes at once, so that to mend one of
them gains none of it."""


@dataclass(frozen=True, slots=True)
class JobTime:
    """Analysis document: training time of the job over all steps and ranks.

    Attributes:
        training_ms: sum over all steps of all attempts, `num_steps` x `mean_step_ms`.
        wall_ms: the parts of `goodput` together; None from traces alone.
        basis: the sources, joined by "+": telemetry, trace, counters.
        breakdown: share of training time by category: a cause, garbage_collection, compilation or overlapping; adds up
            to 1.
        goodput: None from traces alone.
        num_settled: steps that show the job as it runs, neither first nor disturbed by profiling; None from traces
            alone.
        rank_seconds: number of ranks times wall-clock time over all attempts; None from traces alone.
        gpu_time: share of that by class, as in `stepscope.goodput/1`; adds up to 1. None from traces alone.
    """

    num_steps: int
    training_ms: float
    mean_step_ms: float
    median_step_ms: float
    wall_ms: float | None
    basis: str
    breakdown: dict[str, float]
    goodput: Goodput | None
    layers: list[EvidenceLayer]
    unexplained: UnexplainedSteps | None = None
    trend: StepTrend | None = None
    num_settled: int | None = None
    rank_seconds: float | None = None
    gpu_time: dict[GoodputClass, float] | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """Analysis document: all matched calls of one kind and size in one group. Bandwidths are GB/s (1e9 bytes).

    Attributes:
        group: name of the process group.
        dimension: of the mesh: dp, tp, pp, ...; None where not known.
        kind: all_reduce, all_gather, ...
        count: how many calls.
        algbw_gbs, busbw_gbs: algorithm and bus bandwidth as nccl-tests define them, of all calls together.
        hidden: share of the calls' time hidden by compute.
        bytes: of one call; of an uneven all-to-all the mean over the members (the median over the row's calls).
        expected_busbw_gbs: what the link should reach at this size.
        transfer_ms: sum over the calls of the shortest member.
        wait_ms, exposed_wait_ms, exposed_transfer_ms: sum over all members.
        skew_ms, largest_skew_ms: from the first member's arrival to the last one's: mean and largest over the calls.
        last_arriver: the rank that was waited for longest in total.
        times_last: calls in which that rank arrived last.
        hidden_wait, hidden_transfer: shares of the waiting and of the transfer hidden by compute.
        link: nvlink | xgmi | pcie: the expected path of the bytes; None between hosts and where unknown.
        latency_bound: the size is so small that bandwidth hardly matters.
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
    latency_bound: bool | None = None


@dataclass(frozen=True, slots=True)
class DimensionCost:
    """Analysis document: communication time of one parallel dimension; fractions of all windows together.

    The exposed fractions (`wait`, which includes `bubble`, `transfer`, `unsplit`) of all dimensions add up to the
    ledger's communication categories.
    """

    dimension: str | None
    """tp | pp | dp | ep | cp; None where unknown"""
    num_calls: int
    wait: float
    transfer: float
    unsplit: float
    hidden_wait: float
    hidden_transfer: float
    hidden_unsplit: float
    unsplit_wait_at_least: float = 0.0
    """lower bound of the waiting in `unsplit`: for members whose traces are there; all of it may be waiting"""


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """Analysis document: how late one rank arrives at its collectives.

    Attributes:
        rank: the rank.
        num_collectives: matched calls that it takes part in.
        times_last: calls at which it arrives last.
        mean_late_ms: after the first member, mean over the calls.
    """

    rank: int
    num_collectives: int
    times_last: int
    mean_late_ms: float


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Analysis document: the pipeline bubble and its parts, as fractions of the pipelined span.

    Attributes:
        schedule: gpipe, 1f1b, ...
        stages, micro_batches, chunks: of the schedule; chunks of the model on each stage.
        period_ms: mean step of the first stage; the span is that without the optimizer.
        measured: the bubble: mean share of the span in which a stage runs no pass; the next three are its parts.
        structural: what the schedule leaves idle with equal stages.
        imbalance: what uneven stages add.
        variance: the rest: passes that take longer than others of their stage, and delays.
        textbook: what the schedule's formula gives for equal stages.
    """

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
    """Analysis document: share of kernel time by how its limit was determined; the shares add up to 1."""

    model: float
    """by the recorded shapes of the kernel's operator"""
    by_name: float
    """by the kind of work in the kernel's name"""
    none: float
    borrowed: float = 0.0
    """launched before the trace begins: by the same kernel with a known operator"""
    parameters: float = 0.0
    """passes over the parameters: by the grid and the sizes of the gradients"""

    @property
    def costed(self) -> float:
        """Share whose FLOPs and bytes are known in any way."""
        return self.model + self.borrowed + self.parameters


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Analysis document: kernels of one name (or of one operator, module or call). None is unknown.

    Attributes:
        name: of the kernel, operator, module, or operator with shapes.
        count: how many kernels, over all ranks and steps.
        ms: time attributed to them in the ledger, over all ranks and steps.
        limit: category of most of that time: what limits them.
        decided_by: how the limit of most of that time was determined, as in `Roofline.coverage`.
        operator, module, shapes: of most of that time: the operator that launched it, the module or annotated region
            around that, and the dimensions of its tensors.
        mean_us: mean duration of a kernel.
        roof_share: share of the roofline: shortest time at the GPU's peaks / duration, over the kernels whose operator
            has a cost model.
        occupancy: share of an SM's warps that the launches could keep resident.
        achieved_occupancy: the same, but at most what their grids fill.
        limiter: of that occupancy: registers | shared_memory | blocks | grid | threads.
        grid, block, registers_per_thread, shared_memory_bytes: of the launch with most of the time; empty or None
            where not recorded.
        findings: codes of Roofline.findings that apply to at least half of the time.
        step_ms: time in each of the first whole steps, mean over ranks; only for rows by kernel name.
        operation, element_type, layout: what the kernel's name tells: kind of work, type of the narrowest operand,
            layout of images or transposes of operands; only for rows by kernel name.
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
    operation: str | None = None
    element_type: str | None = None
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownKernels:
    """Analysis document: kernels whose names nobody knows; `share` of kernel time, the longest `names`."""

    count: int
    share: float
    names: list[str]


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Analysis document: copies of one kind; None is unknown.

    Attributes:
        kind: "HtoD (Pageable -> Device)".
        count, bytes: over all ranks and steps.
        ms: their duration over all ranks and steps.
        gbs: mean bandwidth, GB/s (1e9 bytes).
        link_gbs: bandwidth of the host's link in one direction, GB/s.
    """

    kind: str
    count: int
    ms: float
    bytes: int
    gbs: float | None
    link_gbs: float | None


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """Analysis document: an avoidable slowdown of kernels or copies.

    Attributes:
        code: which slowdown it is.
        fraction: affected share of all ranks' profiled windows.
        ms: affected time over all ranks and steps.
        message: what is found, in one line.
        advice: what to do.
    """

    code: str
    fraction: float
    ms: float
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Analysis document: what limits the kernels: arithmetic, memory bandwidth or latency."""

    coverage: RooflineCoverage
    kernels: list[KernelTime]
    by_operator: list[KernelTime] = field(default_factory=list)
    by_module: list[KernelTime] = field(default_factory=list)
    by_call: list[KernelTime] = field(default_factory=list)
    """by operator and its input shapes"""
    copies: list[CopyTime] = field(default_factory=list)
    findings: list[KernelFinding] = field(default_factory=list)
    """largest first"""
    tiny_kernels: float | None = None
    """share of kernels, by count, that take less than 10 us"""
    unknown: UnknownKernels | None = None
    """None without kernels"""


@dataclass(frozen=True, slots=True)
class WhatIf(PredictedStep):
    """Analysis document: a prediction in an analysis.

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
    """The document `stepscope.analysis/1`. Without a trace only job, verdict, warnings and job_time are filled in."""

    job: AnalysedJob
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
    job_time: JobTime | None = None
    schema: str = ANALYSIS_SCHEMA


@dataclass(frozen=True, slots=True)
class CaptureAnalysis:
    """The analysis of one capture; captures are numbered from 1, the earliest."""

    capture: int
    analysis: Analysis


@dataclass(frozen=True, slots=True)
class CaptureAnalyses:
    """The document `stepscope.captures/1`: each capture of the same processes analysed by itself."""

    captures: list[CaptureAnalysis]
    warnings: list[Notice]
    """captures that cannot be analysed"""
    schema: str = CAPTURES_SCHEMA
