"""Table of root causes: time of each cause and the ranks that caused it; it adds up to 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.blame.waits import AttributedWaits
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER, TO_ATTRIBUTE, TimeTable
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.resampling import resampled_places
from stepscope.core.vocabulary import Cause

NAMED_RANK_SHARE = 0.25
"""Least share of the worst rank's contribution for a rank to be named."""


def ranks_to_name(contribution: Mapping[int, float]) -> list[int]:
    """The ranks to name, worst first.

    What the median rank has as well names nobody, unless that rank is to be named itself.

    Args:
        contribution: by rank, in any unit.
    """
    worst = max(contribution.values(), default=0)
    usual = median_low(contribution.values()) if contribution else 0
    usual = usual if usual < NAMED_RANK_SHARE * worst else 0
    least = usual + NAMED_RANK_SHARE * (worst - usual)
    named = [rank for rank, own in contribution.items() if own > 0 and own >= least]
    return sorted(named, key=lambda rank: (-contribution[rank], rank))


CLEARLY_MORE = 1.5
"""Least ratio of the named ranks' own time in a cause to the median rank's for others to be named beside them."""


def ranks_as_bad(named: Sequence[int], own: Mapping[int, float]) -> list[int]:
    """The ranks not named that have a cause as much as the named ones, worst first.

    Of several ranks that are late for one reason (a node whose disk is slow) the others wait for the last alone;
    without its delay they would wait for the next.

    Args:
        own: by rank, its own time in the cause, without waiting.
    """
    if not named or len(named) == len(own):
        return []
    usual, bad = median(own.values()), median(own[rank] for rank in named)
    if bad <= 0 or bad < CLEARLY_MORE * usual:
        return []
    others = [rank for rank in own.keys() - set(named) if 0 < own[rank] >= (usual + bad) / 2]
    return sorted(others, key=lambda rank: (-own[rank], rank))


NUM_RESAMPLES = 1000
INTERVAL = (0.05, 0.95)
"""Bootstrap quantiles of the intervals."""

Resampled = npt.NDArray[np.float64]
"""Fractions by cause in each bootstrap resample, shape (resamples, causes)."""


class CauseTable(NamedTuple):
    """Time by cause and step over all ranks.

    Attributes:
        time_ns: shape (steps, causes), nanoseconds; steps by their place in the window.
        step_ns: shape (steps,), sum of the ranks' step lengths.
        caused_ns: by cause, nanoseconds by the rank that caused them.
        own_ns: by cause, nanoseconds by the rank that had them, without waiting.
        waited_ns: by cause, the part of it that is attributed waiting; shape (causes,).
        num_whole: number of first steps that are whole on every rank; at least 1.
    """

    time_ns: npt.NDArray[np.float64]
    step_ns: npt.NDArray[np.float64]
    caused_ns: dict[Cause, dict[int, float]]
    own_ns: dict[Cause, dict[int, float]]
    waited_ns: npt.NDArray[np.float64]
    num_whole: int

    def spread(self, movable: float) -> npt.NDArray[np.float64]:
        """Error of each cause's share, shape (causes,), when a share `movable` of the time may be waiting instead of
        transfer or vice versa: all of it for communication, in proportion for the causes of waiting."""
        spread = movable * self.waited_ns / max(float(self.waited_ns.sum()), 1.0)
        spread[CAUSE_CODE[Cause.COMMUNICATION]] += movable
        return spread

    def fractions(self) -> dict[Cause, float]:
        """Share of the summed windows by cause."""
        return dict(zip(CAUSE_ORDER, (self.time_ns.sum(axis=0) / self.step_ns.sum()).tolist(), strict=True))

    def whole_step_shares(self) -> dict[Cause, float]:
        """Share of the whole steps by cause: the last step ends with the trace, so that the window's shares differ."""
        whole = slice(self.num_whole)
        shares = self.time_ns[whole].sum(axis=0) / self.step_ns[whole].sum()
        return dict(zip(CAUSE_ORDER, shares.tolist(), strict=True))

    def unexplained_waiting(self) -> float:
        """Share of the summed windows that is waiting for a rank with unexplained lateness."""
        return float(self.waited_ns[CAUSE_CODE[Cause.UNEXPLAINED]] / self.step_ns.sum())

    def ranks_of(self, cause: Cause) -> list[int]:
        """Ranks that caused it, worst first."""
        named = ranks_to_name(self.caused_ns.get(cause, {}))
        return named + ranks_as_bad(named, self.own_ns[cause])


def cause_table(
    views: Mapping[int, RankView], waits: AttributedWaits, heavy: Mapping[int, Mapping[int, float]]
) -> CauseTable:
    """Sum up own causes and attributed waits, step by step.

    Args:
        heavy: by rank of a pipeline, the shares of that pipeline's ranks in the cost of its uneven stages.
    """
    steps_of_ranks = [len(view.window.boundary_ns) for view in views.values()]
    num_steps, num_whole = max(steps_of_ranks), max(min(steps_of_ranks) - 1, 1)
    time = np.zeros((num_steps, len(CAUSE_ORDER)))
    length = np.zeros(num_steps)
    caused: dict[Cause, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    own_ns: dict[Cause, dict[int, float]] = {cause: {} for cause in CAUSE_ORDER}
    for rank, view in views.items():
        bounds = view.step_bounds_ns
        table = TimeTable(view.segments, view.segments.cause, TO_ATTRIBUTE + 1).between(bounds[:-1], bounds[1:])
        own = table[:, :TO_ATTRIBUTE]
        time[: len(own)] += own
        length[: len(own)] += np.diff(bounds)
        for code, nanoseconds in enumerate(own.sum(axis=0).tolist()):
            cause = CAUSE_ORDER[code]
            own_ns[cause][rank] = 0.0 if cause is Cause.IMBALANCE else nanoseconds  # a stage's waiting for another
            for causing, share in _causing_ranks(cause, rank, heavy).items():
                caused[cause][causing] += nanoseconds * share
    time += waits.time_ns
    for code, place in zip(*np.nonzero(waits.caused_ns), strict=True):
        caused[CAUSE_ORDER[code]][waits.ranks[place]] += float(waits.caused_ns[code, place])
    waited = waits.time_ns.sum(axis=0)
    return CauseTable(time, length, caused, own_ns, waited, num_whole)


def _causing_ranks(cause: Cause, rank: int, heavy: Mapping[int, Mapping[int, float]]) -> Mapping[int, float]:
    """Shares of the ranks that caused a rank's loss: the heavy stages' for imbalance of a pipeline, else its own."""
    return heavy.get(rank) or {rank: 1.0} if cause is Cause.IMBALANCE else {rank: 1.0}


def resample(table: CauseTable) -> Resampled:
    """Blame: resample the steps for the uncertainty of each root cause's share (bootstrap); deterministic."""
    chosen = resampled_places(NUM_RESAMPLES, len(table.step_ns))
    fractions: npt.NDArray[np.float64] = table.time_ns[chosen].sum(axis=1) / table.step_ns[chosen].sum(axis=1)[:, None]
    return fractions


def resample_whole(table: CauseTable) -> Resampled:
    """Blame: bootstrap of root causes over whole steps, in units of the mean whole step.

    A resample of long steps sums to more than 1.
    """
    time, length = table.time_ns[: table.num_whole], table.step_ns[: table.num_whole]
    chosen = resampled_places(NUM_RESAMPLES, len(length))
    steps: npt.NDArray[np.float64] = time[chosen].mean(axis=1) / length.mean()
    return steps
