"""Do ranks that name the same host share one clock? Containers and cloned images all call themselves localhost.

The ends of synchronising collectives tell: on the GPUs of one machine they lie within some 20 us, on two machines they
stay apart by how far the clocks are. No rival looks: HTA and TraceLens trust the timestamps within a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.clock_pairs import Pair, PairOffset, offsets_by_ends
from stepscope.analyzer.alignment.clocks import SAME_CLOCK_NS, islands, solve, weight
from stepscope.analyzer.alignment.matching import Matches

CERTAIN_FROM = 10.0
"""A named host counts as several machines when its ranks' ends lie apart by so many times their spread: a straggler
that leaves late (20 us on the recorded one), or gloo's ranks (66 us with a spread of 44), are no other machine."""


def machine_of_rank(
    calls_of_rank: Mapping[int, list[Call]],
    matches: Matches,
    host_of_rank: Mapping[int, str | None],
    largest_offset_ns: float,
) -> dict[int, str | None]:
    """The host of each rank, where ranks of one name with different clocks get names of their own.

    Args:
        largest_offset_ns: what is further apart is taken for calls matched wrongly (by a whole step), not for clocks.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, name in host_of_rank.items():
        if name is not None:
            ranks_of[name].append(rank)
    machine = dict(host_of_rank)
    for name, ranks in ranks_of.items():
        clusters = _clusters(calls_of_rank, matches, sorted(ranks), largest_offset_ns) if len(ranks) > 1 else []
        for number, cluster in enumerate(clusters[1:], start=2):
            machine |= dict.fromkeys(cluster, f"{name} (machine {number})")
    return machine


def _clusters(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, ranks: Sequence[int], largest_offset_ns: float
) -> list[list[int]]:
    """Ranks with the same clock together, the lowest first; all together unless their ends contradict that."""
    chosen = set(ranks)
    own = [{rank: call for rank, call in match.items() if rank in chosen} for match in matches.collectives]
    names = {rank: f"{rank:09d}" for rank in ranks}
    pairs = offsets_by_ends(calls_of_rank, replace(matches, collectives=[m for m in own if len(m) > 1]), names, 0)
    if not any(_contradicts(pair, largest_offset_ns) for pair in pairs.values()):
        return [list(ranks)]
    if any(abs(pair.ahead_ns) > largest_offset_ns for pair in pairs.values()):
        return [list(ranks)]
    return _alike(ranks, names, pairs)


def _contradicts(pair: PairOffset, largest_offset_ns: float) -> bool:
    return max(SAME_CLOCK_NS, CERTAIN_FROM * pair.residual_ns) < abs(pair.ahead_ns) <= largest_offset_ns


def _alike(ranks: Sequence[int], names: Mapping[int, str], pairs: Mapping[Pair, PairOffset]) -> list[list[int]]:
    island = islands(list(names.values()), pairs)
    ahead = solve(list(names.values()), island, {pair: (p.ahead_ns, weight(p)) for pair, p in pairs.items()})
    clusters: list[list[int]] = []
    before = None
    for place, value, rank in sorted((island[names[rank]], ahead[names[rank]], rank) for rank in ranks):
        if before is not None and before[0] == place and value - before[1] <= SAME_CLOCK_NS:
            clusters[-1].append(rank)
        else:
            clusters.append([rank])
        before = place, value
    return sorted(sorted(cluster) for cluster in clusters)
