"""Dependency graph of a rank with a device: streams, events, blocking calls, full launch queues.

Recorded: a stream that waits for an event waits for everything queued on the event's stream before the event was
recorded; work queued before the wait call does not wait. A host that waits for a stream waits for everything queued on
it before the call. Records join their calls by correlation id, never by event handle, because handles are reused.

Inferred: where no synchronisation record names the event, a wait is inferred from the host's wait call, and never
against the measurement: an activity that began before another had ended did not wait for it. The measurement decides
whether an edge exists, never its weight.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.device_calls import calls_in_order
from stepscope.analyzer.intervals import Nanoseconds, contains
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import HostSpans
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.what_if import launches
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, DeviceWork, Edges, HostCalls, Mask, RankGraph, hash_names
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.trace.columns import NONE, Category, IntColumn, Rows, TraceColumns
from stepscope.trace.rows import are_among, distinct, last_row_of_id, on_lanes, row_mask

MAX_ACTIVITIES = 500_000
"""Largest number of activities of a rank for which a graph is kept; replaying more costs more than the analysis."""


def build_device_graph(
    trace: TraceColumns, activities: Activities, steps: HostSteps, window: Window, spans_of_lane: dict[int, HostSpans]
) -> RankGraph | None:
    """Dependency graph of one rank; None without steps or launches, or with more than MAX_ACTIVITIES activities."""
    if not len(steps) or len(activities) > MAX_ACTIVITIES or not np.any(activities.launch_row != NONE):
        return None
    streams = read_streams(activities)
    calls = launches.observe_calls(trace, activities)
    in_order = _stream_edges(streams)
    blocking, blocked = blocking_edges(trace, activities, streams, calls)
    queue, held_up = _queue_edges(activities, calls)
    follows, follows_own = launches.followed_calls(calls)
    opens_ns = min(int(steps.start_ns[0]), int(calls.start_ns[0]))
    work, label = launches.work_between_calls(
        calls, follows, launches.own_time(calls, held_up, blocked), opens_ns, spans_of_lane
    )
    events = event_edges(trace, activities, streams)
    key = calls.end_ns.copy()
    launching = np.flatnonzero(calls.first_activity != NONE)
    start = activities.start_ns[calls.first_activity[launching]]
    key[launching] = np.maximum(np.minimum(key[launching], start), calls.start_ns[launching])
    order = launching[np.argsort(calls.row[launching], kind="stable")]
    place = np.minimum(np.searchsorted(calls.row[order], activities.launch_row), len(order) - 1)
    launched_by = np.where(activities.launch_row != NONE, order[place], NONE)  # the nodes of a CUDA graph share one
    kernels = activities.of(Work.COMPUTE, Work.COMMUNICATION)
    boundaries = kernels[np.searchsorted(activities.start_ns[kernels], window.boundary_ns)]
    in_window = (members[activities.end_ns[members] <= window.end_ns] for members in streams.members)
    return RankGraph(
        host=HostCalls(
            key_ns=key,
            work_ns=work,
            label=label,
            follows=follows,
            follows_own=follows_own,
            first_activity=calls.first_activity,
            opens_ns=opens_ns,
            is_needed=np.zeros(len(calls), np.bool_),
        ),
        device=_device_work(trace, activities, steps, streams, launched_by, spans_of_lane),
        streams=in_order,
        stream_gap_ns=launches.stream_gaps(activities, in_order),
        events=events,
        event_ns=launches.event_latency(activities, events),
        blocking=blocking,
        blocking_ns=launches.return_latency(activities, calls, blocking),
        queue=queue,
        launch_ns=launches.launch_latency(activities, calls, in_order, events),
        boundaries=boundaries,
        begins_ns=window.start_ns if window.start_ns < activities.start_ns[boundaries[0]] else None,
        last=np.array([members[-1] for members in in_window if len(members)], np.int64),
        ends_when_asked=np.empty(0, np.int64),
    )


def _device_work(
    trace: TraceColumns,
    activities: Activities,
    steps: HostSteps,
    streams: Streams,
    launched_by: IntColumn,
    spans_of_lane: dict[int, HostSpans],
) -> DeviceWork:
    launched = activities.launch_row != NONE
    call = np.full(len(activities), NONE, np.int64)
    in_order, _ = calls_in_order(activities)
    call[in_order] = np.arange(len(in_order))
    history = np.zeros(len(activities), np.bool_)
    for members in streams.members:
        first = int(np.argmax(launched[members])) if launched[members].any() else len(members)
        history[members[:first]] = True
    place = np.where(launched, steps.position_of(activities.launch_ns), NONE)
    return DeviceWork(
        start_ns=activities.start_ns,
        end_ns=activities.end_ns,
        work=activities.work,
        step=np.where(place != NONE, steps.index[place], NONE),
        name_hash=hash_names(trace)[trace.name[activities.row]] * 31 + trace.num_blocks(activities.row),
        span=_spans_of(activities, spans_of_lane),
        launched_by=launched_by,
        is_history=history,
        call=call,
    )


def _spans_of(activities: Activities, spans_of_lane: dict[int, HostSpans]) -> IntColumn:
    """Checkpoint or data-loading span in which each activity was launched, as a column of HOST_WORK, or NONE."""
    span = np.full(len(activities), NONE, np.int8)
    for lane, spans in spans_of_lane.items():
        here = np.flatnonzero(activities.launch_lane == lane)
        for cause in (Cause.DATA_LOADING, Cause.CHECKPOINT):
            cover = spans.annotated[TimeCategory(cause)]
            span[here[contains(cover, activities.launch_ns[here])]] = HOST_COLUMN[cause]
    return span


_STREAM_WAITS = re.compile(r"^Stream Wait Event$", re.IGNORECASE)
_STREAM_SYNC = re.compile(r"^Stream Sync", re.IGNORECASE)
_EVENT_SYNC = re.compile(r"^Event Sync", re.IGNORECASE)


def _recorded_waits(trace: TraceColumns, activities: Activities) -> tuple[Edges, Rows]:
    """Recorded waits between streams, without those that the trace refutes (target began before source ended).

    Returns:
        Edges from activities to the first one of the waiting stream launched after the wait call; and the rows of all
        wait calls that a record explains, for which nothing is inferred.
    """
    waits = trace.waits
    selected = trace.named(waits.row, _STREAM_WAITS.search)
    calls = _calls_of(trace, trace.correlation[waits.row[selected]])
    recorded = _calls_of(trace, waits.record[selected])
    source_stream = waits.stream[selected]
    target_stream = _streams(trace)[trace.lane[waits.row[selected]]]
    known = (calls != NONE) & (recorded != NONE)
    source = _launched(activities, activities.stream, source_stream[known], trace.start_ns[recorded[known]])
    target = _launched(activities, activities.stream, target_stream[known], trace.start_ns[calls[known]], is_next=True)
    both = (source != NONE) & (target != NONE)
    source, target = source[both], target[both]
    holds = activities.end_ns[source] <= activities.start_ns[target]
    return Edges(source[holds], target[holds]), calls[known]


def _recorded_blocking(
    trace: TraceColumns, activities: Activities, calls: launches.ObservedCalls
) -> tuple[Edges, Rows]:
    """Edges from activities to the synchronize calls that wait for them, as recorded; and all calls with a record.

    Calls that wait for the whole device need no record: their name says so.
    """
    rows = trace.rows_named(lambda name: _STREAM_SYNC.search(name) or _EVENT_SYNC.search(name), Category.SYNC_RECORD)
    synchronize = np.flatnonzero(calls.blocks)
    place = last_row_of_id(trace.correlation[calls.row[synchronize]], synchronize, trace.correlation[rows])
    rows, place = rows[place != NONE], place[place != NONE]
    of_stream = trace.named(rows, _STREAM_SYNC.search)
    stream = _streams(trace)[trace.lane[rows]]
    until = calls.start_ns[place].copy()
    known = of_stream.copy()
    for at in np.flatnonzero(~of_stream).tolist():
        of_event = np.flatnonzero(trace.waits.row == rows[at])
        recorded = _calls_of(trace, trace.waits.record[of_event])
        if len(recorded) and recorded[0] != NONE:
            stream[at], until[at], known[at] = trace.waits.stream[of_event[0]], trace.start_ns[recorded[0]], True
    place = place[known]
    source = _launched(activities, activities.stream, stream[known], until[known])
    ended = (source != NONE) & (activities.end_ns[source] <= calls.end_ns[place])
    return Edges(source[ended], place[ended]), place


def _calls_of(trace: TraceColumns, correlation: npt.NDArray[np.signedinteger]) -> Rows:
    """Runtime call with each correlation id, or NONE."""
    rows = trace.rows_of(Category.RUNTIME)
    return last_row_of_id(trace.correlation[rows], rows, correlation)


def _streams(trace: TraceColumns) -> Nanoseconds:
    return np.array([lane.thread for lane in trace.lanes], np.int64)


def _launched(
    activities: Activities, queues: IntColumn, wanted: IntColumn, time_ns: Nanoseconds, *, is_next: bool = False
) -> Rows:
    """Last activity launched on each wanted queue (stream or thread) before each time, or the first from then on.

    `queues` has the queue of each activity; `wanted` and `time_ns` are parallel, as is the result, NONE without one.
    """
    found = np.full(len(wanted), NONE, np.intp)
    linked = activities.launch_row != NONE
    for queue in distinct(wanted).tolist():
        here = np.flatnonzero(wanted == queue)
        members = np.flatnonzero((queues == queue) & linked)
        members = members[np.argsort(activities.launch_ns[members], kind="stable")]
        place = np.searchsorted(activities.launch_ns[members], time_ns[here]) - (not is_next)
        inside = (place >= 0) & (place < len(members))
        found[here[inside]] = members[place[inside]]
    return found


MAX_PENDING_LAUNCHES = 1026
"""Launches that can be pending on a device: the next one returns only when one of them starts. Measured on H100 with
CUDA 13: 1,023 to 1,025 at every launch that took long."""

PENDING_SLACK = 4
BLOCKED_NS = 20_000
"""Duration from which a synchronize call must have waited for something."""

RETURNS_WITHIN_NS = 100_000
"""Longest time from the end of the awaited work to the return of the blocked call."""

_WAIT_EVENT = re.compile(r"StreamWaitEvent")
_RECORD_EVENT = re.compile(r"EventRecord")
_WHOLE_DEVICE = re.compile(r"(Device|Ctx|Thread)Synchronize")
_ONE_STREAM = re.compile(r"StreamSynchronize")


class Streams(NamedTuple):
    """Device activities by stream, for the dependency graph.

    Attributes:
        members: indices of each stream's activities, by start.
        number: by activity, the index of its stream in `members`.
        launch_order: rank of each activity by launch; those without a launch first.
    """

    members: list[Rows]
    number: IntColumn
    launch_order: IntColumn


def read_streams(activities: Activities) -> Streams:
    """Group a rank's device activities by stream, for the dependency graph."""
    members: list[Rows] = []
    number = np.zeros(len(activities), np.int64)
    for stream in distinct(activities.stream).tolist():
        selected = np.flatnonzero(activities.stream == stream)
        number[selected] = len(members)
        members.append(selected)
    order = np.empty(len(activities), np.int64)
    order[np.argsort(activities.launch_ns, kind="stable")] = np.arange(len(activities))  # ties by start
    return Streams(members, number, order)


