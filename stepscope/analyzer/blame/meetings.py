"""When were two ranks last level, so that what came since tells who is late?

Both leave a common operation at the same time, but one that ran behind compute levels nobody: a rank that began its
backward late leaves each of its gradient buckets with the others and is as late as before. Only a rank that had nothing
else to do when the operation ended brings no lateness along. HolisticTraceAnalysis and its like name who came last to
each collective; with overlapped ones that is a rank in the middle of ordinary backward, and the cause is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from stepscope.analyzer.alignment.call_words import SYNCHRONIZING_KINDS
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.rank_view import RankView
from stepscope.core.headings import EXPOSED_COMMUNICATION_HEADINGS

SHORTEST_HOLD_NS = 5_000
"""An operation that ends in a gap of 1-2 us between two queued kernels did not hold its device up."""

_END_OF_TIME = 2**63

_Meeting = tuple[int, int, bool]
"""Both ranks' ends of an operation, and whether it held the other one up."""


class Meetings:
    """Every operation that ranks left together."""

    def __init__(self, views: Mapping[int, RankView], matches: Matches) -> None:
        self._views = views
        self._partners_of: dict[int, list[tuple[CallId, Mapping[int, CallId]]]] = defaultdict(list)
        for match in matches.collectives:
            kinds = {views[rank].calls[call.place].kind for rank, call in match.items()}
            if kinds <= SYNCHRONIZING_KINDS:
                for call in match.values():
                    self._partners_of[call.rank].append((call, match))
        for call, others in matches.peers.items():
            self._partners_of[call.rank].append((call, {other.rank: other for other in others}))
        self._met: dict[tuple[int, int], list[_Meeting]] = {}
        self._held_up: dict[int, list[bool]] = {}

    def last_before(self, call: CallId, late: CallId) -> tuple[bool, int, int]:
        """Since when the late rank's lateness at this call counts: the last operation that held it up with the other,
        at most back to the last one of the step before.

        Returns:
            Whether they met, and each rank's own end of that operation; else where the step began on each.
        """
        view, late_view = self._views[call.rank], self._views[late.rank]
        start = view.calls[call.place].start_ns
        late_start = late_view.calls[late.place].start_ns
        step_begin = _step_begin(view, start)
        meetings = self._between(call.rank, late.rank)
        for end, late_end, level in reversed(meetings[: bisect_right(meetings, (start, _END_OF_TIME, True))]):
            if late_end <= late_start and (level or end <= step_begin):
                return True, end, late_end
        return False, step_begin, _step_begin(late_view, late_start)

    def _between(self, rank: int, other: int) -> list[_Meeting]:
        """In time order, by the first rank's end; made when first asked for."""
        if (rank, other) not in self._met:
            calls, others, held_up = self._views[rank].calls, self._views[other].calls, self._held(other)
            met = [
                (calls[call.place].end_ns, partners[other].place)
                for call, partners in self._partners_of[rank]
                if other in partners
            ]
            self._met[rank, other] = sorted((end, others[place].end_ns, held_up[place]) for end, place in met)
        return self._met[rank, other]

    def _held(self, rank: int) -> list[bool]:
        """By call: whether at its end the rank did nothing but communicate."""
        if rank not in self._held_up:
            view = self._views[rank]
            end = np.array([call.end_ns for call in view.calls], np.int64)
            begin = np.array([call.exposed_from_ns for call in view.calls], np.int64)
            begin = np.maximum(begin, end - SHORTEST_HOLD_NS)
            alone = view.segments.intervals_of(*EXPOSED_COMMUNICATION_HEADINGS)
            self._held_up[rank] = (covered_time(begin, end, alone) == end - begin).tolist()
        return self._held_up[rank]


def _step_begin(view: RankView, time_ns: int) -> int:
    """The boundary of the step that the time falls in; before the first, the window's start."""
    place = int(np.searchsorted(view.window.boundary_ns, time_ns, side="right")) - 1
    return int(view.window.boundary_ns[max(place, 0)])
