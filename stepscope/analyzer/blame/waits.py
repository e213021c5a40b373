"""Wait attribution: attributes each wait to the late rank and to what that rank did meanwhile.

Idea: since their last sync point (`SyncPoints`) the late rank has spent more time than the waiting one on something.
Time by category of both ranks since then is compared, and the wait is shared out in proportion to the late rank's
excesses: compute, data loading, host, ... An excess in waiting is followed to whoever the late rank waited for; waits
are processed in the order of the arrivals that end them, so those are attributed already and the recursion ends. Tools
that name the last arriver of each collective (such as HolisticTraceAnalysis) find, with overlapped ones, a rank in
ordinary backward, not the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.blame.sync_points import SyncPoints
from stepscope.analyzer.collectives.arrivals import Arrival, WaitPieces, transfer_time
from stepscope.analyzer.collectives.calls import CallId, Matches
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER, TO_ATTRIBUTE
from stepscope.analyzer.rank_view import COMPUTE_CODE, NUM_COMPARED_CODES, RankView, comparison_table
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import IntColumn
from stepscope.trace.rows import distinct

ComputeCause = Callable[[int, int], Cause]
"""(late rank, waiting rank) -> cause of more compute on the late rank: straggler, imbalance or unexplained."""

_DISPLACED = [CAUSE_CODE[Cause.UNEXPLAINED], CAUSE_CODE[Cause.PIPELINE_BUBBLE]]
"""Time that the late rank only spent later than the waiting one: compute no longer than its peers' in the step, and its
own part of the bubble. It explains only what nothing else does."""

_COMMUNICATION = CAUSE_CODE[Cause.COMMUNICATION]
_NUM_CAUSES = len(CAUSE_ORDER)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AttributedWaits:
    """Exposed waiting of all ranks with its causes.

    Attributes:
        time_ns: shape (steps, causes), nanoseconds; steps by their place in the waiting rank's window.
        caused_ns: shape (causes, ranks), nanoseconds by the rank that caused them.
        ranks: the ranks of its columns.
    """

    time_ns: Floats
    caused_ns: Floats
    ranks: list[int]


def attribute_waits(
    views: Mapping[int, RankView],
    waits: Mapping[int, WaitPieces],
    arrivals: Mapping[CallId, Arrival],
    matches: Matches,
    compute_cause: ComputeCause,
) -> AttributedWaits:
    """Attribute all waiting, call by call in the order of the arrivals that end it, so that followed waits are already
    attributed."""
    calls = _waiting_calls(views, waits, arrivals)
    attribution = _WaitAttribution(views, calls, compute_cause)
    since = _LateSpans(views, calls, SyncPoints(views, matches))
    more = since.excess({rank: transfer_time(view, arrivals) for rank, view in views.items()})
    for late, rows in _by_late_call(calls):
        attribution.add(late, rows, since.late_ns[rows], since.before_ns[rows], more[rows])
    return attribution.result()


@dataclass(frozen=True, slots=True)
class _WaitingCalls:
    """Calls in which a rank waited, and the pieces of that waiting, by rank and start.

    Attributes:
        rank, start_ns, exposed_ns: its rank, its start, and from when on it is exposed.
        late, late_call: the rank that it waited for, and its call, by their numbers.
        at_ns: when that arrived.
        pieces: by rank, the places of its pieces in the columns below.
        piece_call, piece_start_ns, piece_end_ns: the call of each piece, and its span.
    """

    rank: IntColumn
    start_ns: Nanoseconds
    exposed_ns: Nanoseconds
    late: IntColumn
    late_call: IntColumn
    at_ns: Nanoseconds
    pieces: dict[int, slice]
    piece_call: IntColumn
    piece_start_ns: Nanoseconds
    piece_end_ns: Nanoseconds

    def __len__(self) -> int:
        return len(self.rank)


def _waiting_calls(
    views: Mapping[int, RankView], waits: Mapping[int, WaitPieces], arrivals: Mapping[CallId, Arrival]
) -> _WaitingCalls:
    rows: list[tuple[int, ...]] = []
    pieces: dict[int, slice] = {}
    numbers, count = [], 0
    for rank, wait in waits.items():
        places, number = np.unique(wait.call, return_inverse=True)
        numbers.append(number + len(rows))
        pieces[rank] = slice(count, count + len(wait))
        count += len(wait)
        for place in places.tolist():
            arrival, call = arrivals[CallId(rank, place)], views[rank].calls[place]
            late = (arrival.call.rank, arrival.call.place)
            rows.append((rank, call.start_ns, call.exposed_from_ns, *late, arrival.at_ns))
    rank_of, start_of, exposed_of, late_of, late_call_of, at_of = np.array(rows, np.int64).reshape(-1, 6).T
    start = np.concatenate([wait.start_ns for wait in waits.values()])
    end = np.concatenate([wait.end_ns for wait in waits.values()])
    return _WaitingCalls(
        rank=rank_of,
        start_ns=start_of,
        exposed_ns=exposed_of,
        late=late_of,
        late_call=late_call_of,
        at_ns=at_of,
        pieces=pieces,
        piece_call=np.concatenate(numbers),
        piece_start_ns=start,
        piece_end_ns=end,
    )


def _by_late_call(calls: _WaitingCalls) -> Iterator[tuple[CallId, IntColumn]]:
    """Each late call with those that wait for it, in the order of its arrival."""
    order = np.lexsort((calls.late_call, calls.late, calls.at_ns))
    late, late_call = calls.late[order], calls.late_call[order]
    changes = np.flatnonzero((np.diff(late) != 0) | (np.diff(late_call) != 0)) + 1
    for rows in np.split(order, changes) if len(order) else []:
        yield CallId(int(calls.late[rows[0]]), int(calls.late_call[rows[0]])), rows


class _LateSpans:
    """By waiting call, the compared spans of both ranks: from the last sync point to each arrival.

    Attributes:
        own_ns, late_ns: where they begin on the waiting and on the late rank.
        before_ns: the part of the lateness before the late rank's window.
    """

    def __init__(self, views: Mapping[int, RankView], calls: _WaitingCalls, sync_points: SyncPoints) -> None:
        self._views, self._calls = views, calls
        self.own_ns, self.late_ns = np.empty(len(calls), np.int64), np.empty(len(calls), np.int64)
        self._arrived_ns = np.empty(len(calls), np.int64)
        is_common = np.empty(len(calls), np.bool_)
        for late, rows in _by_late_call(calls):
            self.own_ns[rows], self.late_ns[rows], is_common[rows] = sync_points.last_before(
                calls.rank[rows], calls.start_ns[rows], late
            )
            self._arrived_ns[rows] = views[late.rank].calls[late.place].start_ns
        unseen = [
            np.maximum(_of_ranks(ranks, {rank: view.window.start_ns for rank, view in views.items()}) - since, 0)
            for ranks, since in ((calls.rank, self.own_ns), (calls.late, self.late_ns))
        ]
        behind = np.where(is_common, 0, np.maximum(self.late_ns - self.own_ns, 0))
        self.before_ns = np.maximum(unseen[1] - unseen[0], 0) + behind

    def excess(self, transfers: Mapping[int, Intervals]) -> Floats:
        """Nanoseconds by code that the late rank spent more than the waiting one, shape (calls, codes).

        Transfers that take no longer than on the waiting rank, and are only less hidden, count as waiting as far as the
        late rank waited itself: had it waited less, they had begun earlier.

        Args:
            transfers: by rank, the time in which some call transferred, hidden or not.
        """
        calls = self._calls
        late = (calls.late, self.late_ns, self._arrived_ns)
        own = (calls.rank, self.own_ns, calls.exposed_ns)
        spent = _time_by_code(self._views, *late)
        more = np.maximum(spent - _time_by_code(self._views, *own), 0.0)
        longer = np.maximum(_covered(transfers, *late) - _covered(transfers, *own), 0)
        less_hidden = np.maximum(np.minimum(more[:, _COMMUNICATION] - longer, spent[:, TO_ATTRIBUTE]), 0.0)
        more[:, _COMMUNICATION] -= less_hidden
        more[:, TO_ATTRIBUTE] += less_hidden
        return more


def _of_ranks(ranks: IntColumn, value: Mapping[int, int]) -> Nanoseconds:
    return np.array([value[rank] for rank in ranks.tolist()], np.int64)


def _time_by_code(
    views: Mapping[int, RankView], rank: IntColumn, start: Nanoseconds, end: Nanoseconds
) -> npt.NDArray[np.float64]:
    """Nanoseconds by code of each span, shape (spans, codes)."""
    spent = np.zeros((len(rank), NUM_COMPARED_CODES))
    for number in distinct(rank).tolist():
        mine = rank == number
        spent[mine] = comparison_table(views[number]).between(start[mine], np.maximum(start, end)[mine])
    return spent


def _covered(covers: Mapping[int, Intervals], rank: IntColumn, start: Nanoseconds, end: Nanoseconds) -> Nanoseconds:
    """Length of the part of each span that its rank's intervals cover."""
    length = np.zeros(len(rank), np.int64)
    for number in distinct(rank).tolist():
        mine = rank == number
        length[mine] = covered_time(start[mine], np.maximum(start, end)[mine], covers[number])
    return length


