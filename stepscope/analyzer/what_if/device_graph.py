"""Construction of the dependency graph of a rank with a device, from its trace."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.alignment.device_calls import calls_in_order
from stepscope.analyzer.intervals import Intervals, contains
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import HostSpans
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.what_if.device_dependencies import (
    Streams,
    blocking_edges,
    event_edges,
    queue_edges,
    read_streams,
    stream_edges,
)
from stepscope.analyzer.what_if.launches import (
    ObservedCalls,
    event_latency,
    followed_calls,
    launch_latency,
    observe_calls,
    own_time,
    return_latency,
    stream_gaps,
    work_between_calls,
)
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, DeviceWork, HostCalls, RankGraph, hash_names
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

MAX_ACTIVITIES = 500_000
"""Largest number of activities of a rank for which a graph is kept; replaying more costs more than the analysis."""


def build_graph(
    trace: TraceColumns, activities: Activities, steps: HostSteps, window: Window, spans_of_lane: dict[int, HostSpans]
) -> RankGraph | None:
    """Graph of one rank; None without steps, without launches, or with more than MAX_ACTIVITIES activities."""
    if not len(steps) or len(activities) > MAX_ACTIVITIES or not np.any(activities.launch_row != NONE):
        return None
    streams = read_streams(activities)
    calls = observe_calls(trace, activities)
    in_order = stream_edges(streams)
    blocking, blocked = blocking_edges(trace, activities, streams, calls)
    queue, held_up = queue_edges(activities, calls)
    follows, follows_own = followed_calls(calls)
    opens_ns = min(int(steps.start_ns[0]), int(calls.start_ns[0]))
    work, label = work_between_calls(calls, follows, own_time(calls, held_up, blocked), opens_ns, spans_of_lane)
    launched_by = _launched_by(activities, calls)
    events = event_edges(trace, activities, streams)
    key = calls.end_ns.copy()
    launches = np.flatnonzero(calls.first_activity != NONE)
    start = activities.start_ns[calls.first_activity[launches]]
    key[launches] = np.maximum(np.minimum(key[launches], start), calls.start_ns[launches])
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
        stream_gap_ns=stream_gaps(activities, in_order),
        events=events,
        event_ns=event_latency(activities, events),
        blocking=blocking,
        blocking_ns=return_latency(activities, calls, blocking),
        queue=queue,
        launch_ns=launch_latency(activities, calls, in_order, events),
        boundaries=_boundaries(activities, window),
        last=_last_of_window(activities, streams, window),
        ends_when_asked=np.empty(0, np.int64),
    )


def _launched_by(activities: Activities, calls: ObservedCalls) -> IntColumn:
    """Host call of each activity, or NONE; the nodes of a CUDA graph share one."""
    launches = np.flatnonzero(calls.first_activity != NONE)
    order = launches[np.argsort(calls.row[launches], kind="stable")]
    place = np.searchsorted(calls.row[order], activities.launch_row)
    return np.where(activities.launch_row != NONE, order[np.minimum(place, len(order) - 1)], NONE)


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
        covers: list[tuple[Cause, Intervals]] = [
            (Cause.DATA_LOADING, spans.annotated[TimeCategory.DATA_LOADING]),
            (Cause.CHECKPOINT, spans.annotated[TimeCategory.CHECKPOINT]),
        ]
        for cause, cover in covers:
            span[here[contains(cover, activities.launch_ns[here])]] = HOST_COLUMN[cause]
    return span


def _boundaries(activities: Activities, window: Window) -> IntColumn:
    """Kernel that starts at each boundary of the window."""
    kernels = activities.of(Work.COMPUTE, Work.COMMUNICATION)
    place = np.searchsorted(activities.start_ns[kernels], window.boundary_ns)
    return kernels[place]


def _last_of_window(activities: Activities, streams: Streams, window: Window) -> IntColumn:
    """Last activity of each stream that ends in the window."""
    inside = [members[activities.end_ns[members] <= window.end_ns] for members in streams.members]
    return np.array([members[-1] for members in inside if len(members)], np.int64)
