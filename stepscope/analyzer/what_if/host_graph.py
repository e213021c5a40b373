"""Graph of a rank without a device: its main thread's timeline and communication calls.

Host timeline: What computes is cut where an outermost operator begins, so that ranks can be compared operator by
operator.

Host graph: There are no launches and no streams: the thread computes itself, so each piece of compute is an activity
that the thread starts and waits for. A communication starts where the thread calls for it and goes on beside the
thread, until the thread needs it: at its end (a send's or receive's: when it was asked for), where the thread was
idle then; else (it ended behind compute) where the thread next waited for one, or where the step ended.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.calls import P2P_KINDS, Call
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.ledger.host_ledger import computing_rows
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.ledger.steps import Window
from stepscope.analyzer.rows import order_of
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, HOST_WORK, DeviceWork, Edges, HostCalls, RankGraph
from stepscope.core.vocabulary.categories import CATEGORY_CODE, TimeCategory
from stepscope.core.vocabulary.causes import Cause
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

MOST_PIECES = 500_000
"""Pieces of a rank above which none are kept (as activities of a device)."""

COMPUTES = CATEGORY_CODE[TimeCategory.COMPUTE_OTHER]


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """The window of one rank's main thread, without holes, on the rank's own clock.

    Attributes:
        start_ns, end_ns: by piece.
        heading: code of the heading it is booked under.
        word: of what computes, a number that is the same for the same operator on every rank; else 0.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    heading: IntColumn
    word: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)

    def intervals_of(self, heading: TimeCategory) -> Intervals:
        """The pieces booked under a heading."""
        keep = self.heading == CATEGORY_CODE[heading]
        return Intervals(self.start_ns[keep], self.end_ns[keep])


def read_timeline(trace: TraceColumns, lane: int, segments: Segments) -> HostTimeline | None:
    """Cut the booked window up; None when it has too many pieces.

    Args:
        trace: one rank's events.
        lane: its main thread.
        segments: that thread's window, as booked.
    """
    rows = _outermost(trace, computing_rows(trace, lane))
    opens = trace.start_ns[rows]
    place = np.searchsorted(segments.start_ns, opens, side="right") - 1
    inside = (place >= 0) & (segments.category[place] == COMPUTES)
    inside &= (opens > segments.start_ns[place]) & (opens < segments.end_ns[place])
    start = np.concatenate((segments.start_ns, opens[inside]))
    if not len(segments) or len(start) > MOST_PIECES:
        return None
    heading = np.concatenate((segments.category, np.full(int(inside.sum()), COMPUTES, np.int8)))
    order = np.argsort(start, kind="stable")
    start, heading = start[order], heading[order]
    names = np.array([zlib.crc32(name.encode(errors="replace")) for name in trace.names] or [0], np.int64)
    under = np.searchsorted(opens, start, side="right") - 1
    word = np.where((heading == COMPUTES) & (under >= 0), names[trace.name[rows[under]]] if len(rows) else 0, 0)
    return HostTimeline(start, np.concatenate((start[1:], segments.end_ns[-1:])), heading, word)


def _outermost(trace: TraceColumns, rows: IntColumn) -> IntColumn:
    """Those that lie in no other, by start."""
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(trace.end_ns[rows])
    return rows[np.concatenate(([True], trace.start_ns[rows[1:]] >= reach[:-1]))]


_SPANS = (
    (Cause.PROFILER, TimeCategory.PROFILER),
    (Cause.CHECKPOINT, TimeCategory.CHECKPOINT),
    (Cause.DATA_LOADING, TimeCategory.DATA_LOADING),
)
_IDLE = [CATEGORY_CODE[heading] for heading in (TimeCategory.COMMUNICATION_UNSPLIT, TimeCategory.HOST_BOUND)]
_IN_SPAN = [CATEGORY_CODE[heading] for heading in (TimeCategory.CHECKPOINT, TimeCategory.DATA_LOADING)]

FOUND_DONE_NS = 200_000
"""A thread that asks for what is done goes on sooner than this, also on a busy machine."""

_RETURN, _WAIT, _MARK, _ISSUE, _COMPUTE = range(5)
"""What happens at a point of the thread's time; at the same instant in this order."""


@dataclass(frozen=True, slots=True)
class _Points:
    """Where the thread starts something or waits for it, in time order.

    Attributes:
        time_ns: when it was measured.
        kind: one of the five.
        item: the activity: what is started, or what is waited for.
    """

    time_ns: Nanoseconds
    kind: IntColumn
    item: IntColumn

    def __len__(self) -> int:
        return len(self.time_ns)

    def of(self, kind: int) -> npt.NDArray[np.intp]:
        """Places of the points of a kind."""
        return np.flatnonzero(self.kind == kind)


