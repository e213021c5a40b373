"""Idle time of the device: the rule that attributes each gap to a category, and what delayed the host meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import (
    Intervals,
    Nanoseconds,
    contains,
    covered_time,
    empty,
    intersect,
    single,
    subtract,
    time_of,
    union,
)
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import (
    AFTER_BLOCKING_CALL_NS,
    ANNOTATES,
    HostSpans,
    allocator_rows,
    blocking_calls,
    blocking_copies,
    data_loading_rows,
    garbage_rows,
    host_spans,
)
from stepscope.analyzer.ledger.python_frames import time_by_function
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CategorySpans, Segments
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.ledger.unrecorded_work import UnrecordedWork, graph_captures
from stepscope.core.documents.run_directory import PHASE_PREFIX
from stepscope.core.errors import printable
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import are_among, distinct, graph_launches, on_lanes

BLOCKING_LAUNCH_NS = 20_000
"""A launch call this long blocks (a module loads on first use, a lock of the driver, a thread without a core): its work
is queued when it returns. Ordinary ones take 6 to 12 us with the profiler (medians of recorded H100 and H200 runs)."""


@dataclass(frozen=True, slots=True)
class Host:
    """Host of a rank.

    Attributes:
        spans_of_lane: by launching thread.
        launches_known: whether the trace has any launch.
        queued_ns: by activity, from when it was queued: the start of its launch call, or the end of one that blocks; or
            NONE.
        staged: whether it is a copy whose call returned only when it had ended, so that the return does not show when
            it was queued.
        unrecorded: time in which the device may run what the trace does not hold.
    """

    spans_of_lane: dict[int, HostSpans]
    launches_known: bool
    queued_ns: Nanoseconds
    staged: npt.NDArray[np.bool_]
    unrecorded: Intervals = field(default_factory=empty)

    def copy_causes(self, activities: Activities) -> IntColumn:
        """Cause code of each activity if it is a copy: checkpoint or data loading that launched it, else copy."""
        causes = np.full(len(activities), CAUSE_CODE[Cause.COPY], np.int8)
        for lane, spans in self.spans_of_lane.items():
            here = activities.launch_lane == lane
            causes[here & contains(spans.annotated[TimeCategory.DATA_LOADING], activities.launch_ns)] = CAUSE_CODE[
                Cause.DATA_LOADING
            ]
            causes[here & contains(spans.annotated[TimeCategory.CHECKPOINT], activities.launch_ns)] = CAUSE_CODE[
                Cause.CHECKPOINT
            ]
        return causes


def observe_host(
    trace: TraceColumns, steps: HostSteps, activities: Activities, unrecorded: UnrecordedWork | None = None
) -> Host:
    """Time breakdown, idle time: read the spans of every thread that launched something."""
    lanes = [int(lane) for lane in distinct(activities.launch_lane) if lane != NONE]
    staged = np.zeros(len(activities), np.bool_)
    staged[blocking_copies(trace, activities)] = True
    return Host(
        spans_of_lane=host_spans(trace, steps, activities, lanes),
        launches_known=bool(len(trace.rows_of(Category.RUNTIME))),
        queued_ns=np.where(_blocks(activities) & ~staged, activities.launch_end_ns, activities.launch_ns),
        staged=staged,
        unrecorded=empty() if unrecorded is None else unrecorded.time(),
    )


def _blocks(activities: Activities) -> npt.NDArray[np.bool_]:
    """Whether the launch call of each activity took so long that it blocked."""
    blocks: npt.NDArray[np.bool_] = activities.launch_end_ns - activities.launch_ns >= BLOCKING_LAUNCH_NS
    return blocks


def attribute_gaps(gaps: Intervals, activities: Activities, host: Host) -> list[CategorySpans]:
    """Time breakdown: attribute the device's idle time to idle categories, gap by gap.

    Idea: the activity that ends a gap is what the device was missing. From its launch on it was queued, so the device
    was late (`device_gap`). Before its launch the launching thread was late, for what it did at each instant: profiler,
    checkpoint, data loading, memory; else the blocking call in which the gap opens; else it was just slow
    (`host_bound`). A launch call that blocks is late as well. Where the device may have run unrecorded work nobody
    knows whether it idled (`idle_other`).
    """
    linked = activities.launch_ns != NONE
    if not host.launches_known or not linked.any():
        return [CategorySpans(gaps, TimeCategory.IDLE_OTHER)]
    unknown = CategorySpans(intersect(gaps, host.unrecorded), TimeCategory.IDLE_OTHER)
    gaps = subtract(gaps, host.unrecorded)
    ended_by = np.searchsorted(activities.start_ns, gaps.end, side="left")
    is_last = ended_by == len(activities)  # nothing follows: the host of the last launch launched no more
    ended_by[is_last] = activities.launch_ns.argmax()
    launch, lane = np.where(is_last, gaps.end, activities.launch_ns[ended_by]), activities.launch_lane[ended_by]
    first_launch = int(activities.launch_ns[linked].min())
    launched_before = (launch == NONE) & (gaps.end <= first_launch)
    orphan = (launch == NONE) & ~launched_before
    called = np.clip(launch, gaps.start, gaps.end)
    is_staged = host.staged[ended_by] & (gaps.end - called >= BLOCKING_LAUNCH_NS)
    queued = np.clip(host.queued_ns[ended_by], gaps.start, gaps.end)
    queued = np.where(is_staged | orphan | is_last, gaps.end, queued)
    queued = np.where(launched_before, gaps.start, queued)
    parts = [CategorySpans(union(queued, gaps.end), TimeCategory.DEVICE_GAP)]
    parts += [unknown, CategorySpans(union(gaps.start[orphan], gaps.end[orphan]), TimeCategory.IDLE_OTHER)]
    for number, spans in host.spans_of_lane.items():
        here = lane == number
        start, call, end = gaps.start[here], called[here], queued[here]
        opens_blocked = _opens_blocked(spans.blocked, start)
        waited = union(start[opens_blocked], call[opens_blocked])
        late = union(np.where(opens_blocked, call, start), end)
        parts += _by_spans(waited, spans, TimeCategory.SYNCHRONIZATION)
        parts += _by_spans(late, spans, TimeCategory.HOST_BOUND)
    return parts


def late_host(alone: Intervals, activities: Activities, host: Host) -> list[CategorySpans]:
    """Time breakdown: communication-only time before the next compute kernel was queued, by idle category.

    Exposed is not blocking: with instantaneous communication the device would have idled there all the same, so the
    idle rule attributes that time. Time in which the launching thread itself is blocked (perhaps by this very
    communication) is left out.
    """
    compute = activities.of(Work.COMPUTE)
    if not len(compute) or not len(alone):
        return []
    place = np.searchsorted(activities.start_ns[compute], alone.end, side="left")
    known = place < len(compute)
    following = compute[np.minimum(place, len(compute) - 1)]
    queued = host.queued_ns[following]
    known &= queued != NONE
    parts: list[CategorySpans] = []
    for number, spans in host.spans_of_lane.items():
        here = known & (activities.launch_lane[following] == number)
        late = union(alone.start[here], np.minimum(alone.end[here], queued[here]))
        parts += _by_spans(subtract(late, spans.blocked), spans, TimeCategory.HOST_BOUND)
    return parts


def _opens_blocked(blocked: Intervals, opening: Nanoseconds) -> npt.NDArray[np.bool_]:
    """Whether each gap opens inside a blocking call or just after one returned."""
    if not len(blocked):
        return np.zeros(len(opening), np.bool_)
    last = np.searchsorted(blocked.start, opening, side="right") - 1
    return (last >= 0) & (opening - blocked.end[np.maximum(last, 0)] <= AFTER_BLOCKING_CALL_NS)


def _by_spans(time: Intervals, spans: HostSpans, rest: TimeCategory) -> list[CategorySpans]:
    """First match: profiler, checkpoint, data loading, memory (the host's time), the rest."""
    parts = []
    for category, cover in (*spans.annotated.items(), (TimeCategory.HOST_BOUND, spans.memory)):
        parts.append(CategorySpans(intersect(time, cover), category))
        time = subtract(time, cover)
    return [*parts, CategorySpans(time, rest)]


_COMPILER = re.compile(r"_compile\.compile_inner|dynamo_timed|CachingAutotuner\.benchmark_all_configs")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_READS_A_VALUE = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|equal|masked_select|_?unique\w*)$")
_COPIES = re.compile(r"^aten::(copy_|_to_copy|to)$")
_IN_PROCESS_LOADER = re.compile(r"_SingleProcessDataLoaderIter")
_CALLS = (Reason.READS_VALUE, Reason.BLOCKING_COPY, Reason.EXPLICIT_SYNCHRONIZE)
"""Kinds of blocking calls by code."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What one rank's host did while the device idled for it.

    Attributes:
        late_ns: time attributed to a late host, by what its threads did meanwhile.
        phases_ns: the same time by phase of the training script; nested phases each count in full.
        functions_ns: the same time by the training thread's Python function, longest first; empty without stacks.
        blocked_ns: time attributed to synchronization, by the kind of call before it.
        blocking_functions_ns: time in blocking calls by function.
        num_blocking_calls: in the window, by kind.
        load_waits_ns: wait for each batch, in order, over the whole trace.
        loads_in_process: whether the training process itself makes the batches.
    """

    late_ns: dict[Reason, int] = field(default_factory=dict)
    phases_ns: dict[str, int] = field(default_factory=dict)
    functions_ns: dict[str, int] = field(default_factory=dict)
    blocked_ns: dict[Reason, int] = field(default_factory=dict)
    blocking_functions_ns: dict[str, int] = field(default_factory=dict)
    num_blocking_calls: dict[Reason, int] = field(default_factory=dict)
    load_waits_ns: tuple[int, ...] = ()
    loads_in_process: bool = False


