"""A rank waited: who was late, and what was that rank doing meanwhile? Waiting is never a cause.

Each exposed wait is charged to the last arriver's excess over the waiting rank since they were last level
(meetings.py); an excess in waiting is followed to whom that rank waited for in turn. Time only falls, so it ends.
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
from stepscope.analyzer.blame.meetings import Meetings
from stepscope.analyzer.ledger.segments import CAUSE_ORDER, TO_BLAME
from stepscope.analyzer.membership import distinct
from stepscope.analyzer.rank_view import COMPUTE, NUM_CHARGES, RankView, comparison_table
from stepscope.core.causes import Cause

Shares = dict[tuple[Cause, int], float]
"""(cause, the rank that is to blame) -> nanoseconds."""

ComputeCause = Callable[[int, int], Cause]
"""(late rank, waiting rank) -> what more compute on the late rank is: straggler, imbalance or unexplained."""


_DISPLACED = (Cause.UNEXPLAINED, Cause.PIPELINE_BUBBLE)
"""What the late rank merely did later, as the waiting one did before: no more compute than its peers' in the step, and
its own part of the schedule's bubble. It only fills what nothing else explains."""


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
    meetings = Meetings(views, matches)
    cases = [
        _case(views, meetings, CallId(rank, place), (start, end), arrivals[CallId(rank, place)])
        for rank, wait in waits.items()
        for start, end, place in zip(wait.start_ns.tolist(), wait.end_ns.tolist(), wait.call.tolist(), strict=True)
    ]
    cases.sort(key=lambda case: (case.end_ns, case.rank, case.start_ns))
    court = _Court(compute_cause)
    for case, excess in zip(cases, _excess(views, cases), strict=True):
        court.judge(case, excess)
    return court.blamed


@dataclass(frozen=True, slots=True)
class _Case:
    """A piece of waiting, who came late, and what is compared: each rank's time from their last meeting to its arrival.

    `before_ns` is how much of the lateness lies before the late rank's window.
    """

    rank: int
    start_ns: int
    end_ns: int
    late: int
    since_own_ns: int
    arrived_own_ns: int
    since_late_ns: int
    arrived_late_ns: int
    before_ns: int


def _case(
    views: Mapping[int, RankView], meetings: Meetings, call: CallId, piece: tuple[int, int], arrival: Arrival
) -> _Case:
    met, since_own, since_late = meetings.last_before(call, arrival.call)
    unseen_own = max(views[call.rank].window.start_ns - since_own, 0)
    unseen_late = max(views[arrival.rank].window.start_ns - since_late, 0)
    return _Case(
        rank=call.rank,
        start_ns=piece[0],
        end_ns=piece[1],
        late=arrival.rank,
        since_own_ns=since_own,
        arrived_own_ns=views[call.rank].calls[call.place].exposed_from_ns,
        since_late_ns=since_late,
        arrived_late_ns=views[arrival.rank].calls[arrival.call.place].start_ns,
        before_ns=max(unseen_late - unseen_own, 0) + (0 if met else max(since_late - since_own, 0)),
    )


def _excess(views: Mapping[int, RankView], cases: list[_Case]) -> npt.NDArray[np.float64]:
    """By case and charge: how much longer the late rank spent than the waiting one; shape (cases, charges)."""
    late = _spent(views, [(case.late, case.since_late_ns, case.arrived_late_ns) for case in cases])
    return late - _spent(views, [(case.rank, case.since_own_ns, case.arrived_own_ns) for case in cases])


def _spent(views: Mapping[int, RankView], spans: list[tuple[int, int, int]]) -> npt.NDArray[np.float64]:
    """Time by charge of each (rank, start, end)."""
    rank, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    spent = np.zeros((len(spans), NUM_CHARGES))
    for number in distinct(rank).tolist():
        mine = rank == number
        spent[mine] = comparison_table(views[number]).between(start[mine], np.maximum(start, end)[mine])
    return spent


class _Court:
    """Charges waits in time order and remembers its earlier verdicts, which later waits follow."""

    def __init__(self, compute_cause: ComputeCause) -> None:
        self.blamed: list[BlamedWait] = []
        self._compute_cause = compute_cause
        self._history: dict[int, list[BlamedWait]] = defaultdict(list)

    def judge(self, case: _Case, excess: npt.NDArray[np.float64]) -> None:
        length = case.end_ns - case.start_ns
        weights = _without_displaced(self._weigh(np.maximum(excess, 0.0), case), length)
        total = sum(weights.values())
        shares = (
            {key: length * weight / total for key, weight in weights.items()}
            if total > 0
            else {(Cause.UNEXPLAINED, case.late): float(length)}
        )
        blamed = BlamedWait(case.rank, case.start_ns, case.end_ns, shares)
        self.blamed.append(blamed)
        self._history[case.rank].append(blamed)

    def _weigh(self, excess: npt.NDArray[np.float64], case: _Case) -> Shares:
        weights: Shares = defaultdict(float)
        if case.before_ns:
            weights[Cause.BEFORE_WINDOW, case.late] += case.before_ns
        for code in np.flatnonzero(excess).tolist():
            weight = float(excess[code])
            if code == COMPUTE:
                weights[self._compute_cause(case.late, case.rank), case.late] += weight
            elif code == TO_BLAME:
                for key, share in self._followed(case.late, case.since_late_ns, case.arrived_late_ns).items():
                    weights[key] += weight * share
            else:
                weights[CAUSE_ORDER[code], case.late] += weight
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


def _without_displaced(weights: Shares, length: int) -> Shares:
    """The weights, with displaced time only as far as the rest does not cover the wait."""
    displaced = sum(weight for (cause, _), weight in weights.items() if cause in _DISPLACED)
    if not displaced:
        return weights
    found = sum(weights.values()) - displaced
    kept = min(max(length - found, 0.0) / displaced, 1.0)
    return {key: weight * kept if key[0] in _DISPLACED else weight for key, weight in weights.items()}
