"""Host calls that launch or wait, the host work between them, and the launch costs of this machine.

Order: a call follows the call that returned last before it began, on any launching thread. The training loop hands
over to autograd's thread and back, so the time in between is host work of one or the other. A thread that launches
concurrently with another keeps its own order as well.

Latencies are one number each for the whole rank (a mean or a median), so that no single measured gap becomes a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.intervals import Nanoseconds, contains, covered_time, empty, join, subtract
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import BLOCKING_CALL, HostSpans, blocking_copies
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, HOST_WORK, Counts, Edges, Mask
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import are_among, distinct, on_lanes, sorted_order


@dataclass(frozen=True, slots=True)
class ObservedCalls:
    """Launching and blocking calls as measured, by start; a blocking copy is two entries, its launch and its return.

    Attributes:
        row: row of the trace.
        start_ns, end_ns: of the call; the launch of a blocking copy ends no later than the copy starts.
        lane: its thread.
        first_activity: index of the activity that it launched, or NONE.
        waits_for: index of the copy whose end the return waits for, or NONE.
        blocks: whether it is a synchronize call.
    """

    row: IntColumn
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    lane: IntColumn
    first_activity: IntColumn
    waits_for: IntColumn
    blocks: Mask

    def __len__(self) -> int:
        return len(self.row)


def observe_calls(trace: TraceColumns, activities: Activities) -> ObservedCalls:
    """Launching and blocking calls of every thread that launches something, for the dependency graph."""
    linked = np.flatnonzero(activities.launch_row != NONE)
    first_of = np.full(len(trace), NONE, np.intp)
    first_of[activities.launch_row[linked[::-1]]] = linked[::-1]  # the last assignment wins: the first to start
    launches = np.flatnonzero(first_of != NONE)
    first = first_of[launches]
    blocking = trace.rows_named(BLOCKING_CALL.search, Category.RUNTIME)
    blocking = on_lanes(trace, blocking, distinct(trace.lane[launches]).tolist())
    blocking = blocking[~are_among(blocking, launches)]
    copies = blocking_copies(trace, activities)
    copies = copies[np.isin(copies, first)]  # not the later nodes of a graph
    end = trace.end_ns[launches].copy()
    place = np.searchsorted(launches, activities.launch_row[copies])
    end[place] = np.clip(activities.start_ns[copies], activities.launch_ns[copies], activities.launch_end_ns[copies])
    row = np.concatenate((launches, blocking, activities.launch_row[copies]))
    none = np.full(len(row), NONE, np.int64)
    first_activity, waits_for = none.copy(), none
    first_activity[: len(launches)] = first
    waits_for[len(launches) + len(blocking) :] = copies
    start = np.concatenate((trace.start_ns[launches], trace.start_ns[blocking], end[place]))
    end = np.concatenate((end, trace.end_ns[blocking], activities.launch_end_ns[copies]))
    blocks = np.zeros(len(row), np.bool_)
    blocks[len(launches) : len(launches) + len(blocking)] = True
    order = sorted_order(start, waits_for != NONE)
    return ObservedCalls(
        row=row[order],
        start_ns=start[order],
        end_ns=end[order],
        lane=trace.lane[row[order]],
        first_activity=first_activity[order],
        waits_for=waits_for[order],
        blocks=blocks[order],
    )


def followed_calls(calls: ObservedCalls) -> tuple[IntColumn, IntColumn]:
    """Graph: by call, the one that returned last before it began; and its thread's previous call if another."""
    by_end = np.argsort(calls.end_ns, kind="stable")
    before = np.searchsorted(calls.end_ns[by_end], calls.start_ns, side="right") - 1
    follows = np.where(before >= 0, by_end[np.maximum(before, 0)], NONE)
    # calls without duration end where they start, so none may follow itself or a later one
    follows = np.where(follows < np.arange(len(calls)), follows, np.arange(len(calls)) - 1)
    own = np.full(len(calls), NONE, np.int64)
    for lane in distinct(calls.lane):
        here = np.flatnonzero(calls.lane == lane)
        own[here[1:]] = here[:-1]
    return follows, np.where(own == follows, NONE, own)


def work_between_calls(
    calls: ObservedCalls,
    follows: IntColumn,
    own_ns: Nanoseconds,
    opens_ns: int,
    spans_of_lane: dict[int, HostSpans],
) -> tuple[Counts, IntColumn]:
    """Graph weights: host time before and in each call by kind, shape (calls, HOST_WORK), and its kind.

    A call that follows none (`follows` is NONE) follows `opens_ns`; `own_ns` is the host time of each call itself.
    """
    work = np.zeros((len(calls), len(HOST_WORK)), np.int64)
    label = np.full(len(calls), HOST_COLUMN[Cause.HOST_BOUND], np.int8)
    opens = np.where(follows == NONE, opens_ns, calls.end_ns[np.maximum(follows, 0)])
    opens = np.minimum(opens, calls.start_ns)  # nested calls have nothing between them
    rest = calls.start_ns - opens
    for lane in distinct(calls.lane).tolist():
        here = np.flatnonzero(calls.lane == lane)
        # disjoint spans: the profiler first, then checkpoints, then data loading
        taken = empty()
        for cause in (Cause.PROFILER, Cause.CHECKPOINT, Cause.DATA_LOADING):
            cover = subtract(spans_of_lane[lane].annotated[TimeCategory(cause)], taken)
            taken = join(taken, cover)
            column = HOST_COLUMN[cause]
            work[here, column] = covered_time(opens[here], calls.start_ns[here], cover)
            label[here[contains(cover, calls.start_ns[here])]] = column
    work[:, HOST_COLUMN[Cause.HOST_BOUND]] = rest - work.sum(axis=1)
    label[calls.blocks & (label == HOST_COLUMN[Cause.HOST_BOUND])] = HOST_COLUMN[Cause.SYNCHRONIZATION]
    work[np.arange(len(calls)), label] += own_ns
    return work, label


