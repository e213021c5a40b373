"""Clock alignment: offset and drift of each host's clock with their uncertainty, and which ranks share one.

Idea: nobody leaves a synchronizing collective early, so the ends of one coincide on all members, and the median
difference of two hosts' ends is the offset of their clocks, within some microseconds; over long traces a line through
the differences adds the drift. Point-to-point calls give bounds: what was received had been sent before. All hosts are
solved together by least squares over all pairs that met, weighted by the precision of each pair, as in dPRO (Hu et
al., MLSys 2022).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import SYNCHRONIZING_KINDS, Call, CallId, Matches

Pair = tuple[str, str]
"""Two hosts, in order of their names."""

MIN_ENDS = 3
"""Fewer shared collectives have no spread to separate their offset from noise."""

OUTLIER_MADS = 3.0
"""Ends further than this many median absolute deviations from the median are left out (a preempted rank)."""
_RESOLUTION_NS = 1_000.0
"""Lower bound of deviations: GPU timestamps have steps of up to a microsecond."""

MIN_ENDS_FOR_DRIFT = 20
MIN_DRIFT_RATIO = 3.0
"""Drift is corrected when over the trace it moves the clocks by this many times the remaining deviation ..."""
MAX_SPREAD_LEFT = 0.7
"""... and when at most this share of the spread remains."""
MAX_DRIFT = 1e-3
"""Quartz clocks drift by at most 100 ppm; ten times that is not a clock's drift."""

MAX_BOUNDS_SHARE = 0.1
"""Widest bounds as a share of the mean wait between the hosts: wider ones leave open who waited. The mean, as the error
has to be small against all of the waiting: most messages of a pipeline find their receiver waiting."""


class ClockOffset(NamedTuple):
    """How far the second host's clock is ahead of the first's, by the collectives that both take part in.

    Attributes:
        ahead_ns: at `about_ns`.
        drift: change of `ahead_ns` per nanosecond.
        residual_ns: median absolute deviation of the ends after correction, or half the width of the bounds.
        num_ends: collectives used; 1 for bounds.
    """

    ahead_ns: float
    drift: float
    residual_ns: float
    num_ends: int