def _stream_edges(streams: Streams) -> Edges:
    """Edges from each activity to the next one on its stream."""
    return Edges.joined([Edges(selected[:-1], selected[1:]) for selected in streams.members] or [Edges.none()])


def event_edges(trace: TraceColumns, activities: Activities, streams: Streams) -> Edges:
    """Graph edges of waits between streams, recorded where possible and else inferred.

    A communication kernel waits for what its thread launched before it on its current stream. Any other activity
    launched after a wait call waits, on each other stream, for the last activity that had ended when it began.
    """
    recorded, explained = _recorded_waits(trace, activities)
    launched = np.flatnonzero(activities.launch_row != NONE)
    launched = launched[np.argsort(streams.launch_order[launched], kind="stable")]
    if not len(launched):
        return Edges.none()
    found = [recorded]
    waiting = launched[_called_for(trace, activities, launched, explained)]
    for number in range(len(streams.members)):
        selected = waiting[streams.number[waiting] != number]
        found.append(Edges(_last_ended(activities, streams, number, selected), selected).known())
    for lane in distinct(activities.launch_lane[launched]).tolist():
        inferred = _current_stream(activities, streams, launched[activities.launch_lane[launched] == lane])
        found.append(inferred.only(~np.isin(inferred.target, recorded.target)))
    edges = Edges.joined(found)
    pairs = distinct(edges.source.astype(np.int64) * len(activities) + edges.target)
    return Edges(*np.divmod(pairs, len(activities)))


