"""A rank computes longer than its peers: does it run more kernels, all kernels slower, or only some of them?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Evidence, KernelTime
from stepscope.core.causes import Reason

MOST = 0.5
"""A reason is named when it explains this share of the difference."""

EVENLY_SLOWER = 0.8
"""Share of the kernels' usual time that must be slower by about the same factor for a low clock."""

ABOUT = 0.5
"""About the same: within this part of the factor's excess over 1."""


def why_slower(late: Sequence[RankView], peers: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """Compare the worst late rank's kernels, name by name, with its peers' median.

    Without recorded kernels (CPU runs) nothing can be told, and nothing is.
    """
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
            more += excess  # kernels of one name need not be alike: what is more than usual is the additional ones'
            continue
        slower += excess
        if usual_ms and kernel.count:
            ratios.append((kernel.ms / kernel.count / usual_ms, kernel.count * usual_ms))
    total = more + slower
    if total <= 0:
        return [], []
    rank = [late[0].rank]
    evidence = [Evidence("share_of_difference_by_more_kernels", more / total, "ratio", MOST, ranks=rank)]
    if more >= MOST * total:
        return [Reason.EXTRA_WORK], evidence
    if not ratios:
        return [], evidence
    usual = sum(ms for _, ms in ratios)
    factor = sum(ratio * ms for ratio, ms in ratios) / usual
    even = sum(ms for ratio, ms in ratios if abs(ratio - factor) <= ABOUT * (factor - 1)) / usual
    evidence.append(Evidence("kernels_slower_by", factor, "times", ranks=rank))
    evidence.append(Evidence("share_of_time_slower_by_about_that", even, "ratio", EVENLY_SLOWER, ranks=rank))
    return [Reason.LOW_CLOCK if even >= EVENLY_SLOWER else Reason.SLOWER_KERNELS], evidence


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