QUEUED_FOR_NS = 20_000
"""Launched at least this long before its stream was free, so that the gap before it is the device's own."""

LONGEST_OWN_GAP_NS = 10_000
"""Longest gap on a stream that is not a wait for something."""

USUAL_GAP_NS = 1_500
USUAL_LAUNCH_NS = 1_000
USUAL_EVENT_NS = 2_000
"""Defaults where a trace has no sample: medians of recorded H100 runs."""

USUAL_SYNC_NS = 5_000
"""Defaults of a synchronize call's own cost, and of the time from the end of the work to its return."""


def stream_gaps(activities: Activities, edges: Edges) -> Nanoseconds:
    """Graph weights: mean gap, by edge, of such a succession (kernel after copy, ...) among early queued activities."""
    before, after = edges.source, edges.target
    gap = activities.start_ns[after] - activities.end_ns[before]
    free = activities.end_ns[before] - QUEUED_FOR_NS
    launched = activities.launch_ns[after]
    sample = ((launched == NONE) | (launched < free)) & (gap >= 0) & (gap < LONGEST_OWN_GAP_NS)
    kind = activities.work[before].astype(np.int64) * len(Work) + activities.work[after]
    usual = np.full(len(Work) ** 2, USUAL_GAP_NS, np.int64)
    count = np.bincount(kind[sample], minlength=len(usual))
    total = np.bincount(kind[sample], weights=gap[sample], minlength=len(usual))
    usual[count > 0] = (total[count > 0] / count[count > 0]).astype(np.int64)
    result: Nanoseconds = usual[kind]
    return result


def launch_latency(activities: Activities, calls: ObservedCalls, edges: Edges, events: Edges) -> int:
    """Graph weight: median time from a call's return to the start of what it launched on an idle stream."""
    free = np.zeros(len(activities), np.int64)
    free[edges.target] = activities.end_ns[edges.source]
    launches = np.flatnonzero(
        (calls.first_activity != NONE) & ~np.isin(np.arange(len(calls)), _followed_by_return(calls))
    )
    first = calls.first_activity[launches]
    idle = (free[first] < calls.start_ns[launches]) & (activities.work[first] == Work.COMPUTE)
    idle &= ~np.isin(first, events.target)
    latency = activities.start_ns[first][idle] - calls.end_ns[launches][idle]
    return int(np.median(latency)) if len(latency) else USUAL_LAUNCH_NS


def _followed_by_return(calls: ObservedCalls) -> Nanoseconds:
    """Launches of blocking copies, whose end is where the entry was split and not a return."""
    returns = np.flatnonzero(calls.waits_for != NONE)
    copies = calls.waits_for[returns]
    launch_of = np.full(int(calls.first_activity.max(initial=0)) + 1, NONE, np.int64)
    launches = np.flatnonzero(calls.first_activity != NONE)
    launch_of[calls.first_activity[launches]] = launches
    return launch_of[copies]


def event_latency(activities: Activities, edges: Edges) -> int:
    """Graph weight: median short time from an activity's end to the start of one on another stream that waited."""
    gap = activities.start_ns[edges.target] - activities.end_ns[edges.source]
    gap = gap[gap < LONGEST_OWN_GAP_NS]
    return int(np.median(gap)) if len(gap) else USUAL_EVENT_NS


def return_latency(activities: Activities, calls: ObservedCalls, edges: Edges) -> Nanoseconds:
    """Graph weights: time from the end of the work to the return, by edge; blocking copies with the host's copying."""
    late = calls.end_ns[edges.target] - activities.end_ns[edges.source]
    is_copy = calls.waits_for[edges.target] == edges.source
    waited = ~is_copy & (activities.end_ns[edges.source] > calls.start_ns[edges.target])
    least = np.full(len(calls), np.iinfo(np.int64).max)  # of several streams, the last to end
    np.minimum.at(least, edges.target[waited], late[waited])
    sample = least[least < np.iinfo(np.int64).max]
    usual = int(np.median(sample)) if len(sample) else USUAL_SYNC_NS
    return np.where(is_copy, late, usual)


def own_time(calls: ObservedCalls, held_up: Mask, blocked: Mask) -> Nanoseconds:
    """Graph weights: host time of each call itself.

    A launch held up by a full queue takes the usual time of a launch, a call that waited for device work a short
    constant, a synchronize call that no device work explains all of its time.
    """
    own = calls.end_ns - calls.start_ns
    launches = calls.first_activity != NONE
    free = launches & ~held_up
    usual = int(np.median(own[free])) if free.any() else USUAL_SYNC_NS
    own = np.where(launches & held_up, np.minimum(own, usual), own)
    own = np.where(calls.blocks & blocked, np.minimum(own, USUAL_SYNC_NS), own)
    result: Nanoseconds = np.where(calls.waits_for != NONE, 0, own)
    return result
