"""Without a device: what did the thread that trains do, piece by piece? The per-rank half of a CPU run's what-if.

What computes is cut where an outermost operator begins, so that ranks can be compared operator by operator.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.intervals import Intervals, Nanoseconds
from stepscope.analyzer.ledger.host_ledger import computing_rows
from stepscope.analyzer.ledger.segments import Segments
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_CODE
from stepscope.trace.columns import IntColumn, TraceColumns

MOST_PIECES = 500_000
"""Pieces of a rank above which none are kept (as activities of a device)."""

COMPUTES = HEADING_CODE[Heading.COMPUTE_OTHER]


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

    def intervals_of(self, heading: Heading) -> Intervals:
        """The pieces booked under a heading."""
        keep = self.heading == HEADING_CODE[heading]
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
    inside = (place >= 0) & (segments.heading[place] == COMPUTES)
    inside &= (opens > segments.start_ns[place]) & (opens < segments.end_ns[place])
    start = np.concatenate((segments.start_ns, opens[inside]))
    if not len(segments) or len(start) > MOST_PIECES:
        return None
    heading = np.concatenate((segments.heading, np.full(int(inside.sum()), COMPUTES, np.int8)))
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
