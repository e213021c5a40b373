"""Which ranks of a communicator are behind the others, by what NCCL's RAS says?"""

from __future__ import annotations

from collections import Counter

from stepscope.core.nccl_sources import RasCommunicator


def ranks_with_fewer_calls(one: RasCommunicator) -> list[int]:
    """Those that launched fewer collectives than most; by counts, which JSON alone has."""
    totals = {rank.rank: sum(rank.counts.values()) for rank in one.ranks if rank.counts}
    if len(set(totals.values())) < 2:
        return []
    most, _ = max(Counter(totals.values()).items(), key=lambda entry: (entry[1], entry[0]))
    return sorted(rank for rank, total in totals.items() if total < most)


def ranks_behind(one: RasCommunicator) -> list[int]:
    """The same, and those that are dead or do not answer, or that text names as unlike the others."""
    missing = {rank.rank for rank in one.missing}
    told = {rank for ranks, _ in one.problems for rank in ranks}
    return sorted(missing | told | set(ranks_with_fewer_calls(one)))
