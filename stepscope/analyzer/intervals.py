"""Sets of time spans in exact int64 arithmetic: union, intersection, coverage; all O(n log n) and vectorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import IntColumn, TraceColumns

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Sorted, disjoint, non-empty half-open spans [start, end), one entry a span."""

    start: Nanoseconds
    end: Nanoseconds

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Covered time."""
        return int((self.end - self.start).sum())


def empty() -> Intervals:
    """An empty set of time spans."""
    return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def single(start: int, end: int) -> Intervals:
    """Analyzer, sets of time spans: one span, or none if it is empty."""
    return Intervals(np.array([start], np.int64), np.array([end], np.int64)) if end > start else empty()


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """Union of time spans: what at least one covers; spans in any order, empty ones ignored."""
    start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return empty()
    if np.any(start[1:] < start[:-1]):
        # operators follow the one that called them: a span inside the previous one adds nothing
        adds = np.flatnonzero(np.concatenate(([True], (start[1:] < start[:-1]) | (end[1:] > end[:-1]))))
        adds = adds[np.argsort(start[adds], kind="stable")]
        start, end = start[adds], end[adds]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(start[opens], reach[closes])


def time_of(trace: TraceColumns, rows: IntColumn) -> Intervals:
    """Time that at least one of these trace rows covers."""
    return union(trace.start_ns[rows], trace.end_ns[rows])


def join(*sets: Intervals) -> Intervals:
    """Union of sets of time spans."""
    if not sets:
        return empty()
    return union(np.concatenate([one.start for one in sets]), np.concatenate([one.end for one in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Analyzer, sets of time spans: intersection of two."""
    if not len(a) or not len(b):
        return empty()
    _, start, end = pieces(a.start, a.end, b)
    return Intervals(start, end)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Difference of two sets of time spans: what `a` covers and `b` does not."""
    if not len(a) or not len(b):
        return a
    low, high = min(a.start[0], b.start[0]) - 1, max(a.end[-1], b.end[-1]) + 1
    gaps = Intervals(np.concatenate(([low], b.end)), np.concatenate((b.start, [high])))
    return intersect(a, gaps)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Part of a set of time spans inside [start, end)."""
    return intersect(a, single(start, end))


def pieces(
    start: Nanoseconds, end: Nanoseconds, cover: Intervals
) -> tuple[npt.NDArray[np.intp], Nanoseconds, Nanoseconds]:
    """The parts of each span under `cover`: (index of the span, start, end), in the spans' order.

    The spans may overlap and be in any order.
    """
    first = np.searchsorted(cover.end, start, side="right")
    last = np.maximum(np.searchsorted(cover.start, end, side="left"), first)
    count = last - first
    span = np.repeat(np.arange(len(start)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    covering = first[span] + within
    piece_start = np.maximum(np.asarray(start)[span], cover.start[covering])
    piece_end = np.minimum(np.asarray(end)[span], cover.end[covering])
    keep = piece_end > piece_start
    return span[keep], piece_start[keep], piece_end[keep]


def covered_time(start: Nanoseconds, end: Nanoseconds, cover: Intervals) -> Nanoseconds:
    """Length of the part of each span under `cover`."""
    return covered_until(cover, end) - covered_until(cover, start)


def covered_until(cover: Intervals, time: npt.ArrayLike) -> Nanoseconds:
    """Length of the part of `cover` before each time."""
    time = np.asarray(time, np.int64)
    if not len(cover):
        return np.zeros(time.shape, np.int64)
    before = np.concatenate(([0], np.cumsum(cover.end - cover.start)))
    index = np.searchsorted(cover.start, time, side="right")
    last = np.maximum(index - 1, 0)
    partial = np.where(index > 0, np.clip(time - cover.start[last], 0, cover.end[last] - cover.start[last]), 0)
    return before[last] + partial


def contains(cover: Intervals, time: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each time is under `cover`."""
    time = np.asarray(time, np.int64)
    if not len(cover):
        return np.zeros(time.shape, np.bool_)
    index = np.searchsorted(cover.start, time, side="right") - 1
    return (index >= 0) & (time < cover.end[np.maximum(index, 0)])


def owned(start: Nanoseconds, end: Nanoseconds, *, tie: npt.ArrayLike) -> tuple[Nanoseconds, Nanoseconds]:
    """The part of each span that no earlier-started span covers, so that overlapping spans share no instant.

    Returns (start, end) in the spans' order; start == end for a span that owns nothing. Ties in `start` go to the lower
    `tie`. The part is a single span, because earlier-started spans that reach into a span cover it from its start on
    without a hole: one running maximum of the ends is enough.
    """
    if not len(start):
        return start, end
    order = np.lexsort((np.asarray(tie), start))
    reach = np.maximum.accumulate(end[order])
    owned_start = np.empty_like(start)
    owned_start[order] = np.maximum(start[order], np.concatenate(([start[order[0]]], reach[:-1])))
    return np.minimum(owned_start, end), end