def _called_for(trace: TraceColumns, activities: Activities, launched: Rows, explained: Rows) -> Mask:
    """Which launches (no communication) are the first after a wait call that is neither NCCL's own nor recorded.

    The wait call may come from another thread: the training loop waits, then autograd's thread launches. NCCL itself
    records an event and lets a stream of its own wait for it after each launch.
    """
    lanes = distinct(activities.launch_lane[launched]).tolist()
    waits, records = (
        on_lanes(trace, trace.rows_named(pattern.search, Category.RUNTIME), lanes)
        for pattern in (_WAIT_EVENT, _RECORD_EVENT)
    )
    if are_among(waits, explained).all():
        return np.zeros(len(launched), np.bool_)
    launching = activities.launch_row[launched]
    calls = np.flatnonzero(row_mask(trace, np.concatenate((waits, records, launching))))
    calls = calls[np.argsort(trace.start_ns[calls], kind="stable")]
    is_wait, is_record = row_mask(trace, waits)[calls], row_mask(trace, records)[calls]
    communicates = activities.work[launched] == Work.COMMUNICATION
    is_communication = row_mask(trace, launching[communicates])[calls]
    internal = np.zeros(len(calls), np.bool_)
    internal[2:] = is_wait[2:] & is_record[1:-1] & is_communication[:-2]
    is_other_launch = ~(is_wait | is_record | is_communication)
    internal |= row_mask(trace, explained)[calls]
    waits_so_far = np.cumsum(is_wait & ~internal)[is_other_launch]
    first_after = calls[is_other_launch][np.diff(waits_so_far, prepend=0) > 0]
    return row_mask(trace, first_after)[launching]


