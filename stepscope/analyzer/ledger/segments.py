"""Segments of a window: each with its category and the cause its time is attributed to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, Cause, TimeCategory
from stepscope.trace.columns import IntColumn, narrow

CAUSE_ORDER: tuple[Cause, ...] = tuple(Cause)
CAUSE_CODE = {cause: code for code, cause in enumerate(CAUSE_ORDER)}
"""Cause -> its code in a segment."""

TO_ATTRIBUTE = len(CAUSE_ORDER)
"""Cause code of waiting, until blame/waits.py attributes it to the late rank."""

_OWN_CAUSE = {
    TimeCategory.COMPUTE_BOUND: Cause.COMPUTE_BOUND,
    TimeCategory.MEMORY_BOUND: Cause.MEMORY_BOUND,
    TimeCategory.LATENCY_BOUND: Cause.LATENCY_BOUND,
    TimeCategory.COMPUTE_OTHER: Cause.UNEXPLAINED,
    TimeCategory.COMMUNICATION: Cause.COMMUNICATION,
    TimeCategory.BUBBLE: Cause.PIPELINE_BUBBLE,
    TimeCategory.COMMUNICATION_UNSPLIT: Cause.COMMUNICATION,
    TimeCategory.COPY: Cause.COPY,
    TimeCategory.DATA_LOADING: Cause.DATA_LOADING,
    TimeCategory.CHECKPOINT: Cause.CHECKPOINT,
    TimeCategory.SYNCHRONIZATION: Cause.SYNCHRONIZATION,
    TimeCategory.HOST_BOUND: Cause.HOST_BOUND,
    TimeCategory.DEVICE_GAP: Cause.DEVICE_GAP,
    TimeCategory.PROFILER: Cause.PROFILER,
    TimeCategory.IDLE_OTHER: Cause.UNEXPLAINED,
}
OWN_CAUSE = np.array(
    [TO_ATTRIBUTE if h is TimeCategory.WAIT else CAUSE_CODE[_OWN_CAUSE[h]] for h in CATEGORY_ORDER], np.int8
)
"""By category code: cause code of the category itself."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint spans in time order.

    Attributes:
        category: category code.
        cause: cause code: the category's own unless something else caused the time (the host was late anyway, the copy
            belongs to a checkpoint), or TO_ATTRIBUTE.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    category: IntColumn
    cause: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Nanoseconds:
        return self.end_ns - self.start_ns

    def intervals_of(self, *categories: TimeCategory) -> Intervals:
        """The time in any of the categories."""
        is_wanted = np.zeros(len(CATEGORY_ORDER), np.bool_)
        is_wanted[[CATEGORY_CODE[category] for category in categories]] = True
        keep = is_wanted[self.category]
        return Intervals(self.start_ns[keep], self.end_ns[keep])


class CategorySpans(NamedTuple):
    """Spans with one category and cause, or one each; without a cause it is the category's own."""

    intervals: Intervals
    category: TimeCategory | IntColumn
    cause: Cause | IntColumn | None = None

    def codes(self) -> tuple[IntColumn, IntColumn]:
        """Category and cause codes of each span."""
        size = len(self.intervals)
        category = self.category
        if isinstance(category, TimeCategory):
            category = np.full(size, CATEGORY_CODE[category], np.int8)
        if self.cause is None:
            return category, OWN_CAUSE[category]
        return category, np.full(size, CAUSE_CODE[self.cause], np.int8) if isinstance(self.cause, Cause) else self.cause


def assemble(parts: list[CategorySpans]) -> Segments:
    """Time breakdown: put disjoint parts in time order and join neighbours with equal codes."""
    codes = [part.codes() for part in parts]
    start = np.concatenate([part.intervals.start for part in parts])
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = np.concatenate([part.intervals.end for part in parts])[order]
    category = np.concatenate([code[0] for code in codes]).astype(np.int8)[order]
    cause = np.concatenate([code[1] for code in codes]).astype(np.int8)[order]
    if not len(start):
        return Segments(start, end, category, cause)
    same = (category[1:] == category[:-1]) & (cause[1:] == cause[:-1]) & (start[1:] == end[:-1])
    opens = np.concatenate(([True], ~same))
    closes = np.concatenate((~same, [True]))
    return Segments(start[opens], end[closes], category[opens], cause[opens])


class TimeTable:
    """Time by code within spans. Running sums are prepared once; a query then costs a binary search.

    Args:
        codes: one code a segment, 0 <= code < num_codes.
    """

    def __init__(self, segments: Segments, codes: IntColumn, num_codes: int) -> None:
        self._segments = segments
        self._codes = codes
        # the segments sorted by code, with their running sum; codes that do not occur cost nothing
        self._by_code = np.argsort(narrow(codes), kind="stable")
        self._first = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=num_codes))))
        self._before = np.concatenate(([0], np.cumsum(segments.duration_ns[self._by_code])))

    def between(self, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Nanoseconds by code inside each span, shape (spans, num_codes); time without a segment is in no column."""
        return (self._until(end_ns) - self._until(start_ns)).astype(np.float64)

    def _until(self, time_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        time = np.atleast_1d(np.asarray(time_ns, np.int64))
        last = np.searchsorted(self._segments.start_ns, time, side="right") - 1
        begun = last >= 0
        result = np.zeros((len(time), len(self._first) - 1), np.int64)
        for code in np.flatnonzero(np.diff(self._first)).tolist():
            first, end = int(self._first[code]), int(self._first[code + 1])
            place = first + np.searchsorted(self._by_code[first:end], last)
            result[:, code] = self._before[place] - self._before[first]
        if len(self._segments):
            partial = np.minimum(time, self._segments.end_ns[last]) - self._segments.start_ns[last]
            result[np.arange(len(time)), self._codes[last]] += np.where(begun, partial, 0)
        return result
