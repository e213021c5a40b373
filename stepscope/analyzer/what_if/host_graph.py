"""Dependency graph of a rank without a device, from its main thread's timeline and communication calls.

The thread itself computes, so each piece of compute is an activity that the thread starts and waits for. Compute is
split where an outermost operator begins, so that ranks can be compared operator by operator.

A communication starts where the thread calls it and runs concurrently until the thread needs it: at its end (for
sends and receives: when the thread asked for it) if the thread was idle then; else, if it ended behind compute, at the
thread's next wait or the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.collectives.calls import P2P_KINDS, Call
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.ledger.host_ledger import computing_rows
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.ledger.steps import Window
from stepscope.analyzer.what_if import rank_graph
from stepscope.core.vocabulary import CATEGORY_CODE, Cause, TimeCategory
from stepscope.trace.columns import NONE, IntColumn, Rows, TraceColumns
from stepscope.trace.rows import outermost, sorted_order

MAX_PIECES = 500_000
"""Largest number of pieces of a rank, as of a device's activities; nothing is kept above it."""

COMPUTES = CATEGORY_CODE[TimeCategory.COMPUTE_OTHER]


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """Window of one rank's main thread by piece, without holes, on its own clock: input of a replay.

    Attributes:
        category: code of its time category.
        name_hash: hash of the operator that computes, equal on every rank; else 0.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    category: IntColumn
    name_hash: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)

    def intervals_of(self, category: TimeCategory) -> Intervals:
        """The pieces in a time category."""
        keep = self.category == CATEGORY_CODE[category]
        return Intervals(self.start_ns[keep], self.end_ns[keep])


def read_timeline(trace: TraceColumns, lane: int, segments: Segments) -> HostTimeline | None:
    """Timeline of the main thread for a replay, from its time categories; None if it has over MAX_PIECES pieces."""
    rows = outermost(trace, computing_rows(trace, lane))
    opens = trace.start_ns[rows]
    place = np.searchsorted(segments.start_ns, opens, side="right") - 1
    inside = (place >= 0) & (segments.category[place] == COMPUTES)
    inside &= (opens > segments.start_ns[place]) & (opens < segments.end_ns[place])
    start = np.concatenate((segments.start_ns, opens[inside]))
    if not len(segments) or len(start) > MAX_PIECES:
        return None
    category = np.concatenate((segments.category, np.full(int(inside.sum()), COMPUTES, np.int8)))
    order = np.argsort(start, kind="stable")
    start, category = start[order], category[order]
    under = np.searchsorted(opens, start, side="right") - 1
    hashes = rank_graph.hash_names(trace)[trace.name[rows[under]]] if len(rows) else 0
    name_hash = np.where((category == COMPUTES) & (under >= 0), hashes, 0)
    return HostTimeline(start, np.concatenate((start[1:], segments.end_ns[-1:])), category, name_hash)


_SPANS = (
    (Cause.PROFILER, TimeCategory.PROFILER),
    (Cause.CHECKPOINT, TimeCategory.CHECKPOINT),
    (Cause.DATA_LOADING, TimeCategory.DATA_LOADING),
)
_IDLE = [CATEGORY_CODE[category] for category in (TimeCategory.COMMUNICATION_UNSPLIT, TimeCategory.HOST_BOUND)]
_IN_SPAN = [CATEGORY_CODE[category] for category in (TimeCategory.CHECKPOINT, TimeCategory.DATA_LOADING)]

FOUND_DONE_NS = 200_000
"""Longest wait of a thread for something that is done already, also on a busy machine."""

_RETURN, _WAIT, _MARK, _ISSUE, _COMPUTE = range(5)
"""Kinds of points on the thread's timeline; at the same instant in this order."""


@dataclass(frozen=True, slots=True)
class _Points:
    """Points where the thread starts or waits for an activity (`item`), in time order."""

    time_ns: Nanoseconds
    kind: IntColumn
    item: IntColumn

    def __len__(self) -> int:
        return len(self.time_ns)

    def of(self, kind: int) -> Rows:
        """Indices of the points of a kind."""
        return np.flatnonzero(self.kind == kind)


