"""How large is each parallel dimension, judged by who communicates with whom?"""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS


def sizes_by_traffic(calls: Iterable[Call]) -> dict[str, int]:
    """Size by dimension: of the largest group that its collectives use; of the longest chain of ranks that pass
    activations on. Dimensions that nothing crosses are absent."""
    sizes: dict[str, int] = {}
    pairs: set[tuple[int, int]] = set()
    for call in calls:
        if call.kind in P2P_KINDS:
            pairs |= {(peer.source, peer.destination) for peer in call.peers if call.dimension == "pp"}
        elif call.dimension is not None and call.group is not None and len(call.group) > 1:
            sizes[call.dimension] = max(sizes.get(call.dimension, 1), len(call.group))
    longest = max((len(chain) for chain in _connected(pairs)), default=0)
    return sizes | {"pp": longest} if longest > 1 else sizes


def _connected(pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    chains: list[set[int]] = []
    for pair in sorted(pairs):
        met = [chain for chain in chains if not chain.isdisjoint(pair)]
        chains = [chain for chain in chains if chain.isdisjoint(pair)] + [set(pair).union(*met)]
    return chains