def host_graph(timeline: HostTimeline, window: Window, calls: Sequence[Call]) -> RankGraph:
    """One rank's calls, activities and dependencies.

    Args:
        timeline: its main thread.
        window: its steps.
        calls: its communication calls, in issue order; all three on one clock.
    """
    activities = _activities(timeline, window, calls)
    points = _points(timeline, activities, _needed_ns(activities, calls))
    key = np.maximum.accumulate(points.time_ns + (points.kind == _WAIT))
    started = np.flatnonzero(points.kind >= _MARK)
    launched_by = np.full(len(activities), NONE, np.int64)
    launched_by[points.item[started]] = started
    first_activity = np.where(points.kind >= _MARK, points.item, NONE)
    start = np.where(launched_by == NONE, activities.start_ns, key[launched_by])
    device = replace(activities, start_ns=start, end_ns=np.maximum(activities.end_ns, start), launched_by=launched_by)
    label = _labels(timeline, points.time_ns)
    no_edges = Edges(np.empty(0, np.intp), np.empty(0, np.intp))
    waits = _waits(points, activities)
    marks = points.item[points.of(_MARK)]
    return RankGraph(
        host=HostCalls(
            key_ns=key,
            work_ns=_work(timeline, points),
            label=label,
            follows=np.arange(len(points)) - 1,
            follows_own=np.full(len(points), NONE, np.int64),
            first_activity=first_activity,
            opens_ns=int(window.start_ns),
            is_needed=np.ones(len(points), np.bool_),
        ),
        device=device,
        streams=no_edges,
        stream_gap_ns=np.empty(0, np.int64),
        events=no_edges,
        event_ns=0,
        blocking=waits,
        blocking_ns=np.zeros(len(waits), np.int64),
        queue=no_edges,
        launch_ns=0,
        boundaries=marks[:-1],
        last=marks[-1:],
        ends_when_asked=_end_when_asked(points, activities, calls),
    )


def _activities(timeline: HostTimeline, window: Window, calls: Sequence[Call]) -> DeviceWork:
    """Pieces of compute, marks of no length where steps begin and the window ends, and communications; by start."""
    computes = np.flatnonzero(timeline.heading == COMPUTES)
    marks = window.step_bounds_ns
    start = np.concatenate((timeline.start_ns[computes], marks, np.array([c.start_ns for c in calls], np.int64)))
    end = np.concatenate((timeline.end_ns[computes], marks, np.array([c.end_ns for c in calls], np.int64)))
    work = np.repeat(
        [int(Work.COMPUTE), int(Work.COMPUTE), int(Work.COMMUNICATION)], [len(computes), len(marks), len(calls)]
    )
    word = np.concatenate((timeline.word[computes], np.zeros(len(marks) + len(calls), np.int64)))
    is_mark = np.repeat([False, True, False], [len(computes), len(marks), len(calls)])
    call = np.concatenate((np.full(len(computes) + len(marks), NONE), np.arange(len(calls))))
    place = np.searchsorted(window.boundary_ns, start, side="right") - 1
    step = np.where((place >= 0) & (start < window.end_ns) & ~is_mark, window.index[place], NONE)
    order = order_of(start, work)
    return DeviceWork(
        start_ns=start[order],
        end_ns=end[order],
        work=work[order].astype(np.int8),
        step=step[order],
        word=word[order],
        inside=np.full(len(order), NONE, np.int8),
        launched_by=np.full(len(order), NONE, np.int64),
        is_history=(start[order] < window.start_ns) | (start[order] > window.end_ns),
        call=call[order],
    )


def _needed_ns(activities: DeviceWork, calls: Sequence[Call]) -> Nanoseconds:
    """When the thread needed each activity: at its end, or when it asked for what had ended."""
    needed = activities.end_ns.copy()
    communicates = np.flatnonzero(activities.call != NONE)
    asked = [calls[place].asked_ns for place in activities.call[communicates].tolist()]
    late = np.array([time is not None for time in asked], np.bool_)
    needed[communicates[late]] = [time for time in asked if time is not None]
    return needed


