"""One rank computes more than another: a straggler, an imbalance, or noise?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepscope.core.causes import Cause

SLOWER_FROM = 1.05
"""Compute at least this many times the peers' is a difference; less is noise (docs/how-numbers-are-made.md)."""

SAME_RANK_SHARE = 2 / 3
"""The slowest rank of this share of the steps is a straggler; if it changes more often, the work is uneven."""


class ComputeComparison:
    """Compares the ranks' compute by step.

    Args:
        compute_ns: by rank, compute time of each step.
        role: by rank, its place in the pipeline; ranks of one role should do the same work.
    """

    def __init__(self, compute_ns: Mapping[int, npt.NDArray[np.float64]], role: Mapping[int, int]) -> None:
        self._compute_ns = compute_ns
        self._role = role
        self._causes: dict[tuple[int, int], Cause] = {}

    def cause(self, late: int, waiting: int) -> Cause:
        """What it is that `late` computes more than `waiting`."""
        if (late, waiting) not in self._causes:
            self._causes[late, waiting] = self._compare(late, waiting)
        return self._causes[late, waiting]

    def _compare(self, late: int, waiting: int) -> Cause:
        if self._role[late] != self._role[waiting]:
            return Cause.IMBALANCE if self._mean(late) >= SLOWER_FROM * self._mean(waiting) else Cause.UNEXPLAINED
        peers = [rank for rank in self._compute_ns if self._role[rank] == self._role[late] and rank != late]
        if self._mean(late) < SLOWER_FROM * float(np.median([self._mean(rank) for rank in peers])):
            return self._changing(late, peers)
        return Cause.STRAGGLER if self._share_slowest(late, peers) >= SAME_RANK_SHARE else Cause.IMBALANCE

    def _changing(self, late: int, peers: list[int]) -> Cause:
        """On average no slower; imbalance if in some steps it clearly is, as with uneven sequences."""
        own, others = self._by_step(late, peers)
        return Cause.IMBALANCE if np.any(own >= SLOWER_FROM * np.median(others, axis=0)) else Cause.UNEXPLAINED

    def _share_slowest(self, late: int, peers: list[int]) -> float:
        own, others = self._by_step(late, peers)
        return float(np.mean(own >= others.max(axis=0)))

    def _by_step(self, late: int, peers: list[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        steps = min(len(self._compute_ns[rank]) for rank in (late, *peers))
        return self._compute_ns[late][:steps], np.array([self._compute_ns[rank][:steps] for rank in peers])

    def _mean(self, rank: int) -> float:
        return float(self._compute_ns[rank].mean())
