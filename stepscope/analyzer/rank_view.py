"""View of one rank: the small result of the per-rank analysis, with what was lost in its trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import Call
from stepscope.analyzer.collectives.gradient_reducer import NO_REDUCER, GradientReducer
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.intervals import Intervals
from stepscope.analyzer.job_time.floor import DeviceFloor
from stepscope.analyzer.kernels.rank_kernels import RankKernels, no_kernels
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.checked_gradients import checked_gradients
from stepscope.analyzer.ledger.idle_time import HostWork
from stepscope.analyzer.ledger.segments import CAUSE_CODE, Segments, TimeTable
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.ledger.unrecorded_work import Missing, UnrecordedWork, launch_calls
from stepscope.analyzer.pipeline.schedules import MicroBatch
from stepscope.analyzer.what_if.host_graph import HostTimeline
from stepscope.analyzer.what_if.rank_graph import RankGraph
from stepscope.core.documents.analysis import KernelTime, RooflineCoverage
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, COMPUTE_CATEGORIES, Notice
from stepscope.trace.columns import NONE, Category, ReadQuality, TraceColumns, TraceHeader
from stepscope.trace.rows import are_among, distinct, graph_launches

NUM_COMPARED_CODES = len(CAUSE_CODE) + 2
"""Number of cause codes with TO_ATTRIBUTE and COMPUTE_CODE."""

COMPUTE_CODE = NUM_COMPARED_CODES - 1
"""Code of all compute categories together when ranks are compared."""

_IS_COMPUTE = np.isin(np.arange(len(CATEGORY_ORDER)), [CATEGORY_CODE[h] for h in COMPUTE_CATEGORIES])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One analysed rank: a few hundred kilobytes however large the trace was.

    Attributes:
        segments: time breakdown of the window; communication-only time is not split yet.
        calls: its communication calls in issue order.
        micro_batches: marked forwards and backwards in launch order; empty without marks.
        optimizer_ns, backward_ns: time by step attributed to kernels of the optimizer, and to those that autograd's
            thread launched; without a device, under the optimizer's annotations, and 0.
        kernels: those with most time, by name.
        kernel_sums: kernels and copies, as sums that can be added over ranks.
        on_device: whether the breakdown is of a device (else of the host's main thread).
        graph: input of a replay (on the rank's own clock); None without steps or a device, or if too large.
        timeline: input of a replay without a device.
        floor: kernels of a step back to back; None without a device or a step.
        reducer: spans of DDP's reducer, on the rank's own clock.
        step_kernels: those of one step; None without a device or a step.
        host_pace_ns: what its host needs to launch a profiled step; None without a device or a step.
    """

    rank: int
    header: TraceHeader
    window: Window
    segments: Segments
    calls: list[Call]
    hidden_communication_ns: int = 0
    micro_batches: list[MicroBatch]
    optimizer_ns: npt.NDArray[np.int64]
    backward_ns: npt.NDArray[np.int64]
    kernels: list[KernelTime] = field(default_factory=list)
    kernel_sums: RankKernels = field(default_factory=no_kernels)
    coverage: RooflineCoverage = field(default_factory=lambda: RooflineCoverage(0.0, 0.0, 0.0))
    step_flops: float | None
    executed_flops: float | None
    peak_flops: float | None = None
    facts: TraceFacts
    host_work: HostWork
    on_device: bool
    notices: list[Notice]
    graph: RankGraph | None = None
    timeline: HostTimeline | None = None
    floor: DeviceFloor | None = None
    step_kernels: StepKernels | None = None
    reducer: GradientReducer = NO_REDUCER
    host_pace_ns: float | None = None

    @property
    def has_device_activities(self) -> bool:
        """Whether the breakdown is of recorded activities of a device."""
        return self.on_device and Missing.DEVICE not in self.facts.unknown_ns

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window.end_ns - self.window.start_ns

    @property
    def step_bounds_ns(self) -> npt.NDArray[np.int64]:
        """Starts of the steps and the end of the window."""
        return self.window.step_bounds_ns


def comparison_table(view: RankView) -> TimeTable:
    """Analyzer's view of a rank: time by cause, with all compute as one, for comparing ranks."""
    codes = np.where(_IS_COMPUTE[view.segments.category], COMPUTE_CODE, view.segments.cause)
    return TimeTable(view.segments, codes, NUM_COMPARED_CODES)