def host_graph(timeline: HostTimeline, window: Window, calls: Sequence[Call]) -> rank_graph.RankGraph:
    """Dependency graph of a rank without a device, from its timeline, steps and calls (in issue order) on one clock."""
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
    waits = _waits(points, activities)
    marks = points.item[points.of(_MARK)]
    return rank_graph.RankGraph(
        host=rank_graph.HostCalls(
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
        streams=rank_graph.Edges.none(),
        stream_gap_ns=np.empty(0, np.int64),
        events=rank_graph.Edges.none(),
        event_ns=0,
        blocking=waits,
        blocking_ns=np.zeros(len(waits), np.int64),
        queue=rank_graph.Edges.none(),
        launch_ns=0,
        boundaries=marks[:-1],
        last=marks[-1:],
        ends_when_asked=_end_when_asked(points, activities, calls),
    )


def _activities(timeline: HostTimeline, window: Window, calls: Sequence[Call]) -> rank_graph.DeviceWork:
    """Pieces of compute, marks without duration where steps begin and the window ends, and communications; by start."""
    computes = np.flatnonzero(timeline.category == COMPUTES)
    marks = window.step_bounds_ns
    start = np.concatenate((timeline.start_ns[computes], marks, np.array([c.start_ns for c in calls], np.int64)))
    end = np.concatenate((timeline.end_ns[computes], marks, np.array([c.end_ns for c in calls], np.int64)))
    work = np.repeat(
        [int(Work.COMPUTE), int(Work.COMPUTE), int(Work.COMMUNICATION)], [len(computes), len(marks), len(calls)]
    )
    name_hash = np.concatenate((timeline.name_hash[computes], np.zeros(len(marks) + len(calls), np.int64)))
    is_mark = np.repeat([False, True, False], [len(computes), len(marks), len(calls)])
    call = np.concatenate((np.full(len(computes) + len(marks), NONE), np.arange(len(calls))))
    place = np.searchsorted(window.boundary_ns, start, side="right") - 1
    step = np.where((place >= 0) & (start < window.end_ns) & ~is_mark, window.index[place], NONE)
    order = sorted_order(start, work)
    return rank_graph.DeviceWork(
        start_ns=start[order],
        end_ns=end[order],
        work=work[order].astype(np.int8),
        step=step[order],
        name_hash=name_hash[order],
        span=np.full(len(order), NONE, np.int8),
        launched_by=np.full(len(order), NONE, np.int64),
        is_history=(start[order] < window.start_ns) | (start[order] > window.end_ns),
        call=call[order],
    )


def _needed_ns(activities: rank_graph.DeviceWork, calls: Sequence[Call]) -> Nanoseconds:
    """When the thread needed each activity: at its end, or when it asked for one that had ended."""
    needed = activities.end_ns.copy()
    communicates = np.flatnonzero(activities.call != NONE)
    asked = [calls[place].asked_ns for place in activities.call[communicates].tolist()]
    late = np.array([time is not None for time in asked], np.bool_)
    needed[communicates[late]] = [time for time in asked if time is not None]
    return needed


def _points(timeline: HostTimeline, activities: rank_graph.DeviceWork, needed_ns: Nanoseconds) -> _Points:
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
    order = sorted_order(time, kind)
    return _Points(time[order], kind[order], item[order])


def _is_idle_at_end(timeline: HostTimeline, start_ns: Nanoseconds, end_ns: Nanoseconds) -> rank_graph.Mask:
    """Whether the thread waited when each communication ended: idle, or in a span (a checkpoint) that had issued it."""
    last = np.searchsorted(timeline.start_ns, end_ns, side="left") - 1
    inside = (last >= 0) & (end_ns <= timeline.end_ns[-1])
    category = timeline.category[last]
    asked_here = np.isin(category, _IN_SPAN) & (start_ns >= timeline.start_ns[last])
    waited: rank_graph.Mask = inside & (np.isin(category, _IDLE) | asked_here)
    return waited


def _waits(points: _Points, activities: rank_graph.DeviceWork) -> rank_graph.Edges:
    """Edges from the end of an activity to the point of the thread that waits for it."""
    returns, waits, marks = points.of(_RETURN), points.of(_WAIT), points.of(_MARK)
    seen = points.item[waits]
    behind = np.setdiff1d(np.flatnonzero(activities.work == Work.COMMUNICATION), seen)
    behind = behind[~activities.is_history[behind]]
    needs = np.sort(np.concatenate((waits, marks)))
    place = np.searchsorted(points.time_ns[needs], activities.end_ns[behind], side="left")
    found = place < len(needs)
    return rank_graph.Edges(
        np.concatenate((points.item[returns], seen, behind[found])),
        np.concatenate((returns, waits, needs[place[found]])),
    )


def _end_when_asked(points: _Points, activities: rank_graph.DeviceWork, calls: Sequence[Call]) -> IntColumn:
    """Sends and receives that were done when the thread asked for them, so that their duration is unknown."""
    waits = points.of(_WAIT)
    waited = points.time_ns[waits] - points.time_ns[np.maximum(waits - 1, 0)]
    found = points.item[waits[waited < FOUND_DONE_NS]]
    is_p2p = np.array([call.kind in P2P_KINDS for call in calls] + [False])
    result: IntColumn = found[is_p2p[activities.call[found]]]
    return result


def _work(timeline: HostTimeline, points: _Points) -> rank_graph.Counts:
    """Host time since the previous point by kind; none while the thread computed or waited."""
    work = np.zeros((len(points), len(rank_graph.HOST_WORK)), np.int64)
    after = np.concatenate((points.time_ns[:1], points.time_ns[:-1]))
    until = points.time_ns.copy()
    waits, returns = points.of(_WAIT), points.of(_RETURN)
    until[waits] = np.maximum(after[waits], _waiting_since(timeline, points.time_ns[waits]))
    until[returns] = after[returns]
    for cause, category in _SPANS:
        work[:, rank_graph.HOST_COLUMN[cause]] = covered_time(after, until, timeline.intervals_of(category))
    work[:, rank_graph.HOST_COLUMN[Cause.HOST_BOUND]] = until - after - work.sum(axis=1)
    return work


def _waiting_since(timeline: HostTimeline, time_ns: Nanoseconds) -> Nanoseconds:
    """Start of the thread's idle time (or of the span that waits) before each time."""
    is_idle = np.isin(timeline.category, _IDLE)
    begins = ~is_idle | ~np.concatenate(([False], is_idle[:-1]))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(timeline)), 0))
    return timeline.start_ns[first[np.searchsorted(timeline.start_ns, time_ns, side="left") - 1]]


def _labels(timeline: HostTimeline, time_ns: Nanoseconds) -> IntColumn:
    """Span of each point; a wait at the end of a span belongs to it."""
    label = np.full(len(time_ns), rank_graph.HOST_COLUMN[Cause.HOST_BOUND], np.int8)
    category = timeline.category[np.maximum(np.searchsorted(timeline.start_ns, time_ns, side="left") - 1, 0)]
    for cause, code in _SPANS:
        label[category == CATEGORY_CODE[code]] = rank_graph.HOST_COLUMN[cause]
    return label