class _Weights(NamedTuple):
    """What explains a wait, by key: the cause's code + the number of causes x the place of the rank that caused it.

    Attributes:
        column: 1 for displaced time, else 0.
        weights: nanoseconds.
    """

    keys: IntColumn
    column: IntColumn
    weights: Floats


class _Shares(NamedTuple):
    """Shares of waiting by key, which add up to 1."""

    keys: IntColumn
    shares: Floats


class _WaitAttribution:
    """Attributes waits in the order of their ends; later waits follow the results of earlier ones."""

    def __init__(self, views: Mapping[int, RankView], calls: _WaitingCalls, compute_cause: ComputeCause) -> None:
        self._views, self._calls, self._compute_cause = views, calls, compute_cause
        self._ranks = sorted(views)
        self._place = {rank: place for place, rank in enumerate(self._ranks)}
        self._piece_ns = (calls.piece_end_ns - calls.piece_start_ns).astype(np.float64)
        self._piece_step = np.empty(len(self._piece_ns), np.int64)
        for rank, own in calls.pieces.items():
            bounds = views[rank].window.boundary_ns
            self._piece_step[own] = np.maximum(np.searchsorted(bounds, calls.piece_start_ns[own], side="right") - 1, 0)
        self._piece_scale = np.zeros((len(self._piece_ns), 2))
        """Nanoseconds of a piece for each unit of its call's weights, and of those of displaced time."""
        self._pieces_by_call = np.argsort(calls.piece_call, kind="stable")
        self._num_pieces = np.bincount(calls.piece_call, minlength=len(calls))
        self._first_piece = np.cumsum(self._num_pieces) - self._num_pieces
        num_steps = max(len(view.window.boundary_ns) for view in views.values())
        self._time_ns = np.zeros((num_steps, _NUM_CAUSES))
        self._caused_ns = np.zeros(len(self._ranks) * _NUM_CAUSES)
        self._weights: dict[int, _Weights] = {}

    def add(self, late: CallId, rows: IntColumn, since_ns: Nanoseconds, before_ns: Nanoseconds, more: Floats) -> None:
        """Attribute the waits of these calls for one late call.

        Args:
            since_ns: the sync point of each on the late rank.
            before_ns: its lateness before the window.
            more: its excesses, shape (calls, codes).
        """
        for since in distinct(since_ns).tolist():
            chosen = since_ns == since
            self._add(late, rows[chosen], since, before_ns[chosen], more[chosen])

    def _add(self, late: CallId, rows: IntColumn, since_ns: int, before_ns: Nanoseconds, more: Floats) -> None:
        weights = more[:, :_NUM_CAUSES].copy()
        weights[:, CAUSE_CODE[Cause.BEFORE_WINDOW]] += before_ns
        for place in np.flatnonzero(more[:, COMPUTE_CODE]).tolist():
            cause = self._compute_cause(late.rank, int(self._calls.rank[rows[place]]))
            weights[place, CAUSE_CODE[cause]] += more[place, COMPUTE_CODE]
        own = self._place[late.rank] * _NUM_CAUSES
        keys, awaited = np.arange(own, own + _NUM_CAUSES), more[:, TO_ATTRIBUTE]
        if awaited.any():
            followed = self._followed(late, since_ns)
            is_own = (followed.keys >= own) & (followed.keys < own + _NUM_CAUSES)
            weights[:, followed.keys[is_own] - own] += awaited[:, None] * followed.shares[is_own]
            keys = np.concatenate((keys, followed.keys[~is_own]))
            weights = np.concatenate((weights, awaited[:, None] * followed.shares[~is_own]), axis=1)
        is_displaced = np.isin(keys % _NUM_CAUSES, _DISPLACED)
        pieces, number = self._pieces_of(rows)
        displaced, found = weights[:, is_displaced].sum(axis=1), weights[:, ~is_displaced].sum(axis=1)
        nothing = (displaced + found) <= 0
        weights[nothing, CAUSE_CODE[Cause.UNEXPLAINED]] = displaced[nothing] = 1.0
        scale = _scale(self._piece_ns[pieces], found[number], displaced[number])
        self._piece_scale[pieces] = scale
        by_step = np.zeros((len(self._time_ns), len(keys)))
        for step in distinct(self._piece_step[pieces]).tolist():
            chosen = self._piece_step[pieces] == step
            sums = [np.bincount(number[chosen], weights=column[chosen], minlength=len(rows)) for column in scale.T]
            by_step[step] = np.where(is_displaced, sums[1] @ weights, sums[0] @ weights)
        np.add.at(self._time_ns.T, keys % _NUM_CAUSES, by_step.T)
        self._caused_ns[keys] += by_step.sum(axis=0)
        used = weights.any(axis=0)
        keys, weights, columns = keys[used], weights[:, used], is_displaced[used].astype(np.int64)
        for row, own_weights in zip(rows.tolist(), weights, strict=True):
            self._weights[row] = _Weights(keys, columns, own_weights)

    def _pieces_of(self, rows: IntColumn) -> tuple[IntColumn, IntColumn]:
        """The pieces of these calls, and for each the place of its call in `rows`."""
        count = self._num_pieces[rows]
        number = np.repeat(np.arange(len(rows)), count)
        within = np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)
        return self._pieces_by_call[self._first_piece[rows][number] + within], number

    def _followed(self, late: CallId, since_ns: int) -> _Shares:
        """Causes of the late rank's own waits from then until it arrived; shares add up to 1."""
        calls, pieces = self._calls, self._calls.pieces[late.rank]
        first = np.searchsorted(calls.piece_end_ns[pieces], since_ns, side="right")
        last = np.searchsorted(
            calls.piece_start_ns[pieces], self._views[late.rank].calls[late.place].start_ns, side="left"
        )
        span = slice(pieces.start + int(first), pieces.start + int(max(first, last)))
        followed, number = np.unique(calls.piece_call[span], return_inverse=True)
        scale = np.stack([np.bincount(number, weights=column) for column in self._piece_scale[span].T], axis=1)
        parts = [
            (own.keys, own.weights * own_scale[own.column])
            for call, own_scale in zip(followed.tolist(), scale, strict=True)
            if (own := self._weights.get(call)) is not None
        ]
        if not parts:
            unknown = self._place[late.rank] * _NUM_CAUSES + CAUSE_CODE[Cause.UNEXPLAINED]
            return _Shares(np.array([unknown]), np.ones(1))
        keys, number = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        shares = np.bincount(number, weights=np.concatenate([part[1] for part in parts]))
        return _Shares(keys, shares / shares.sum())

    def result(self) -> AttributedWaits:
        """What was attributed."""
        return AttributedWaits(self._time_ns, self._caused_ns.reshape(-1, _NUM_CAUSES).T, self._ranks)


def _scale(length_ns: Floats, found: Floats, displaced: Floats) -> Floats:
    """Nanoseconds of a piece of waiting for each unit of weight, and for each of displaced time, shape (pieces, 2).

    Displaced time is reduced to what the rest does not explain of the piece.
    """
    left = np.maximum(length_ns - found, 0.0)
    kept = np.minimum(np.divide(left, displaced, out=np.ones_like(left), where=displaced > 0), 1.0)
    scale = length_ns / (found + kept * displaced)
    return np.stack((scale, scale * kept), axis=1)