def _last_ended(activities: Activities, streams: Streams, number: int, waiting: Rows) -> Rows:
    """By waiting activity, the last one of a stream that was launched before it and had ended when it began."""
    members = streams.members[number]
    ended = np.maximum.accumulate(activities.end_ns[members])
    by_time = np.searchsorted(ended, activities.start_ns[waiting], side="right")
    by_launch = np.searchsorted(
        np.maximum.accumulate(streams.launch_order[members]), streams.launch_order[waiting], side="left"
    )
    place = np.minimum(by_time, by_launch) - 1
    return _take(members, place)


def _take(members: Rows, place: IntColumn) -> Rows:
    """`members[place]`, or NONE where the place is negative."""
    found: Rows = np.where(place >= 0, members[np.maximum(place, 0)], NONE)
    return found


def _current_stream(activities: Activities, streams: Streams, launched: Rows) -> Edges:
    """Edges to the communication kernels of a thread from the last activity before on the thread's current stream."""
    communicates = activities.work[launched] == Work.COMMUNICATION
    others, kernels = launched[~communicates], launched[communicates]
    place = np.searchsorted(streams.launch_order[others], streams.launch_order[kernels]) - 1
    kernels = kernels[place >= 0]
    stream = streams.number[others[place[place >= 0]]]
    source = np.full(len(kernels), NONE, np.intp)
    for number in range(len(streams.members)):
        here = stream == number
        source[here] = _last_ended(activities, streams, number, kernels[here])
    return Edges(source, kernels).known()