def host_work(trace: TraceColumns, steps: HostSteps, activities: Activities | None, segments: Segments) -> HostWork:
    """Time breakdown, idle time: what the host did while the device idled for it.

    Sums over the launching threads and the training loop's.

    Args:
        activities: None for a run without a device.
        segments: the rank's window.
    """
    launching = () if activities is None else distinct(activities.launch_lane).tolist()
    lanes = sorted({int(lane) for lane in (*launching, steps.main_lane) if lane != NONE})
    late = _charged(segments, Cause.HOST_BOUND)
    waits, in_process = _loads(trace, lanes)
    blocked_ns, num_calls = _blocked(trace, lanes, activities, segments)
    first_step_ns = int(steps.start_ns.min()) if len(steps) else int(segments.start_ns.min())
    blocked = empty()
    if blocked_ns and activities is not None:
        window = single(int(segments.start_ns[0]), int(segments.end_ns[-1]))
        blocked = intersect(union(*blocking_calls(trace, lanes, activities)), window)
    return HostWork(
        late_ns=_late(trace, lanes, activities, late),
        phases_ns=_phases(trace, lanes, late),
        functions_ns=time_by_function(trace, lanes, late, first_step_ns),
        blocked_ns=blocked_ns,
        blocking_functions_ns=time_by_function(trace, lanes, blocked, first_step_ns),
        num_blocking_calls=num_calls,
        load_waits_ns=waits,
        loads_in_process=in_process,
    )