def compute_by_step(view: RankView) -> npt.NDArray[np.float64]:
    """A rank's compute time in each step, nanoseconds."""
    bounds = view.step_bounds_ns
    return comparison_table(view).between(bounds[:-1], bounds[1:])[:, COMPUTE_CODE]


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Counts of what was read, linked and lost in a rank's trace; other units are in the names.

    Attributes:
        reading: what the reader repaired and lost.
        num_activities, num_unlinked, num_early: device activities in the window, those without their launch, and those
            that start before it.
        num_kernels, num_graph_kernels: kernels of the file, and those launched by a graph.
        num_launches, num_lost: launches of kernels, and those without kernels.
        num_graph_launches, num_lost_graphs: the same of graphs.
        lost_at_start: launches without kernels before the first that has some.
        unknown_ns: time of the window that is unknown, by what is missing.
        step_indices, empty_steps: the steps that the host marks, and those in which no device activity was launched.
        largest_share, largest_name: share of the window of the longest compute kernel or copy, and its name.
        untraced_iterations: a graph kept running without kernels in the trace.
        span_ns: first to last device activity of the file.
        begins_ns: the first event of the file.
        checked_gradients: share of the backward pass's operators whose results are checked for NaN.
        optimizer: class of the optimizer that a mark names; empty without one.
        optimizer_launches: share of the kernels of marked steps that the optimizer launches.
        product_type: element type of most FLOPs of matrix products; None without any.
    """

    reading: ReadQuality
    num_activities: int = 0
    num_unlinked: int = 0
    num_early: int = 0
    num_kernels: int = 0
    num_graph_kernels: int = 0
    num_launches: int = 0
    num_lost: int = 0
    num_graph_launches: int = 0
    num_lost_graphs: int = 0
    lost_at_start: int = 0
    unknown_ns: dict[Missing, int] = field(default_factory=dict)
    step_indices: tuple[int, ...] = ()
    empty_steps: tuple[int, ...] = ()
    largest_share: float = 0.0
    largest_name: str = ""
    untraced_iterations: bool = False
    span_ns: int | None = None
    begins_ns: int = 0
    checked_gradients: float = 0.0
    optimizer: str = ""
    optimizer_launches: float = 0.0
    product_type: str | None = None

    @property
    def lost_launches(self) -> float:
        """Share of the launches of kernels and graphs that have no kernels."""
        return (self.num_lost + self.num_lost_graphs) / max(self.num_launches + self.num_graph_launches, 1)


def host_trace_facts(trace: TraceColumns, steps: HostSteps) -> TraceFacts:
    """Rank view: facts on the trace of a rank of a CPU job."""
    return TraceFacts(
        trace.quality,
        step_indices=tuple(steps.index.tolist()),
        begins_ns=int(trace.start_ns.min()),
        checked_gradients=checked_gradients(trace),
    )


def unrecorded_device_facts(trace: TraceColumns, steps: HostSteps, window: Window) -> TraceFacts:
    """Facts on the trace of a rank of a GPU job without device activities."""
    num_launches = len(launch_calls(trace))
    return TraceFacts(
        trace.quality,
        num_launches=num_launches,
        num_lost=num_launches,
        step_indices=tuple(steps.index.tolist()),
        unknown_ns={Missing.DEVICE: window.end_ns - window.start_ns},
        begins_ns=int(trace.start_ns.min()),
    )


def device_trace_facts(
    trace: TraceColumns,
    activities: Activities,
    window: Window,
    steps: HostSteps,
    unrecorded: UnrecordedWork,
    unexplained: Intervals,
) -> TraceFacts:
    """Facts on the trace of a rank with device activities.

    Args:
        window: the part of the trace that is analysed.
        steps: the marked steps, whether the window follows them or not.
        unexplained: idle time of the window without a cause.
    """
    inside = (activities.end_ns > window.start_ns) & (activities.start_ns < window.end_ns)
    linked = activities.launch_ns != NONE
    kernels = activities.of(Work.COMPUTE, Work.COMMUNICATION)
    launches, replays = unrecorded.kernels, unrecorded.graphs
    unknown_ns = unrecorded.of_idle(unexplained)
    if rest := unexplained.total - sum(unknown_ns.values()):
        unknown_ns[Missing.LINKS] = rest
    largest, name = _largest(trace, activities, window)
    places = distinct(steps.position_of(activities.launch_ns[linked]))
    filled = places[places != NONE]
    graphs = graph_launches(trace)
    in_graph = are_among(trace.correlation[activities.row[kernels]], trace.correlation[graphs])
    return TraceFacts(
        trace.quality,
        num_activities=int(np.count_nonzero(inside)),
        num_unlinked=int(np.count_nonzero(inside & ~linked)),
        num_early=int(np.count_nonzero(inside & linked & (activities.start_ns < activities.launch_ns))),
        num_kernels=len(kernels),
        num_graph_kernels=int(np.count_nonzero(in_graph)),
        num_launches=len(launches.rows),
        num_lost=len(launches.lost),
        num_graph_launches=len(replays.rows),
        num_lost_graphs=len(replays.lost),
        lost_at_start=_lost_at_start(trace, activities, unrecorded),
        unknown_ns=unknown_ns,
        step_indices=tuple(steps.index.tolist()),
        # none where no activity has a known step
        empty_steps=tuple(np.delete(steps.index, filled).tolist()) if len(filled) else (),
        largest_share=largest,
        largest_name=name,
        untraced_iterations=_has_untraced_iterations(trace, activities, graphs),
        span_ns=int(activities.end_ns.max() - activities.start_ns.min()),
        begins_ns=int(trace.start_ns.min()),
        checked_gradients=checked_gradients(trace),
    )


def _lost_at_start(trace: TraceColumns, activities: Activities, unrecorded: UnrecordedWork) -> int:
    """Lost launches before the first activity that was launched: the profiler was not recording the device yet."""
    lost = np.concatenate((unrecorded.kernels.lost, unrecorded.graphs.lost))
    first_kept = activities.launch_ns[activities.launch_ns != NONE].min(initial=np.iinfo(np.int64).max)
    return int(np.count_nonzero(trace.start_ns[lost] < first_kept))


def _largest(trace: TraceColumns, activities: Activities, window: Window) -> tuple[float, str]:
    """Share of the window of the longest compute kernel or copy, and its name; a collective may wait that long."""
    chosen = activities.of(Work.COMPUTE, Work.COPY)
    lengths = np.minimum(activities.end_ns[chosen], window.end_ns) - np.maximum(
        activities.start_ns[chosen], window.start_ns
    )
    if not len(lengths) or lengths.max() <= 0:
        return 0.0, ""
    place = int(lengths.argmax())
    name = trace.names[int(trace.name[activities.row[chosen[place]]])]
    return float(lengths[place]) / (window.end_ns - window.start_ns), name


_WAITS_FOR_DEVICE = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
MIN_SILENCE_NS = 1_000_000
"""Shorter waits without device work may be the call's return, or clock error."""
MIN_SILENCE_RATIO = 10
"""Least ratio of the wait without device work to the recorded part of the graph."""