def _points(timeline: HostTimeline, activities: DeviceWork, needed_ns: Nanoseconds) -> _Points:
    known = np.flatnonzero(~activities.is_history)
    communicates = activities.work == Work.COMMUNICATION
    computes = known[~communicates[known] & (activities.step[known] != NONE)]
    marks = known[~communicates[known] & (activities.step[known] == NONE)]
    issued = known[communicates[known]]
    awaited = np.flatnonzero(communicates)
    awaited = awaited[_is_idle_at_end(timeline, activities.start_ns[awaited], needed_ns[awaited])]
    parts = (
        (_RETURN, computes, activities.end_ns),
        (_WAIT, awaited, needed_ns),
        (_MARK, marks, activities.start_ns),
        (_ISSUE, issued, activities.start_ns),
        (_COMPUTE, computes, activities.start_ns),
    )
    time = np.concatenate([when[items] for _, items, when in parts])
    kind = np.repeat([kind for kind, _, _ in parts], [len(items) for _, items, _ in parts])
    item = np.concatenate([items for _, items, _ in parts])
    order = order_of(time, kind)
    return _Points(time[order], kind[order], item[order])


def _is_idle_at_end(timeline: HostTimeline, start_ns: Nanoseconds, end_ns: Nanoseconds) -> npt.NDArray[np.bool_]:
    """Whether the thread waited when each communication ended: it did nothing else, or what it did (a checkpoint) had
    asked for it."""
    last = np.searchsorted(timeline.start_ns, end_ns, side="left") - 1
    inside = (last >= 0) & (end_ns <= timeline.end_ns[-1])
    heading = timeline.heading[last]
    asked_here = np.isin(heading, _IN_SPAN) & (start_ns >= timeline.start_ns[last])
    waited: npt.NDArray[np.bool_] = inside & (np.isin(heading, _IDLE) | asked_here)
    return waited


def _waits(points: _Points, activities: DeviceWork) -> Edges:
    """What ends -> the point of the thread that comes no earlier."""
    returns, waits, marks = points.of(_RETURN), points.of(_WAIT), points.of(_MARK)
    seen = points.item[waits]
    behind = np.setdiff1d(np.flatnonzero(activities.work == Work.COMMUNICATION), seen)
    behind = behind[~activities.is_history[behind]]
    needs = np.sort(np.concatenate((waits, marks)))
    place = np.searchsorted(points.time_ns[needs], activities.end_ns[behind], side="left")
    found = place < len(needs)
    return Edges(
        np.concatenate((points.item[returns], seen, behind[found])),
        np.concatenate((returns, waits, needs[place[found]])),
    )


def _end_when_asked(points: _Points, activities: DeviceWork, calls: Sequence[Call]) -> IntColumn:
    """Sends and receives that the thread found done: how long they took is not known."""
    waits = points.of(_WAIT)
    waited = points.time_ns[waits] - points.time_ns[np.maximum(waits - 1, 0)]
    found = points.item[waits[waited < FOUND_DONE_NS]]
    is_p2p = np.array([call.kind in P2P_KINDS for call in calls] + [False])
    result: IntColumn = found[is_p2p[activities.call[found]]]
    return result


def _work(timeline: HostTimeline, points: _Points) -> npt.NDArray[np.int64]:
    """Host time since the point before, by what it was; none while the thread computed or waited."""
    work = np.zeros((len(points), len(HOST_WORK)), np.int64)
    after = np.concatenate((points.time_ns[:1], points.time_ns[:-1]))
    until = points.time_ns.copy()
    waits, returns = points.of(_WAIT), points.of(_RETURN)
    until[waits] = np.maximum(after[waits], _waiting_since(timeline, points.time_ns[waits]))
    until[returns] = after[returns]
    for cause, heading in _SPANS:
        work[:, HOST_COLUMN[cause]] = covered_time(after, until, timeline.intervals_of(heading))
    work[:, HOST_COLUMN[Cause.HOST_BOUND]] = until - after - work.sum(axis=1)
    return work


def _waiting_since(timeline: HostTimeline, time_ns: Nanoseconds) -> Nanoseconds:
    """Since when the thread has done nothing else (or stood in the span that waits)."""
    is_idle = np.isin(timeline.heading, _IDLE)
    begins = ~is_idle | ~np.concatenate(([False], is_idle[:-1]))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(timeline)), 0))
    return timeline.start_ns[first[np.searchsorted(timeline.start_ns, time_ns, side="left") - 1]]


def _labels(timeline: HostTimeline, time_ns: Nanoseconds) -> IntColumn:
    """The span that each point stands in: a wait at a span's end is the span's."""
    label = np.full(len(time_ns), HOST_COLUMN[Cause.HOST_BOUND], np.int8)
    heading = timeline.heading[np.maximum(np.searchsorted(timeline.start_ns, time_ns, side="left") - 1, 0)]
    for cause, code in _SPANS:
        label[heading == CATEGORY_CODE[code]] = HOST_COLUMN[cause]
    return label