def _charged(segments: Segments, cause: Cause) -> Intervals:
    keep = segments.cause == CAUSE_CODE[cause]
    return Intervals(segments.start_ns[keep], segments.end_ns[keep])


def _late(trace: TraceColumns, lanes: list[int], activities: Activities | None, left: Intervals) -> dict[Reason, int]:
    """Late time by first match: garbage collection, driver allocations, compilation, capture of a CUDA graph, CPU
    optimizer, launch calls that block, operators."""
    if not len(left):
        return {}
    first, again = _blocking_launches(trace, activities)
    time = {}
    for reason, cover in (
        (Reason.GC, time_of(trace, garbage_rows(trace))),
        (Reason.ALLOCATOR, time_of(trace, on_lanes(trace, allocator_rows(trace), lanes))),
        (Reason.COMPILE, time_of(trace, on_lanes(trace, trace.rows_named(_COMPILER.search, *ANNOTATES), lanes))),
        (Reason.GRAPH_CAPTURE, graph_captures(trace)),
        (Reason.CPU_OPTIMIZER, time_of(trace, on_lanes(trace, _optimizers_on_cpu(trace, activities), lanes))),
        (Reason.FIRST_LAUNCH, first),
        (Reason.BLOCKED_LAUNCH, again),
        (Reason.DISPATCH, time_of(trace, on_lanes(trace, trace.rows_of(Category.CPU_OP, Category.RUNTIME), lanes))),
    ):
        time[reason] = intersect(left, cover).total
        left = subtract(left, cover)
    has_operators = len(trace.rows_of(Category.CPU_OP)) > 0
    time[Reason.PYTHON if has_operators else Reason.OPERATORS_UNKNOWN] = left.total
    return {reason: nanoseconds for reason, nanoseconds in time.items() if nanoseconds}