def _has_untraced_iterations(trace: TraceColumns, activities: Activities, graphs: npt.NDArray[np.intp]) -> bool:
    """Whether a call that waits for the device outlasts all recorded work by far, right after a graph's kernels.

    Of a graph with a conditional `while` node CUPTI records the first iteration only (pytorch/kineto#1062): the host
    waits for a device on which nothing seems to run.
    """
    calls = trace.rows_named(_WAITS_FOR_DEVICE.match, Category.RUNTIME)
    calls = calls[trace.end_ns[calls] - trace.start_ns[calls] >= MIN_SILENCE_NS]
    if not len(graphs) or not len(calls) or not len(activities):
        return False
    ended = np.maximum.accumulate(activities.end_ns)
    before = np.searchsorted(activities.start_ns, trace.end_ns[calls]) - 1  # the last to start before the call ends
    calls, before = calls[before >= 0], before[before >= 0]
    silence = trace.end_ns[calls] - np.maximum(ended[before], trace.start_ns[calls])
    ids = trace.correlation[activities.row]
    for place in before[silence >= MIN_SILENCE_NS].tolist():
        graph = ids == ids[place]
        is_graph = ids[place] > 0 and bool(np.isin(ids[place], trace.correlation[graphs]))
        seen = int(activities.end_ns[graph].max() - activities.start_ns[graph].min())
        if is_graph and silence[before == place].max() > MIN_SILENCE_RATIO * seen:
            return True
    return False
