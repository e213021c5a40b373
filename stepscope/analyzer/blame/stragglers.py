"""Stragglers: whether a rank computes longer than its peers, whether it was given more work, and why it is slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.flags import SumColumn
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import KernelTime
from stepscope.core.vocabulary import Cause, Evidence, Reason

SLOWER_THRESHOLD = 1.05
"""Lowest ratio of a rank's compute to its peers' that is a difference (docs/explanation/how-numbers-are-made.md)."""

SAME_RANK_SHARE = 2 / 3
"""The slowest rank of this share of the steps is a straggler; if it changes more often, the work is uneven."""


class RankWork(NamedTuple):
    """What a rank computes in a step.

    Attributes:
        flops: None where unknown.
        call_ms: by operator and shapes, its largest calls' time.
    """

    flops: float | None
    call_ms: Mapping[str, float]


def work_of(view: RankView) -> RankWork:
    calls = view.kernel_sums.by_call
    return RankWork(view.executed_flops, dict(zip(calls.keys, calls.sums[:, SumColumn.OWNED_NS].tolist(), strict=True)))


MOSTLY_OTHER_SHAPES = 0.5
"""Least share of each peer's time in calls with shapes that a rank has not, for it to work on larger batches in their
place: operators of its own beside the same ones leave the peers' calls as they are."""


def flops_above_peers(late: RankWork, peers: Sequence[RankWork]) -> float | None:
    """FLOPs of a rank with larger batches / its peers' median; None where it has none, or that is unknown."""
    flops = [peer.flops for peer in peers if peer.flops]
    if not late.flops or not flops or len(flops) < len(peers) or not late.call_ms:
        return None
    for peer in peers:
        other = sum(own for call, own in peer.call_ms.items() if call not in late.call_ms)
        if not peer.call_ms or other < MOSTLY_OTHER_SHAPES * sum(peer.call_ms.values()):
            return None
    ratio = late.flops / median(flops)
    return ratio if ratio >= SLOWER_THRESHOLD else None


MOSTLY_MORE_WORK = 0.5
"""Least part of a rank's longer compute that its FLOPs explain, for its work to be uneven and not the rank slow."""


