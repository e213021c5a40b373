"""A rank waited: who was late, and what was that rank doing meanwhile? Waiting is never a cause.

Each exposed wait is charged to the last arriver's excess over the waiting rank since both last left a common
operation; an excess in waiting is followed to whom that rank waited for in turn. Time only falls, so it ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.alignment.split import WaitPieces
from stepscope.analyzer.ledger.segments import CAUSE_ORDER, TO_BLAME
from stepscope.analyzer.rank_view import COMPUTE, RankView, comparison_table
from stepscope.core.causes import Cause

Shares = dict[tuple[Cause, int], float]
"""(cause, the rank that is to blame) -> nanoseconds."""

ComputeCause = Callable[[int, int], Cause]
"""(late rank, waiting rank) -> what more compute on the late rank is: straggler, imbalance or unexplained."""


@dataclass(frozen=True, slots=True)
class BlamedWait:
    """One piece of exposed waiting on `rank` and whom it is charged to; the shares add up to its length."""

    rank: int
    start_ns: int
    end_ns: int
    shares: Shares


def blame_waits(
    views: Mapping[int, RankView],
    waits: Mapping[int, WaitPieces],
    arrivals: Mapping[CallId, Arrival],
    matches: Matches,
    compute_cause: ComputeCause,
) -> list[BlamedWait]:
    """Charge every piece of waiting, earliest first, so that followed waits are already charged."""
    pieces = [
        (int(end), rank, int(start), int(place))
        for rank, wait in waits.items()
        for start, end, place in zip(wait.start_ns, wait.end_ns, wait.call, strict=True)
    ]
    court = _Court(views, matches, compute_cause)
    for end, rank, start, place in sorted(pieces):
        call = CallId(rank, place)
        court.judge(rank, start, end, call, arrivals[call])
    return court.blamed


class _Court:
    """Charges waits in time order and remembers its earlier verdicts, which later waits follow."""

    def __init__(self, views: Mapping[int, RankView], matches: Matches, compute_cause: ComputeCause) -> None:
        self.blamed: list[BlamedWait] = []
        self._views = views
        self._compute_cause = compute_cause
        self._tables = {rank: comparison_table(view) for rank, view in views.items()}
        self._history: dict[int, list[BlamedWait]] = defaultdict(list)
        self._meetings = _Meetings(views, matches)

    def judge(self, rank: int, start: int, end: int, call: CallId, arrival: Arrival) -> None:
        late = arrival.rank
        own_start = self._views[rank].calls[call.place].start_ns
        met, since_own, since_late = self._meetings.last_before(call, arrival.call)
        excess = self._spent(late, since_late, arrival.at_ns) - self._spent(rank, since_own, own_start)
        before = float(max(self._unseen(late, since_late) - self._unseen(rank, since_own), 0))
        if not met:
            before += max(since_late - since_own, 0)
        weights = self._weigh(np.maximum(excess, 0.0), before, late, rank, since_late, arrival.at_ns)
        total = sum(weights.values())
        length = end - start
        shares = (
            {key: length * weight / total for key, weight in weights.items()}
            if total > 0
            else {(Cause.UNEXPLAINED, late): float(length)}
        )
        blamed = BlamedWait(rank, start, end, shares)
        self.blamed.append(blamed)
        self._history[rank].append(blamed)

    def _spent(self, rank: int, start: int, end: int) -> npt.NDArray[np.float64]:
        spent: npt.NDArray[np.float64] = self._tables[rank].between(start, max(start, end))[0]
        return spent

    def _unseen(self, rank: int, since: int) -> int:
        """How much of the time since the last meeting lies before the rank's window."""
        return max(self._views[rank].window.start_ns - since, 0)

    def _weigh(
        self, excess: npt.NDArray[np.float64], before: float, late: int, rank: int, since: int, until: int
    ) -> Shares:
        weights: Shares = defaultdict(float)
        if before:
            weights[Cause.BEFORE_WINDOW, late] += before
        for code in np.flatnonzero(excess):
            weight = float(excess[code])
            if code == COMPUTE:
                weights[self._compute_cause(late, rank), late] += weight
            elif code == TO_BLAME:
                for key, share in self._followed(late, since, until).items():
                    weights[key] += weight * share
            else:
                weights[CAUSE_ORDER[code], late] += weight
        return weights

    def _followed(self, rank: int, since: int, until: int) -> Shares:
        """To whom `rank`'s own waits in that time were charged; shares add up to 1."""
        shares: Shares = defaultdict(float)
        history = self._history[rank]
        for blamed in history[bisect_right(history, since, key=lambda wait: wait.end_ns) :]:
            if blamed.start_ns >= until:
                break
            for key, share in blamed.shares.items():
                shares[key] += share
        total = sum(shares.values())
        return {key: share / total for key, share in shares.items()} if total else {(Cause.UNEXPLAINED, rank): 1.0}


class _Meetings:
    """When did two ranks last leave the same operation?"""

    def __init__(self, views: Mapping[int, RankView], matches: Matches) -> None:
        self._views = views
        self._partners: dict[CallId, dict[int, CallId]] = {}
        for match in matches.collectives:
            for call in match.values():
                self._partners[call] = match
        for call, others in matches.peers.items():
            self._partners[call] = {call.rank: call, **{other.rank: other for other in others}}
        self._met: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for call, partners in self._partners.items():
            end = views[call.rank].calls[call.place].end_ns
            for other_rank, other in partners.items():
                if other_rank != call.rank:
                    other_end = views[other_rank].calls[other.place].end_ns
                    self._met[call.rank, other_rank].append((end, other_end))
        for meetings in self._met.values():
            meetings.sort()

    def last_before(self, call: CallId, late: CallId) -> tuple[bool, int, int]:
        """Whether they met, and each rank's own end of that operation; else where the step began on each."""
        view, late_view = self._views[call.rank], self._views[late.rank]
        start = view.calls[call.place].start_ns
        late_start = late_view.calls[late.place].start_ns
        meetings = self._met[call.rank, late.rank]
        place = bisect_right(meetings, (start, np.iinfo(np.int64).max)) - 1
        while place >= 0 and meetings[place][1] > late_start:
            place -= 1
        if place >= 0:
            return True, *meetings[place]
        return False, _step_begin(view, start), _step_begin(late_view, late_start)


def _step_begin(view: RankView, time_ns: int) -> int:
    """The boundary of the step that the time falls in; before the first, the window's start."""
    place = int(np.searchsorted(view.window.boundary_ns, time_ns, side="right")) - 1
    return int(view.window.boundary_ns[max(place, 0)])
