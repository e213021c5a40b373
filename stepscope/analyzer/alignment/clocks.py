"""How far do the ranks' clocks stand apart, how fast do they drift, and how sure is that?

All hosts are solved together from all pairs that met, each pair weighing by how well it is known (dPRO does the same;
HTA subtracts each rank's first timestamp, which takes a late rank for a late clock).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.clock_pairs import (
    OUTLIER_MADS,
    Pair,
    PairOffset,
    offsets_by_bounds,
    offsets_by_ends,
)
from stepscope.analyzer.alignment.matching import Matches

SAME_CLOCK_NS = 50_000
"""Up to here the ends of a collective differ between GPUs of one host (the last arriver leaves later: 21 us on the
recorded straggler); a host that the traces do not name is taken for the same."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What to subtract from each rank's times to get the job's clock.

    Attributes:
        offset_ns: by rank, at `about_ns`.
        residual_us: the largest spread (MAD) of the ends after correction between two hosts; None when all ranks share
            one host's clock.
        island: by rank; ranks of different islands have clocks that nothing ties together.
        drift: by rank, change of the offset for each nanosecond; empty where no clock drifts noticeably.
        about_ns: the time that `offset_ns` is of.
        host: by rank; empty when all share one clock.
        residual_ns: the spread by pair of hosts that met.
    """

    offset_ns: dict[int, int]
    residual_us: float | None
    island: dict[int, int]
    drift: dict[int, float] = field(default_factory=dict)
    about_ns: int = 0
    host: dict[int, str] = field(default_factory=dict)
    residual_ns: dict[Pair, float] = field(default_factory=dict)

    def to_job(self, rank: int, time_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Times of a rank on the job's clock."""
        time = np.asarray(time_ns, np.int64)
        corrected = time - self.offset_ns[rank]
        drift = self.drift.get(rank, 0.0)
        if not drift:
            return corrected
        drifted: npt.NDArray[np.int64] = np.rint((time - self.about_ns) * drift).astype(np.int64)
        return corrected - drifted

    def moves(self, rank: int) -> bool:
        """Whether the rank's times change at all."""
        return self.offset_ns[rank] != 0 or self.drift.get(rank, 0.0) != 0

    def uncertainty_ns(self, rank: int, other: int) -> float:
        """By how much the two ranks' times may be apart after correction: 0 on one host, the pair's residual, else
        (they never met) the largest of all."""
        one, two = self.host.get(rank, ""), self.host.get(other, "")
        if one == two:
            return 0.0
        pair = (one, two) if one < two else (two, one)
        return self.residual_ns.get(pair, max(self.residual_ns.values(), default=0.0))


def estimate_clocks(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host_of_rank: Mapping[int, str | None]
) -> Clocks:
    """Offsets between hosts; ranks of one named host share a clock, and so do ranks that show no offset.

    Two hosts differ by the median, over the collectives that both took part in, of the difference of their ends, and
    on long traces by a line through them; hosts that only pass activations on are bounded by these. Collectives within
    one host say nothing. Hosts that never meet are compared through others.
    """
    named = set(host_of_rank.values())
    one_clock = Clocks(dict.fromkeys(calls_of_rank, 0), None, dict.fromkeys(calls_of_rank, 0))
    if len(named) == 1 and None not in named:
        return one_clock
    host = {rank: name if name is not None else f"rank {rank}" for rank, name in host_of_rank.items()}
    about = _middle_of(calls_of_rank)
    pairs = offsets_by_ends(calls_of_rank, matches, host, about)
    if None in named and all(
        abs(pair.ahead_ns) <= max(SAME_CLOCK_NS, OUTLIER_MADS * pair.residual_ns) for pair in pairs.values()
    ):
        return one_clock
    hosts = sorted(set(host.values()))
    tied = islands(hosts, pairs)
    pairs |= {
        pair: offset
        for pair, offset in offsets_by_bounds(calls_of_rank, matches, host).items()
        if tied[pair[0]] != tied[pair[1]]
    }
    island = islands(hosts, pairs)
    ahead = solve(hosts, island, {pair: (p.ahead_ns, weight(p)) for pair, p in pairs.items()})
    drift = {}
    if any(p.drift for p in pairs.values()):
        drift = solve(hosts, island, {pair: (p.drift, weight(p)) for pair, p in pairs.items()})
    return Clocks(
        offset_ns={rank: round(ahead[host[rank]]) for rank in calls_of_rank},
        residual_us=max(p.residual_ns for p in pairs.values()) / 1e3 if pairs else None,
        island={rank: island[host[rank]] for rank in calls_of_rank},
        drift={rank: drift[host[rank]] for rank in calls_of_rank} if drift else {},
        about_ns=about,
        host=host,
        residual_ns={pair: p.residual_ns for pair, p in pairs.items()},
    )


def _middle_of(calls_of_rank: Mapping[int, list[Call]]) -> int:
    """A time in the middle of the trace, where an error of the drift does least."""
    ends = [call.end_ns for calls in calls_of_rank.values() for call in (calls[:1] + calls[-1:])]
    return (min(ends) + max(ends)) // 2 if ends else 0


def islands(hosts: Sequence[str], pairs: Iterable[Pair]) -> dict[str, int]:
    """Hosts that pairs tie together, directly or through others, have the same number."""
    neighbours: dict[str, list[str]] = defaultdict(list)
    for one, other in pairs:
        neighbours[one].append(other)
        neighbours[other].append(one)
    island: dict[str, int] = {}
    for number, start in enumerate(hosts):
        if start in island:
            continue
        island[start] = number
        reached = [start]
        for name in reached:
            for neighbour in neighbours[name]:
                if neighbour not in island:
                    island[neighbour] = number
                    reached.append(neighbour)
    return island


def weight(pair: PairOffset) -> float:
    """One over the standard error of the pair's median, up to a factor."""
    return float(np.sqrt(pair.num_ends)) / max(pair.residual_ns, 1_000.0)


def solve(
    hosts: Sequence[str], island: Mapping[str, int], pairs: Mapping[Pair, tuple[float, float]]
) -> dict[str, float]:
    """The values of all hosts that fit all differences best, the first of each island being 0.

    Args:
        pairs: the second host's value less the first's, and its weight.
    """
    solved = dict.fromkeys(hosts, 0.0)
    for number in sorted(set(island.values())):
        members = [name for name in hosts if island[name] == number]
        column = {name: place for place, name in enumerate(members[1:])}  # the first is the island's zero
        told = [(pair, value, weight) for pair, (value, weight) in pairs.items() if island[pair[0]] == number]
        if not column:
            continue
        matrix, right = np.zeros((len(told), len(column))), np.zeros(len(told))
        for row, ((one, other), value, weight) in enumerate(told):
            if one in column:
                matrix[row, column[one]] = -weight
            if other in column:
                matrix[row, column[other]] = weight
            right[row] = value * weight
        solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
        solved |= dict(zip(members[1:], solution.tolist(), strict=True))
    return solved
