"""Wait attribution: attributes each wait to the late rank and to what that rank did meanwhile.

Idea: since their last sync point (`SyncPoints`) the late rank has spent more time than the waiting one on something.
Time by category of both ranks since then is compared, and the wait is shared out in proportion to the late rank's
excesses: compute, data loading, host, ... An excess in waiting is followed to whoever the late rank waited for; waits
are processed in time order, so those are attributed already and the recursion ends. Tools that name the last arriver
of each collective (such as HolisticTraceAnalysis) find, with overlapped ones, a rank in ordinary backward, not the
cause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.arrivals import Arrival, WaitPieces
from stepscope.analyzer.collectives.calls import SYNCHRONIZING_KINDS, CallId, Matches
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.ledger.segments import CAUSE_ORDER, TO_ATTRIBUTE
from stepscope.analyzer.rank_view import COMPUTE_CODE, NUM_COMPARED_CODES, RankView, comparison_table
from stepscope.core.vocabulary import EXPOSED_COMMUNICATION_CATEGORIES, Cause
from stepscope.trace.rows import distinct

SHORTEST_HOLD_NS = 5_000
"""An operation that ends in a gap of 1-2 us between two queued kernels did not delay its device."""

_END_OF_TIME = 2**63

_SyncPoint = tuple[int, int, bool]
"""Both ranks' ends of an operation, and whether the other rank was blocked by it."""


class SyncPoints:
    """Operations that ranks left together.

    One that ran behind compute synchronizes nobody: a rank that began its backward late leaves each gradient bucket
    with the others and is as late as before. A rank is level with the others after an operation only if it had nothing
    else to do when that ended.
    """

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
        self._common: dict[tuple[int, int], list[_SyncPoint]] = {}
        self._was_blocked: dict[int, list[bool]] = {}

    def last_before(self, call: CallId, late: CallId) -> tuple[bool, int, int]:
        """The last operation before this call after which the late rank was level with the waiting one; no earlier than
        the last common one of the step before.

        Returns:
            Whether there is one, and each rank's own end of it; else the begin of the step on each.
        """
        view, late_view = self._views[call.rank], self._views[late.rank]
        start = view.calls[call.place].start_ns
        late_start = late_view.calls[late.place].start_ns
        step_begin = _step_begin(view, start)
        points = self._between(call.rank, late.rank)
        for end, late_end, is_level in reversed(points[: bisect_right(points, (start, _END_OF_TIME, True))]):
            if late_end <= late_start and (is_level or end <= step_begin):
                return True, end, late_end
        return False, step_begin, _step_begin(late_view, late_start)

    def _between(self, rank: int, other: int) -> list[_SyncPoint]:
        """Common operations ordered by the first rank's end; cached."""
        if (rank, other) not in self._common:
            calls, others, was_blocked = self._views[rank].calls, self._views[other].calls, self._blocked(other)
            common = [
                (calls[call.place].end_ns, partners[other].place)
                for call, partners in self._partners_of[rank]
                if other in partners
            ]
            self._common[rank, other] = sorted((end, others[at].end_ns, was_blocked[at]) for end, at in common)
        return self._common[rank, other]

    def _blocked(self, rank: int) -> list[bool]:
        """By call: whether at its end the rank did nothing but communicate."""
        if rank not in self._was_blocked:
            view = self._views[rank]
            end = np.array([call.end_ns for call in view.calls], np.int64)
            begin = np.array([call.exposed_from_ns for call in view.calls], np.int64)
            begin = np.maximum(begin, end - SHORTEST_HOLD_NS)
            alone = view.segments.intervals_of(*EXPOSED_COMMUNICATION_CATEGORIES)
            self._was_blocked[rank] = (covered_time(begin, end, alone) == end - begin).tolist()
        return self._was_blocked[rank]


def _step_begin(view: RankView, time_ns: int) -> int:
    """Begin of the step that contains the time; before the first, the window's start."""
    place = int(np.searchsorted(view.window.boundary_ns, time_ns, side="right")) - 1
    return int(view.window.boundary_ns[max(place, 0)])


Shares = dict[tuple[Cause, int], float]
"""(cause, the rank that caused it) -> nanoseconds."""

ComputeCause = Callable[[int, int], Cause]
"""(late rank, waiting rank) -> cause of more compute on the late rank: straggler, imbalance or unexplained."""


_DISPLACED = (Cause.UNEXPLAINED, Cause.PIPELINE_BUBBLE)
"""Time that the late rank only spent later than the waiting one: compute no longer than its peers' in the step, and its
own part of the bubble. It explains only what nothing else does."""


class AttributedWait(NamedTuple):
    """A piece of exposed waiting on `rank` with its causes; the shares add up to its length."""

    rank: int
    start_ns: int
    end_ns: int
    shares: Shares


def attribute_waits(
    views: Mapping[int, RankView],
    waits: Mapping[int, WaitPieces],
    arrivals: Mapping[CallId, Arrival],
    matches: Matches,
    compute_cause: ComputeCause,
) -> list[AttributedWait]:
    """Attribute every piece of waiting, earliest first, so that followed waits are already attributed."""
    sync_points = SyncPoints(views, matches)
    lateness: list[_Lateness] = []
    pieces: list[tuple[int, int, int, int]] = []
    for rank, wait in waits.items():
        number_of: dict[int, int] = {}
        for start, end, place in zip(wait.start_ns.tolist(), wait.end_ns.tolist(), wait.call.tolist(), strict=True):
            if place not in number_of:
                number_of[place] = len(lateness)
                call = CallId(rank, place)
                lateness.append(_lateness(views, sync_points, call, arrivals[call]))
            pieces.append((end, rank, start, number_of[place]))
    pieces.sort()
    excess = _excess(views, lateness)
    attribution = _WaitAttribution(compute_cause)
    for end, _, start, number in pieces:
        attribution.add(start, end, lateness[number], excess[number])
    return attribution.waits


