"""How far does one host's clock stand before another's, judged by the calls that both took part in?

Ends of synchronising collectives, which nobody leaves early, say it to within some microseconds. Point-to-point calls
only bound it: what was received had been sent before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import SYNCHRONIZING_KINDS
from stepscope.analyzer.alignment.matching import Matches

Pair = tuple[str, str]
"""Two hosts, the lower name first."""

ENOUGH_ENDS = 3
"""Fewer shared collectives have no spread that could tell their offset from noise."""

OUTLIER_MADS = 3.0
"""An end further than this many median absolute deviations from the middle is left out (a preempted rank)."""
_FINEST_NS = 1_000.0
"""Deviations are not taken for smaller: GPU timestamps themselves step by up to a microsecond."""

ENOUGH_FOR_DRIFT = 20
DRIFT_SHOWS_FROM = 3.0
"""Drift is taken out when over the trace it moves the clocks by so many times what remains without it ..."""
DRIFT_HELPS_FROM = 0.7
"""... and when so much or less of the spread remains."""
MOST_DRIFT = 1e-3
"""Quartz clocks drift by at most 100 parts in a million; ten times that is no clock."""

WIDEST_BOUNDS = 0.1
"""Bounds wider than this share of the mean wait between the hosts leave open who waited (ledger, Clocks). Of the mean,
as the error is to be small against all of the waiting: most messages of a pipeline find their receiver there."""


@dataclass(frozen=True, slots=True)
class PairOffset:
    """How far the second host's clock stands before the first's.

    Attributes:
        ahead_ns: at `about_ns`.
        drift: change of `ahead_ns` for each nanosecond.
        residual_ns: median absolute deviation of the ends after correction, or half the width of the bounds.
        num_ends: collectives it rests on; 1 for bounds.
    """

    ahead_ns: float
    drift: float
    residual_ns: float
    num_ends: int


def offsets_by_ends(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host: Mapping[int, str], about_ns: int
) -> dict[Pair, PairOffset]:
    """For each pair of hosts that share enough synchronising collectives; the first host by name of each collective is
    compared with its others.

    Args:
        about_ns: the time at which the offsets are given.
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
    return {pair: _fit(np.array(values, np.float64)) for pair, values in samples.items() if len(values) >= ENOUGH_ENDS}


def _fit(samples: npt.NDArray[np.float64]) -> PairOffset:
    """Args: samples: (time, how far ahead), shape (ends, 2)."""
    time, ahead = samples.T
    kept = _kept(ahead - np.median(ahead))
    middle = float(np.median(ahead[kept]))
    spread = _deviation(ahead[kept] - middle)
    steady = PairOffset(middle, 0.0, spread, int(kept.sum()))
    length = float(time.max() - time.min())
    if len(time) < ENOUGH_FOR_DRIFT or length <= 0:
        return steady
    for _ in range(2):  # once more without what the first line leaves far off
        slope, start = _line(time[kept], ahead[kept])
        rest = ahead - (start + slope * time)
        kept = _kept(rest)
    after = _deviation(rest[kept])
    moved = abs(slope) * length
    if (
        moved < DRIFT_SHOWS_FROM * max(after, _FINEST_NS)
        or after > DRIFT_HELPS_FROM * spread
        or abs(slope) > MOST_DRIFT
    ):
        return steady
    return PairOffset(start, slope, after, int(kept.sum()))


def _line(time: npt.NDArray[np.float64], ahead: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Slope and value at 0 of the least squares' line; around the middle, as times may be large and close together."""
    middle = float(time.mean())
    centred = time - middle
    squares = float(centred @ centred)
    slope = float(centred @ ahead) / squares if squares else 0.0
    return slope, float(ahead.mean()) - slope * middle


def _kept(rest: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    kept: npt.NDArray[np.bool_] = np.abs(rest) <= OUTLIER_MADS * max(_deviation(rest), _FINEST_NS)
    return kept


def _deviation(rest: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(rest)))


def offsets_by_bounds(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host: Mapping[int, str]
) -> dict[Pair, PairOffset]:
    """For each pair of hosts with traffic both ways: the middle between the tightest bounds, where these are narrow
    against the waits that they are to explain."""
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
            if pair[0] == host[other.rank]:  # to the second: its clock is ahead by no more than this
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
        if 0 <= width <= WIDEST_BOUNDS * float(np.mean(waits)):
            found[pair] = PairOffset(middle, 0.0, width / 2, 1)
    return found


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)