class ComputeComparison:
    """Compares the ranks' compute by step.

    Args:
        compute_ns: by rank, compute time of each step.
        role: by rank, its pipeline stage; ranks of one role should do the same work.
        work: by rank, what it computes in a step; without it uneven work of the same rank counts as slowness.
    """

    def __init__(
        self,
        compute_ns: Mapping[int, npt.NDArray[np.float64]],
        role: Mapping[int, int],
        work: Mapping[int, RankWork] | None = None,
    ) -> None:
        self._compute_ns = compute_ns
        self._role = role
        self._work = work or {}
        self._causes: dict[tuple[int, int | None], Cause] = {}

    def cause(self, late: int, waiting: int) -> Cause:
        """Cause of the longer compute of `late` against `waiting`."""
        against = None if self._role[late] == self._role[waiting] else waiting  # of one role all peers count
        if (late, against) not in self._causes:
            self._causes[late, against] = self._compare(late, waiting)
        return self._causes[late, against]

    def _compare(self, late: int, waiting: int) -> Cause:
        if self._role[late] != self._role[waiting]:
            return Cause.IMBALANCE if self._mean(late) >= SLOWER_THRESHOLD * self._mean(waiting) else Cause.UNEXPLAINED
        peers = [rank for rank in self._compute_ns if self._role[rank] == self._role[late] and rank != late]
        if self._mean(late) < SLOWER_THRESHOLD * float(np.median([self._mean(rank) for rank in peers])):
            return self._changing(late, peers)
        if self._has_more_work(late, peers):
            return Cause.IMBALANCE
        return Cause.STRAGGLER if self._share_slowest(late, peers) >= SAME_RANK_SHARE else Cause.IMBALANCE

    def _has_more_work(self, late: int, peers: list[int]) -> bool:
        """Whether larger batches explain most of a rank's longer compute."""
        if not {late, *peers} <= self._work.keys():
            return False
        more = flops_above_peers(self._work[late], [self._work[rank] for rank in peers])
        usual_ns = float(np.median([self._mean(rank) for rank in peers]))
        return more is not None and (more - 1.0) * usual_ns >= MOSTLY_MORE_WORK * (self._mean(late) - usual_ns)

    def _changing(self, late: int, peers: list[int]) -> Cause:
        """Cause where the rank is no slower on average: imbalance if it is in some steps, as with uneven batches."""
        own, others = self._by_step(late, peers)
        return Cause.IMBALANCE if np.any(own >= SLOWER_THRESHOLD * np.median(others, axis=0)) else Cause.UNEXPLAINED

    def _share_slowest(self, late: int, peers: list[int]) -> float:
        own, others = self._by_step(late, peers)
        return float(np.mean(own >= others.max(axis=0)))

    def _by_step(self, late: int, peers: list[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        steps = min(len(self._compute_ns[rank]) for rank in (late, *peers))
        return self._compute_ns[late][:steps], np.array([self._compute_ns[rank][:steps] for rank in peers])

    def _mean(self, rank: int) -> float:
        return float(self._compute_ns[rank].mean())


MIN_EXPLAINED = 0.5
"""Least share of the difference that a named reason explains."""

EVENLY_SLOWER_SHARE = 0.8
"""Least share of the kernels' usual time that is slower by about the same factor when a clock is low."""

EVEN_TOLERANCE = 0.5
"""About the same factor: within this share of its excess over 1."""


def why_slower(late: Sequence[RankView], peers: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """Reasons from the worst late rank's kernels, by name against its peers' median; none without kernels."""
    peers = [view for view in peers if view.kernels]
    if not late or not late[0].kernels or not peers:
        return [], []
    own = {kernel.name: kernel for kernel in late[0].kernels}
    others = _typical(peers)
    more, slower = 0.0, 0.0
    ratios = []
    for name, kernel in own.items():
        usual_count, usual_ms = others.get(name, (0.0, 0.0))
        excess = kernel.ms - usual_count * usual_ms
        if kernel.count > usual_count:
            more += excess  # kernels of one name may differ: the excess is attributed to the additional ones
            continue
        slower += excess
        if usual_ms and kernel.count:
            ratios.append((kernel.ms / kernel.count / usual_ms, kernel.count * usual_ms))
    total = more + slower
    if total <= 0:
        return [], []
    rank = [late[0].rank]
    evidence = [
        Evidence("share_of_difference_by_more_kernels", min(more / total, 1.0), "ratio", MIN_EXPLAINED, ranks=rank)
    ]
    if more >= MIN_EXPLAINED * total:
        return [Reason.EXTRA_WORK], evidence
    if not ratios:
        return [], evidence
    usual = sum(ms for _, ms in ratios)
    factor = sum(ratio * ms for ratio, ms in ratios) / usual
    even = sum(ms for ratio, ms in ratios if abs(ratio - factor) <= EVEN_TOLERANCE * (factor - 1)) / usual
    evidence.append(Evidence("kernels_slower_by", factor, "times", ranks=rank))
    evidence.append(Evidence("share_of_time_slower_by_about_that", even, "ratio", EVENLY_SLOWER_SHARE, ranks=rank))
    return [Reason.LOW_CLOCK if even >= EVENLY_SLOWER_SHARE else Reason.SLOWER_KERNELS], evidence


def _typical(peers: Sequence[RankView]) -> dict[str, tuple[float, float]]:
    """By kernel name: median count, and median milliseconds of one, over the peers that run it."""
    found: dict[str, list[KernelTime]] = {}
    for view in peers:
        for kernel in view.kernels:
            found.setdefault(kernel.name, []).append(kernel)
    return {
        name: (median(k.count for k in kernels), median(k.ms / max(k.count, 1) for k in kernels))
        for name, kernels in found.items()
    }