class _Lateness(NamedTuple):
    """Lateness of a rank in a call of a waiting one: the compared spans, from the last sync point to each arrival.

    `before_ns` is the part of the lateness before the late rank's window.
    """

    rank: int
    late: int
    since_own_ns: int
    arrived_own_ns: int
    since_late_ns: int
    arrived_late_ns: int
    before_ns: int


def _lateness(views: Mapping[int, RankView], sync_points: SyncPoints, call: CallId, arrival: Arrival) -> _Lateness:
    is_common, since_own, since_late = sync_points.last_before(call, arrival.call)
    unseen_own = max(views[call.rank].window.start_ns - since_own, 0)
    unseen_late = max(views[arrival.rank].window.start_ns - since_late, 0)
    return _Lateness(
        rank=call.rank,
        late=arrival.rank,
        since_own_ns=since_own,
        arrived_own_ns=views[call.rank].calls[call.place].exposed_from_ns,
        since_late_ns=since_late,
        arrived_late_ns=views[arrival.rank].calls[arrival.call.place].start_ns,
        before_ns=max(unseen_late - unseen_own, 0) + (0 if is_common else max(since_late - since_own, 0)),
    )


def _excess(views: Mapping[int, RankView], lateness: Sequence[_Lateness]) -> list[list[tuple[int, float]]]:
    """By wait: (code, nanoseconds) that the late rank spent more than the waiting one."""
    more = _time_by_code(views, [(one.late, one.since_late_ns, one.arrived_late_ns) for one in lateness])
    more -= _time_by_code(views, [(one.rank, one.since_own_ns, one.arrived_own_ns) for one in lateness])
    by_wait: list[list[tuple[int, float]]] = [[] for _ in lateness]
    rows, codes = np.nonzero(more > 0)
    for row, code, nanoseconds in zip(rows.tolist(), codes.tolist(), more[rows, codes].tolist(), strict=True):
        by_wait[row].append((code, nanoseconds))
    return by_wait


def _time_by_code(views: Mapping[int, RankView], spans: list[tuple[int, int, int]]) -> npt.NDArray[np.float64]:
    """Nanoseconds by code of each (rank, start, end), shape (spans, codes)."""
    rank, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    spent = np.zeros((len(spans), NUM_COMPARED_CODES))
    for number in distinct(rank).tolist():
        mine = rank == number
        spent[mine] = comparison_table(views[number]).between(start[mine], np.maximum(start, end)[mine])
    return spent


class _WaitAttribution:
    """Attributes waits in time order; later waits follow the results of earlier ones."""

    def __init__(self, compute_cause: ComputeCause) -> None:
        self.waits: list[AttributedWait] = []
        self._compute_cause = compute_cause
        self._history: dict[int, list[AttributedWait]] = defaultdict(list)

    def add(self, start_ns: int, end_ns: int, lateness: _Lateness, excess: Sequence[tuple[int, float]]) -> None:
        length = end_ns - start_ns
        weights = _without_displaced(self._weigh(excess, lateness), length)
        total = sum(weights.values())
        shares = (
            {key: length * weight / total for key, weight in weights.items()}
            if total > 0
            else {(Cause.UNEXPLAINED, lateness.late): float(length)}
        )
        wait = AttributedWait(lateness.rank, start_ns, end_ns, shares)
        self.waits.append(wait)
        self._history[lateness.rank].append(wait)

    def _weigh(self, excess: Sequence[tuple[int, float]], lateness: _Lateness) -> Shares:
        weights: Shares = defaultdict(float)
        late = lateness.late
        if lateness.before_ns:
            weights[Cause.BEFORE_WINDOW, late] += lateness.before_ns
        for code, weight in excess:
            if code == COMPUTE_CODE:
                weights[self._compute_cause(late, lateness.rank), late] += weight
            elif code == TO_ATTRIBUTE:
                for key, share in self._followed(late, lateness.since_late_ns, lateness.arrived_late_ns).items():
                    weights[key] += weight * share
            else:
                weights[CAUSE_ORDER[code], late] += weight
        return weights

    def _followed(self, rank: int, since: int, until: int) -> Shares:
        """Causes of `rank`'s own waits in that time; shares add up to 1."""
        shares: Shares = defaultdict(float)
        history = self._history[rank]
        for wait in history[bisect_right(history, since, key=lambda wait: wait.end_ns) :]:
            if wait.start_ns >= until:
                break
            for key, share in wait.shares.items():
                shares[key] += share
        total = sum(shares.values())
        return {key: share / total for key, share in shares.items()} if total else {(Cause.UNEXPLAINED, rank): 1.0}


def _without_displaced(weights: Shares, length: int) -> Shares:
    """The weights, with displaced time reduced to what the rest does not explain of the wait."""
    displaced = sum(weight for (cause, _), weight in weights.items() if cause in _DISPLACED)
    if not displaced:
        return weights
    found = sum(weights.values()) - displaced
    kept = min(max(length - found, 0.0) / displaced, 1.0)
    return {key: weight * kept if key[0] in _DISPLACED else weight for key, weight in weights.items()}
