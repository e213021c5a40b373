"""Sync points: the operations after which a late rank was level with those that wait for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import SYNCHRONIZING_KINDS, CallId, Matches
from stepscope.analyzer.intervals import Nanoseconds, covered_time
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary import EXPOSED_COMMUNICATION_CATEGORIES
from stepscope.trace.columns import IntColumn

SHORTEST_HOLD_NS = 5_000
"""An operation that ends in a gap of 1-2 us between two queued kernels did not delay its device."""


class _Operation(NamedTuple):
    """Operation that a rank left together with others: its own call, and the others' ranks in order with their ends."""

    end_ns: int
    place: int
    ranks: IntColumn
    ends_ns: Nanoseconds


class Since(NamedTuple):
    """By waiting rank, the last operation after which the late rank was level with it.

    Attributes:
        own_ns: its own end of that operation; without one, the begin of the step.
        late_ns: the same of the late rank.
        is_common: whether there is one.
    """

    own_ns: Nanoseconds
    late_ns: Nanoseconds
    is_common: npt.NDArray[np.bool_]


class SyncPoints:
    """Operations that ranks left together.

    One that ran behind compute synchronizes nobody: a rank that began its backward late leaves each gradient bucket
    with the others and is as late as before. A rank is level with the others after an operation only if it had nothing
    else to do when that ended, and waited for no other.
    """

    def __init__(self, views: Mapping[int, RankView], matches: Matches) -> None:
        self._views = views
        self._operations: dict[int, list[_Operation]] = {rank: [] for rank in views}
        for match in matches.collectives:
            calls = {rank: views[rank].calls[match[rank].place] for rank in sorted(match)}
            if {call.kind for call in calls.values()} <= SYNCHRONIZING_KINDS:
                ranks = np.fromiter(calls, np.int64, len(calls))
                ends = np.array([call.end_ns for call in calls.values()], np.int64)
                for rank, call in calls.items():
                    self._operations[rank].append(_Operation(call.end_ns, match[rank].place, ranks, ends))
        for waiting, others in matches.peers.items():
            ranks = np.array([waiting.rank], np.int64)
            ends = np.array([views[waiting.rank].calls[waiting.place].end_ns], np.int64)
            for other in others:
                end_ns = views[other.rank].calls[other.place].end_ns
                self._operations[other.rank].append(_Operation(end_ns, other.place, ranks, ends))
        for operations in self._operations.values():
            operations.sort(key=lambda one: one.end_ns)
        self._was_blocked: dict[int, list[bool]] = {}

    def last_before(self, ranks: IntColumn, starts_ns: Nanoseconds, late: CallId) -> Since:
        """The last operation before each rank's call after which the late rank was level with it; no earlier than the
        last common one of the step before.

        Args:
            ranks, starts_ns: the waiting ranks and the starts of their calls.
            late: the call of the late rank.
        """
        late_view = self._views[late.rank]
        late_start = late_view.calls[late.place].start_ns
        own = np.array(
            [step_begin(self._views[r], s) for r, s in zip(ranks.tolist(), starts_ns.tolist(), strict=True)], np.int64
        )
        since = Since(own, np.full(len(own), step_begin(late_view, late_start)), np.zeros(len(own), np.bool_))
        step_begins, open_ = own.copy(), np.arange(len(own))
        operations, was_blocked = self._operations[late.rank], self._blocked(late.rank)
        for number in range(bisect_right(operations, late_start, key=lambda one: one.end_ns) - 1, -1, -1):
            if not len(open_):
                break
            operation = operations[number]
            at = np.minimum(np.searchsorted(operation.ranks, ranks[open_]), len(operation.ranks) - 1)
            ends = operation.ends_ns[at]
            limit = starts_ns if was_blocked[operation.place] else np.minimum(starts_ns, step_begins)
            found = (operation.ranks[at] == ranks[open_]) & (ends <= limit[open_])
            chosen = open_[found]
            since.own_ns[chosen], since.late_ns[chosen] = ends[found], operation.end_ns
            since.is_common[chosen] = True
            open_ = open_[~found]
        return since

    def _blocked(self, rank: int) -> list[bool]:
        """By call: whether at its end the rank did nothing but wait for it; another call running then is waited for."""
        if rank not in self._was_blocked:
            view = self._views[rank]
            end = np.array([call.end_ns for call in view.calls], np.int64)
            exposed = np.array([call.exposed_from_ns for call in view.calls], np.int64)
            begin = np.maximum(exposed, end - SHORTEST_HOLD_NS)
            alone = view.segments.intervals_of(*EXPOSED_COMMUNICATION_CATEGORIES)
            others = np.searchsorted(np.sort(exposed), end) - np.searchsorted(np.sort(end), end, side="right")
            self._was_blocked[rank] = ((others == 0) & (covered_time(begin, end, alone) == end - begin)).tolist()
        return self._was_blocked[rank]


def step_begin(view: RankView, time_ns: int) -> int:
    """Begin of the step that contains the time; before the first, the window's start."""
    place = int(np.searchsorted(view.window.boundary_ns, time_ns, side="right")) - 1
    return int(view.window.boundary_ns[max(place, 0)])