def _clock_offsets_by_ends(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host: Mapping[int, str], about_ns: int
) -> dict[Pair, ClockOffset]:
    """Offsets of pairs of hosts with enough common synchronizing collectives; in each of these the first host by name
    is compared with the others.

    Args:
        about_ns: the time to which the offsets refer.
    """
    samples: dict[Pair, list[tuple[int, int]]] = defaultdict(list)
    for match in matches.collectives:
        hosts = {host[rank] for rank in match}
        if len(hosts) < 2:
            continue
        calls = [calls_of_rank[rank][call.place] for rank, call in match.items()]
        if any(call.kind not in SYNCHRONIZING_KINDS for call in calls):
            continue
        ends: dict[str, list[int]] = defaultdict(list)
        for call in calls:
            ends[host[call.rank]].append(call.end_ns)
        middle = {name: sorted(of_host)[len(of_host) // 2] for name, of_host in ends.items()}
        first = min(middle)
        for name, end in middle.items():
            if name != first:
                samples[first, name].append((middle[first] - about_ns, end - middle[first]))
    return {pair: _fit(np.array(values, np.float64)) for pair, values in samples.items() if len(values) >= MIN_ENDS}


def _fit(samples: npt.NDArray[np.float64]) -> ClockOffset:
    """Robust line through samples of (time, nanoseconds ahead), shape (ends, 2); a constant unless drift is clear."""
    time, ahead = samples.T
    kept = _kept(ahead - np.median(ahead))
    middle = float(np.median(ahead[kept]))
    spread = _deviation(ahead[kept] - middle)
    steady = ClockOffset(middle, 0.0, spread, int(kept.sum()))
    length = float(time.max() - time.min())
    if len(time) < MIN_ENDS_FOR_DRIFT or length <= 0:
        return steady
    for _ in range(2):  # the second time without the first line's outliers
        slope, start = _line(time[kept], ahead[kept])
        rest = ahead - (start + slope * time)
        kept = _kept(rest)
    after = _deviation(rest[kept])
    moved = abs(slope) * length
    if (
        moved < MIN_DRIFT_RATIO * max(after, _RESOLUTION_NS)
        or after > MAX_SPREAD_LEFT * spread
        or abs(slope) > MAX_DRIFT
    ):
        return steady
    return ClockOffset(start, slope, after, int(kept.sum()))


def _line(time: npt.NDArray[np.float64], ahead: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line; centred, as times may be large and close together."""
    middle = float(time.mean())
    centred = time - middle
    squares = float(centred @ centred)
    slope = float(centred @ ahead) / squares if squares else 0.0
    return slope, float(ahead.mean()) - slope * middle


def _kept(rest: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    kept: npt.NDArray[np.bool_] = np.abs(rest) <= OUTLIER_MADS * max(_deviation(rest), _RESOLUTION_NS)
    return kept


def _deviation(rest: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(rest)))


def _clock_offsets_by_messages(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host: Mapping[int, str]
) -> dict[Pair, ClockOffset]:
    """Offsets of pairs of hosts with messages both ways: the middle of the tightest bounds, where these are narrow
    against the waits that they explain."""
    above: dict[Pair, int] = {}
    below: dict[Pair, int] = {}
    starts: dict[Pair, list[tuple[int, int]]] = defaultdict(list)
    for identity, others in matches.peers.items():
        own = calls_of_rank[identity.rank][identity.place]
        sources = {peer.source for peer in own.peers if peer.destination == identity.rank}
        for other in others:
            if other.rank not in sources or host[other.rank] == host[identity.rank]:
                continue
            sent = calls_of_rank[other.rank][other.place].start_ns
            pair = _pair(host[other.rank], host[identity.rank])
            if pair[0] == host[other.rank]:  # sent to the second host: its clock is ahead by no more than this
                above[pair] = min(above.get(pair, own.end_ns - sent), own.end_ns - sent)
                starts[pair].append((sent, own.start_ns))
            else:
                below[pair] = max(below.get(pair, sent - own.end_ns), sent - own.end_ns)
                starts[pair].append((own.start_ns, sent))
    found = {}
    for pair in above.keys() & below.keys():
        width = above[pair] - below[pair]
        middle = (above[pair] + below[pair]) / 2
        waits = [abs(second - first - middle) for first, second in starts[pair]]
        if 0 <= width <= MAX_BOUNDS_SHARE * float(np.mean(waits)):
            found[pair] = ClockOffset(middle, 0.0, width / 2, 1)
    return found


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)


SAME_CLOCK_NS = 50_000
"""Largest difference of a collective's ends between GPUs of one host (the last arriver leaves later: 21 us on the
recorded straggler). Hosts without a recorded name within it are taken for one."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Corrections from each rank's clock to the job's clock, on which collectives are compared.

    Attributes:
        offset_ns: by rank, to subtract, at `about_ns`.
        residual_us: the largest spread (MAD) of the ends after correction between two hosts; None when all ranks share
            one host's clock.
        island: by rank; the clocks of different islands cannot be compared.
        drift: by rank, change of the offset per nanosecond; empty without noticeable drift.
        about_ns: the time to which `offset_ns` refers.
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

    def are_within(self, largest_ns: float) -> bool:
        """Whether the ranks' clocks differ by no more than this, and do not drift."""
        largest = max(map(abs, self.offset_ns.values()), default=0)
        return len(set(self.island.values())) == 1 and not self.drift and largest <= largest_ns

    def uncertainty_ns(self, rank: int, other: int) -> float:
        """Error of the two ranks' times against each other after correction: 0 on one host, the pair's residual, or the
        largest one if the hosts never met."""
        one, two = self.host.get(rank, ""), self.host.get(other, "")
        if one == two:
            return 0.0
        return self.residual_ns.get(_pair(one, two), max(self.residual_ns.values(), default=0.0))


def estimate_clocks(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host_of_rank: Mapping[int, str | None]
) -> Clocks:
    """Collectives: align the clocks of all hosts by their calls; ranks of one named host share a clock.

    Offsets come from the ends of common collectives; bounds by messages only tie hosts together that have none. Hosts
    that never meet are compared through others.
    """
    named = set(host_of_rank.values())
    one_clock = Clocks(dict.fromkeys(calls_of_rank, 0), None, dict.fromkeys(calls_of_rank, 0))
    if len(named) == 1 and None not in named:
        return one_clock
    host = {rank: name if name is not None else f"rank {rank}" for rank, name in host_of_rank.items()}
    ends = [call.end_ns for calls in calls_of_rank.values() for call in (calls[:1] + calls[-1:])]
    about = (min(ends) + max(ends)) // 2 if ends else 0  # in the middle, an error of the drift matters least
    pairs = _clock_offsets_by_ends(calls_of_rank, matches, host, about)
    if None in named and all(
        abs(pair.ahead_ns) <= max(SAME_CLOCK_NS, OUTLIER_MADS * pair.residual_ns) for pair in pairs.values()
    ):
        return one_clock
    hosts = sorted(set(host.values()))
    tied = _islands(hosts, pairs)
    pairs |= {
        pair: offset
        for pair, offset in _clock_offsets_by_messages(calls_of_rank, matches, host).items()
        if tied[pair[0]] != tied[pair[1]]
    }
    island = _islands(hosts, pairs)
    ahead = _solve(hosts, island, {pair: (p.ahead_ns, _weight(p)) for pair, p in pairs.items()})
    drift = {}
    if any(p.drift for p in pairs.values()):
        drift = _solve(hosts, island, {pair: (p.drift, _weight(p)) for pair, p in pairs.items()})
    return Clocks(
        offset_ns={rank: round(ahead[host[rank]]) for rank in calls_of_rank},
        residual_us=max(p.residual_ns for p in pairs.values()) / 1e3 if pairs else None,
        island={rank: island[host[rank]] for rank in calls_of_rank},
        drift={rank: drift[host[rank]] for rank in calls_of_rank} if drift else {},
        about_ns=about,
        host=host,
        residual_ns={pair: p.residual_ns for pair, p in pairs.items()},
    )


def _islands(hosts: Sequence[str], pairs: Iterable[Pair]) -> dict[str, int]:
    """Connected components: hosts tied by pairs, directly or through others, have the same number."""
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


def _weight(pair: ClockOffset) -> float:
    """Inverse of the standard error of the pair's median, up to a factor."""
    return float(np.sqrt(pair.num_ends)) / max(pair.residual_ns, 1_000.0)


def _solve(
    hosts: Sequence[str], island: Mapping[str, int], pairs: Mapping[Pair, tuple[float, float]]
) -> dict[str, float]:
    """Weighted least-squares values of all hosts from their differences; the first host of each island is 0.

    Args:
        pairs: the second host's value minus the first's, and its weight.
    """
    solved = dict.fromkeys(hosts, 0.0)
    for number in sorted(set(island.values())):
        members = [name for name in hosts if island[name] == number]
        column = {name: place for place, name in enumerate(members[1:])}  # the first is the island's zero
        if not column:
            continue
        equations = [(pair, value, weight) for pair, (value, weight) in pairs.items() if island[pair[0]] == number]
        matrix, right = np.zeros((len(equations), len(column))), np.zeros(len(equations))
        for row, ((one, other), value, weight) in enumerate(equations):
            if one in column:
                matrix[row, column[one]] = -weight
            if other in column:
                matrix[row, column[other]] = weight
            right[row] = value * weight
        solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
        solved |= dict(zip(members[1:], solution.tolist(), strict=True))
    return solved


MIN_OFFSET_SPREADS = 10.0
"""A host name covers several machines when its ranks' ends are apart by this many times their spread. A straggler that
leaves late (20 us on the recorded one) and gloo's ranks (66 us with a spread of 44) stay on one machine."""


def machine_of_rank(
    calls_of_rank: Mapping[int, list[Call]],
    matches: Matches,
    host_of_rank: Mapping[int, str | None],
    largest_offset_ns: float,
) -> dict[int, str | None]:
    """Collectives: machine of each rank: its host name, numbered where ranks of one name have different clocks.

    Idea: the ends of synchronizing collectives coincide within some 20 us on the GPUs of one machine; on two machines
    they are apart by the difference of the clocks.

    Args:
        largest_offset_ns: larger differences are calls matched wrongly (by a whole step), not clocks.
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, name in host_of_rank.items():
        if name is not None:
            ranks_of[name].append(rank)
    shared: dict[str, list[dict[int, CallId]]] = defaultdict(list)
    for match in matches.collectives:
        of_host: dict[str, dict[int, CallId]] = defaultdict(dict)
        for rank, call in match.items():
            if (name := host_of_rank.get(rank)) is not None:
                of_host[name][rank] = call
        for name, calls in of_host.items():
            if len(calls) > 1:
                shared[name].append(calls)
    machine = dict(host_of_rank)
    for name, ranks in ranks_of.items():
        own = replace(matches, collectives=shared[name])
        clusters = _clusters(calls_of_rank, own, sorted(ranks), largest_offset_ns) if len(ranks) > 1 else []
        for number, cluster in enumerate(clusters[1:], start=2):
            machine |= dict.fromkeys(cluster, f"{name} (machine {number})")
    return machine


def _clusters(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, ranks: Sequence[int], largest_offset_ns: float
) -> list[list[int]]:
    """Ranks by clock, those of the lowest rank first; all together unless their ends contradict that."""
    names = {rank: f"{rank:09d}" for rank in ranks}
    pairs = _clock_offsets_by_ends(calls_of_rank, matches, names, 0)
    are_apart = any(abs(p.ahead_ns) > max(SAME_CLOCK_NS, MIN_OFFSET_SPREADS * p.residual_ns) for p in pairs.values())
    if not are_apart or any(abs(pair.ahead_ns) > largest_offset_ns for pair in pairs.values()):
        return [list(ranks)]
    island = _islands(list(names.values()), pairs)
    ahead = _solve(list(names.values()), island, {pair: (p.ahead_ns, _weight(p)) for pair, p in pairs.items()})
    clusters: list[list[int]] = []
    before = None
    for place, value, rank in sorted((island[names[rank]], ahead[names[rank]], rank) for rank in ranks):
        if before is not None and before[0] == place and value - before[1] <= SAME_CLOCK_NS:
            clusters[-1].append(rank)
        else:
            clusters.append([rank])
        before = place, value
    return sorted(sorted(cluster) for cluster in clusters)
