"""Which waits does the trace itself tell? Synchronisation records (torch's `enable_cuda_sync_events`), where they are.

A stream that waits for an event waits for all that was queued on the event's stream before the event was recorded
there; what was queued on it before the wait was called does not wait. A host that waits for a stream waits for all that
was queued on it before it called. Records join their calls by correlation, never by the event's handle: that is used
again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.launches import last_row_of_id
from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.what_if.observed_calls import ObservedCalls
from stepscope.analyzer.what_if.rank_graph import Edges
from stepscope.trace.columns import NONE, Category, TraceColumns

_STREAM_WAITS = re.compile(r"^Stream Wait Event$", re.IGNORECASE)
_STREAM_SYNC = re.compile(r"^Stream Sync", re.IGNORECASE)
_EVENT_SYNC = re.compile(r"^Event Sync", re.IGNORECASE)

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RecordedWaits:
    """What the records say, as far as the trace holds both ends.

    Attributes:
        edges: activity -> the first activity of the waiting stream that was launched after the wait was called.
        wait_rows: the rows of all wait calls that a record explains; nothing has to be inferred for these.
    """

    edges: Edges
    wait_rows: Rows


def recorded_waits(trace: TraceColumns, activities: Activities) -> RecordedWaits:
    """The waits between streams. What began before that had ended did not wait for it: an edge the trace refutes."""
    waits = trace.waits
    mine = trace.named(waits.row, _STREAM_WAITS.search)
    calls = _calls_of(trace, trace.correlation[waits.row[mine]])
    recorded = _calls_of(trace, waits.record[mine])
    source_stream = waits.stream[mine]
    target_stream = _streams(trace)[trace.lane[waits.row[mine]]]
    known = (calls != NONE) & (recorded != NONE)
    source = _last_launched(activities, source_stream[known], trace.start_ns[recorded[known]])
    target = _next_launched(activities, target_stream[known], trace.start_ns[calls[known]])
    both = (source != NONE) & (target != NONE)
    source, target = source[both], target[both]
    holds = activities.end_ns[source] <= activities.start_ns[target]
    return RecordedWaits(Edges(source[holds], target[holds]), calls[known])


def recorded_blocking(trace: TraceColumns, activities: Activities, calls: ObservedCalls) -> tuple[Edges, Rows]:
    """Activity -> the synchronize call that waits for it, as recorded; and the places of all calls with a record.

    Calls that wait for the whole device need none: their names tell.
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
        told = np.flatnonzero(trace.waits.row == rows[at])
        recorded = _calls_of(trace, trace.waits.record[told])
        if len(recorded) and recorded[0] != NONE:
            stream[at], until[at], known[at] = trace.waits.stream[told[0]], trace.start_ns[recorded[0]], True
    place = place[known]
    source = _last_launched(activities, stream[known], until[known])
    ended = (source != NONE) & (activities.end_ns[source] <= calls.end_ns[place])
    return Edges(source[ended], place[ended]), place


def _calls_of(trace: TraceColumns, correlation: npt.NDArray[np.signedinteger]) -> Rows:
    """The runtime call with each correlation, or NONE."""
    rows = trace.rows_of(Category.RUNTIME)
    return last_row_of_id(trace.correlation[rows], rows, correlation)


def _streams(trace: TraceColumns) -> npt.NDArray[np.int64]:
    return np.array([lane.thread for lane in trace.lanes], np.int64)


def _last_launched(
    activities: Activities, streams: npt.NDArray[np.signedinteger], time_ns: npt.NDArray[np.int64]
) -> Rows:
    """The last activity launched on each stream before each time, or NONE."""
    return _launched(activities, streams, time_ns, shift=-1)


def _next_launched(
    activities: Activities, streams: npt.NDArray[np.signedinteger], time_ns: npt.NDArray[np.int64]
) -> Rows:
    """The first activity launched on each stream from each time on, or NONE."""
    return _launched(activities, streams, time_ns, shift=0)


def _launched(
    activities: Activities,
    streams: npt.NDArray[np.signedinteger],
    time_ns: npt.NDArray[np.int64],
    *,
    shift: int,
) -> Rows:
    found = np.full(len(streams), NONE, np.intp)
    linked = activities.launch_row != NONE
    for stream in np.unique(streams).tolist():
        here = np.flatnonzero(streams == stream)
        members = np.flatnonzero((activities.stream == stream) & linked)
        members = members[np.argsort(activities.launch_ns[members], kind="stable")]
        place = np.searchsorted(activities.launch_ns[members], time_ns[here]) + shift
        inside = (place >= 0) & (place < len(members))
        found[here[inside]] = members[place[inside]]
    return found
