"""Stragglers: whether a rank computes longer than its peers, whether it was given more work, and why it is slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
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
"""The slowest rank of this share of the steps is a straggler; if it changes more often, the work is uneven. Slower
stragglers than it are left out, and of two slower ranks that are equal each is the slowest."""


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
    ratio = late.flops / median(flops)
    if ratio < SLOWER_THRESHOLD:
        return None
    for peer in peers:
        other = sum(own for call, own in peer.call_ms.items() if call not in late.call_ms)
        if not peer.call_ms or other < MOSTLY_OTHER_SHAPES * sum(peer.call_ms.values()):
            return None
    return ratio


MOSTLY_MORE_WORK = 0.5
"""Least part of a rank's longer compute that its FLOPs explain, for its work to be uneven and not the rank slow."""


class _Peers:
    """Compute of the ranks of one role, which should do the same work."""

    def __init__(self, compute_ns: Mapping[int, npt.NDArray[np.float64]]) -> None:
        self.place = {rank: place for place, rank in enumerate(compute_ns)}
        self.mean_ns = np.array([own.mean() for own in compute_ns.values()])
        num_steps = min(len(own) for own in compute_ns.values())
        self.by_step_ns = np.array([own[:num_steps] for own in compute_ns.values()], np.float64)

    def usual_ns(self, rank: int) -> float:
        """Median of the other ranks' mean step."""
        return float(np.median(np.delete(self.mean_ns, self.place[rank])))

    def is_slower(self, rank: int) -> bool:
        return bool(self.mean_ns[self.place[rank]] >= SLOWER_THRESHOLD * self.usual_ns(rank))

    @cached_property
    def stragglers(self) -> frozenset[int]:
        """The ranks that are the slowest in most steps, without those that are slower and so as well."""
        slower = sorted(filter(self.is_slower, self.place), key=lambda rank: -self.mean_ns[self.place[rank]])
        left = np.ones(len(self.place), np.bool_)
        reached_ns = self.by_step_ns.copy()
        reached_ns[[self.place[rank] for rank in slower]] /= SLOWER_THRESHOLD  # equal ones are each the slowest
        found = []
        for rank in slower:
            place = self.place[rank]
            left[place] = False
            if not left.any() or np.mean(self.by_step_ns[place] >= reached_ns[left].max(axis=0)) >= SAME_RANK_SHARE:
                found.append(rank)
            else:
                left[place] = True
        return frozenset(found)


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
        self._role = role
        self._work = work or {}
        self._peers = {
            own: _Peers({rank: steps for rank, steps in compute_ns.items() if role[rank] == own})
            for own in {role[rank] for rank in compute_ns}
        }
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
        peers = self._peers[self._role[late]]
        if not peers.is_slower(late):
            return _changing(late, peers)
        if self._has_more_work(late, peers):
            return Cause.IMBALANCE
        return Cause.STRAGGLER if late in peers.stragglers else Cause.IMBALANCE

    def _has_more_work(self, late: int, peers: _Peers) -> bool:
        """Whether larger batches explain most of a rank's longer compute."""
        if not peers.place.keys() <= self._work.keys():
            return False
        more = flops_above_peers(self._work[late], [self._work[rank] for rank in peers.place if rank != late])
        usual_ns = peers.usual_ns(late)
        return more is not None and (more - 1.0) * usual_ns >= MOSTLY_MORE_WORK * (self._mean(late) - usual_ns)

    def _mean(self, rank: int) -> float:
        peers = self._peers[self._role[rank]]
        return float(peers.mean_ns[peers.place[rank]])


def _changing(late: int, peers: _Peers) -> Cause:
    """Cause where the rank is no slower on average: imbalance if it is in some steps, as with uneven batches."""
    own, others = peers.by_step_ns[peers.place[late]], np.delete(peers.by_step_ns, peers.place[late], axis=0)
    return Cause.IMBALANCE if np.any(own >= SLOWER_THRESHOLD * np.median(others, axis=0)) else Cause.UNEXPLAINED


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
