"""Table of root causes: time of each cause and the ranks that caused it; it adds up to 1."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.blame.waits import AttributedWait
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER, TO_ATTRIBUTE, TimeTable
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary.causes import Cause

NAMED_RANK_SHARE = 0.25
"""A rank is named from this share of the worst rank's contribution on."""


def ranks_to_name(contribution: Mapping[int, float]) -> list[int]:
    """The ranks to name, worst first.

    Args:
        contribution: by rank, in any unit.
    """
    worst = max(contribution.values(), default=0)
    named = [rank for rank, own in contribution.items() if own > 0 and own >= NAMED_RANK_SHARE * worst]
    return sorted(named, key=lambda rank: (-contribution[rank], rank))


NUM_RESAMPLES = 1000
INTERVAL = (0.05, 0.95)
"""Quantiles of the bootstrap that the intervals give."""

Resampled = npt.NDArray[np.float64]
"""Fractions by cause in each bootstrap resample, shape (resamples, causes)."""


@dataclass(frozen=True, slots=True)
class CauseTable:
    """Time by cause and step over all ranks.

    Attributes:
        time_ns: shape (steps, causes), nanoseconds; steps by their place in the window.
        step_ns: shape (steps,), the ranks' step lengths added up.
        culprits: by cause, nanoseconds by the rank that is to blame.
        blamed_ns: by cause, how much of it is waiting that was attributed to somebody; shape (causes,).
        num_whole: steps, from the first on, that are whole on every rank; the only one where there is one.
    """

    time_ns: npt.NDArray[np.float64]
    step_ns: npt.NDArray[np.float64]
    culprits: dict[Cause, dict[int, float]]
    blamed_ns: npt.NDArray[np.float64]
    num_whole: int

    def spread(self, movable: float) -> npt.NDArray[np.float64]:
        """By how much each cause's share may be off, shape (causes,), when so much of the time may be waiting instead
        of transfer or the other way round: transfer by all of it, who was waited for in proportion."""
        spread = movable * self.blamed_ns / max(float(self.blamed_ns.sum()), 1.0)
        spread[CAUSE_CODE[Cause.COMMUNICATION]] += movable
        return spread

    def fractions(self) -> dict[Cause, float]:
        """Share of the summed windows by cause."""
        return dict(zip(CAUSE_ORDER, (self.time_ns.sum(axis=0) / self.step_ns.sum()).tolist(), strict=True))

    def whole_step_shares(self) -> dict[Cause, float]:
        """Share of the whole steps by cause: the last one ends with the trace, so that shares of the window are not
        shares of a step."""
        whole = slice(self.num_whole)
        shares = self.time_ns[whole].sum(axis=0) / self.step_ns[whole].sum()
        return dict(zip(CAUSE_ORDER, shares.tolist(), strict=True))

    def unexplained_waiting(self) -> float:
        """Share of the summed windows that is waiting for a rank whose lateness nothing explains."""
        return float(self.blamed_ns[CAUSE_CODE[Cause.UNEXPLAINED]] / self.step_ns.sum())

    def ranks_of(self, cause: Cause) -> list[int]:
        """Ranks to blame for a cause, worst first."""
        return ranks_to_name(self.culprits.get(cause, {}))


def cause_table(
    views: Mapping[int, RankView], blamed: Sequence[AttributedWait], heavy: Mapping[int, Mapping[int, float]]
) -> CauseTable:
    """Add up own causes and blamed waits, step by step.

    Args:
        heavy: by rank of a pipeline, the shares of that pipeline's ranks in what its uneven cut costs.
    """
    steps_of_ranks = [len(view.window.boundary_ns) for view in views.values()]
    num_steps, num_whole = max(steps_of_ranks), max(min(steps_of_ranks) - 1, 1)
    time = np.zeros((num_steps, len(CAUSE_ORDER)))
    length = np.zeros(num_steps)
    to_blame: dict[Cause, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank, view in views.items():
        bounds = view.step_bounds_ns
        table = TimeTable(view.segments, view.segments.cause, TO_ATTRIBUTE + 1).between(bounds[:-1], bounds[1:])
        own = table[:, :TO_ATTRIBUTE]
        time[: len(own)] += own
        length[: len(own)] += np.diff(bounds)
        for code, nanoseconds in enumerate(own.sum(axis=0).tolist()):
            cause = CAUSE_ORDER[code]
            for culprit, share in _causing_ranks(cause, rank, heavy).items():
                to_blame[cause][culprit] += nanoseconds * share
    begins = {rank: view.window.boundary_ns.tolist() for rank, view in views.items()}
    attributed = np.zeros(len(CAUSE_ORDER))
    for wait in blamed:
        step = max(bisect_right(begins[wait.rank], wait.start_ns) - 1, 0)
        for (cause, culprit), nanoseconds in wait.shares.items():
            time[step, CAUSE_CODE[cause]] += nanoseconds
            attributed[CAUSE_CODE[cause]] += nanoseconds
            to_blame[cause][culprit] += nanoseconds
    return CauseTable(time, length, to_blame, attributed, num_whole)


def _causing_ranks(cause: Cause, rank: int, heavy: Mapping[int, Mapping[int, float]]) -> Mapping[int, float]:
    """Whose doing it is that a rank lost time: the heavy stages' when the pipeline is cut unevenly, else its own."""
    return heavy.get(rank) or {rank: 1.0} if cause is Cause.IMBALANCE else {rank: 1.0}


def resample(table: CauseTable) -> Resampled:
    """Bootstrap over steps. The same input gives the same answer."""
    chosen = _resampled_steps(len(table.step_ns))
    fractions: npt.NDArray[np.float64] = table.time_ns[chosen].sum(axis=1) / table.step_ns[chosen].sum(axis=1)[:, None]
    return fractions


def resample_whole(table: CauseTable) -> Resampled:
    """The same over whole steps, in mean whole steps: a resample of long steps adds up to more than 1."""
    time, length = table.time_ns[: table.num_whole], table.step_ns[: table.num_whole]
    steps: npt.NDArray[np.float64] = time[_resampled_steps(len(length))].mean(axis=1) / length.mean()
    return steps


def _resampled_steps(num_steps: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, num_steps, size=(NUM_RESAMPLES, num_steps))