def blocking_edges(
    trace: TraceColumns, activities: Activities, streams: Streams, calls: launches.ObservedCalls
) -> tuple[Edges, Mask]:
    """Graph edges from device work to the calls that return once it has ended; and whether each was blocked so."""
    found = [Edges(calls.waits_for, np.arange(len(calls))).known()]
    synchronize = np.flatnonzero(calls.blocks)
    of_device = trace.named(calls.row[synchronize], _WHOLE_DEVICE.search)
    whole = synchronize[of_device]
    took_long = calls.end_ns[synchronize] - calls.start_ns[synchronize] > BLOCKED_NS
    ended_last = np.full(len(synchronize), NONE, np.intp)
    for members in streams.members:
        launched_before = (
            np.searchsorted(np.maximum.accumulate(activities.launch_ns[members]), calls.start_ns[whole]) - 1
        )
        source = _if_ended(activities, _take(members, launched_before), calls, whole)
        found.append(Edges(source, whole).known())
        other = _ended_during(activities, members, calls, synchronize)
        best_end = np.where(ended_last == NONE, np.iinfo(np.int64).min, activities.end_ns[ended_last])
        ended_last = np.where((other != NONE) & (activities.end_ns[other] > best_end), other, ended_last)
    recorded, calls_with_record = _recorded_blocking(trace, activities, calls)
    is_inferred = ~np.isin(synchronize, calls_with_record)
    waited = is_inferred & took_long & ~of_device
    at_rest = synchronize[is_inferred & ~took_long & trace.named(calls.row[synchronize], _ONE_STREAM.search)]
    # the stream that such a call waits for is unknown: the last activity that its thread launched
    last = _launched(activities, activities.launch_lane, calls.lane[at_rest], calls.start_ns[at_rest])
    found += [
        recorded,
        Edges(ended_last[waited], synchronize[waited]).known(),
        Edges(_if_ended(activities, last, calls, at_rest), at_rest).known(),
    ]
    edges = Edges.joined(found)
    blocked = np.zeros(len(calls), np.bool_)
    blocked[edges.target] = True
    return edges, blocked


def _if_ended(activities: Activities, source: Rows, calls: launches.ObservedCalls, chosen: Rows) -> Rows:
    """The activities that had ended when the call returned, else NONE."""
    return np.where((source != NONE) & (activities.end_ns[source] <= calls.end_ns[chosen]), source, NONE)


def _ended_during(activities: Activities, members: Rows, calls: launches.ObservedCalls, chosen: Rows) -> Rows:
    """Activity of a stream that ended last before each call returned, if that was during the call."""
    ended = np.maximum.accumulate(activities.end_ns[members])
    place = np.searchsorted(ended, calls.end_ns[chosen], side="right") - 1
    source = _take(members, place)
    end = activities.end_ns[source]
    fits = (end > calls.start_ns[chosen]) & (calls.end_ns[chosen] - end < RETURNS_WITHIN_NS)
    return np.where((source != NONE) & fits & (activities.launch_ns[source] < calls.start_ns[chosen]), source, NONE)


def _queue_edges(activities: Activities, calls: launches.ObservedCalls) -> tuple[Edges, Mask]:
    """Edges from started activities to launches that return only then (queue full); and which launches were held up."""
    orphans = np.flatnonzero(activities.launch_row == NONE)
    launching = np.flatnonzero(calls.first_activity != NONE)
    queued = np.concatenate((orphans, calls.first_activity[launching]))  # both in launch order
    num_orphans = len(orphans)
    blocked = np.zeros(len(calls), np.bool_)
    if not len(launching):
        return Edges.none(), blocked
    number = num_orphans + np.arange(len(launching))
    started = np.sort(activities.start_ns[queued], kind="stable")
    pending = number + 1 - np.searchsorted(started, calls.end_ns[launching], side="right")
    blocked[launching] = pending >= MAX_PENDING_LAUNCHES - PENDING_SLACK
    held = number >= MAX_PENDING_LAUNCHES
    return Edges(queued[number[held] - MAX_PENDING_LAUNCHES], launching[held]), blocked