def _blocking_launches(trace: TraceColumns, activities: Activities | None) -> tuple[Intervals, Intervals]:
    """Launch calls that block: those of work whose name was not launched before in the trace, and others.

    Without those of graphs, which take longer the more nodes they have.
    """
    if activities is None:
        return empty(), empty()
    blocks = np.flatnonzero(_blocks(activities))
    blocks = blocks[~are_among(activities.launch_row[blocks], graph_launches(trace))]
    first_launch = np.full(len(trace.names), np.iinfo(np.int64).max)
    linked = np.flatnonzero(activities.launch_ns != NONE)
    np.minimum.at(first_launch, trace.name[activities.row[linked]], activities.launch_ns[linked])
    is_first = activities.launch_ns[blocks] <= first_launch[trace.name[activities.row[blocks]]]
    return (
        union(activities.launch_ns[blocks[is_first]], activities.launch_end_ns[blocks[is_first]]),
        union(activities.launch_ns[blocks[~is_first]], activities.launch_end_ns[blocks[~is_first]]),
    )


def _phases(trace: TraceColumns, lanes: list[int], late: Intervals) -> dict[str, int]:
    """Late time by phase of the training script."""
    everywhere = trace.rows_named(lambda name: name.startswith(PHASE_PREFIX), Category.USER_ANNOTATION)
    rows = on_lanes(trace, everywhere, lanes)
    found = {}
    for number in distinct(trace.name[rows]).tolist():
        span = time_of(trace, rows[trace.name[rows] == number])
        if nanoseconds := intersect(late, span).total:
            found[printable(trace.names[number].removeprefix(PHASE_PREFIX))] = nanoseconds
    return found


def _optimizers_on_cpu(trace: TraceColumns, activities: Activities | None) -> npt.NDArray[np.intp]:
    """Optimizer steps in which nothing was launched: the parameters are on the host."""
    rows = trace.rows_named(_OPTIMIZER.search, *ANNOTATES)
    if activities is None:
        return rows[:0]
    launches = np.sort(activities.launch_ns, kind="stable")
    first = np.searchsorted(launches, trace.start_ns[rows])
    nothing_launched: npt.NDArray[np.bool_] = first == np.searchsorted(launches, trace.end_ns[rows])
    return rows[nothing_launched]


def _blocked(
    trace: TraceColumns, lanes: list[int], activities: Activities | None, segments: Segments
) -> tuple[dict[Reason, int], dict[Reason, int]]:
    """Idle time by the last blocking call before it, and how many calls of each kind the window has."""
    idle = segments.intervals_of(TimeCategory.SYNCHRONIZATION)
    if activities is None or not len(idle):
        return {}, {}
    start, _ = blocking_calls(trace, lanes, activities)
    start = np.sort(start, kind="stable")
    kind = _kinds_of_calls(trace, lanes, start)
    window = (start >= segments.start_ns[0]) & (start < segments.end_ns[-1])
    place = np.searchsorted(start, idle.start, side="right") - 1
    time: dict[Reason, int] = {}
    for code, reason in enumerate(_CALLS):
        mine = (place >= 0) & (kind[np.maximum(place, 0)] == code)
        nanoseconds = int((idle.end - idle.start)[mine].sum())
        if nanoseconds:
            time[reason] = nanoseconds
    counts = {reason: int((kind[window] == code).sum()) for code, reason in enumerate(_CALLS)}
    return time, {reason: count for reason, count in counts.items() if count}


def _kinds_of_calls(trace: TraceColumns, lanes: list[int], start: Nanoseconds) -> npt.NDArray[np.int64]:
    """Index in _CALLS by the operator around each call; without one it is an explicit synchronization."""
    kind = np.full(len(start), _CALLS.index(Reason.EXPLICIT_SYNCHRONIZE), np.int64)
    for reason, pattern in ((Reason.BLOCKING_COPY, _COPIES), (Reason.READS_VALUE, _READS_A_VALUE)):
        rows = on_lanes(trace, trace.rows_named(pattern.search, Category.CPU_OP), lanes)
        kind[contains(time_of(trace, rows), start)] = _CALLS.index(reason)
    return kind


def _loads(trace: TraceColumns, lanes: list[int]) -> tuple[tuple[int, ...], bool]:
    """Wait for each batch, and whether the process itself made them."""
    rows = data_loading_rows(trace, lanes)
    spans = time_of(trace, rows)
    inside = time_of(trace, rows[trace.named(rows, _IN_PROCESS_LOADER.search)])
    share = covered_time(spans.start, spans.end, inside).sum() / spans.total if len(spans) else 0.0
    return tuple((spans.end - spans.start).tolist()), bool(share > 0.5)
