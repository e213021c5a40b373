"""How far do the ranks' clocks stand apart? From the ends of collectives that nobody leaves early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.device_calls import SYNCHRONIZING_KINDS, Call
from stepscope.analyzer.alignment.matching import Matches

SAME_CLOCK_NS = 50_000
"""Up to here the ends of a collective differ between GPUs of one host (the last arriver leaves later: 21 us on the
recorded straggler); a host that the traces do not name is taken for the same."""

OUTLIER_MADS = 3.0
"""An offset within this many median absolute deviations is noise."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What to subtract from each rank's times to get the job's clock.

    Attributes:
        offset_ns: by rank.
        residual_us: spread (MAD) of the ends after correction; None when all ranks share one host's clock.
        island: by rank; ranks of different islands have clocks that nothing ties together.
    """

    offset_ns: dict[int, int]
    residual_us: float | None
    island: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Difference:
    """How far one host's clock stands before another's: median and median absolute deviation, nanoseconds."""

    middle_ns: float
    spread_ns: float


def estimate_clocks(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host_of_rank: Mapping[int, str | None]
) -> Clocks:
    """Offsets between hosts; ranks of one named host share a clock, and so do ranks that show no offset.

    Two hosts differ by the median, over the collectives that both took part in, of the difference of their ends.
    Collectives within one host say nothing. Hosts that never meet are compared through others.
    """
    named = set(host_of_rank.values())
    one_clock = Clocks(dict.fromkeys(calls_of_rank, 0), None, dict.fromkeys(calls_of_rank, 0))
    if len(named) == 1 and None not in named:
        return one_clock
    host = {rank: name if name is not None else f"rank {rank}" for rank, name in host_of_rank.items()}
    differences = _differences(calls_of_rank, matches, host)
    if None in named and all(
        abs(d.middle_ns) <= max(SAME_CLOCK_NS, OUTLIER_MADS * d.spread_ns) for d in differences.values()
    ):
        return one_clock
    offset, island = _walk(sorted(set(host.values())), differences)
    return Clocks(
        {rank: round(offset[host[rank]]) for rank in calls_of_rank},
        max((d.spread_ns for d in differences.values()), default=0.0) / 1e3 if differences else None,
        {rank: island[host[rank]] for rank in calls_of_rank},
    )


def _differences(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host: Mapping[int, str]
) -> dict[tuple[str, str], _Difference]:
    """(a, b) -> how far b's clock stands before a's; a is the first host by name of each collective."""
    samples: dict[tuple[str, str], list[int]] = defaultdict(list)
    for match in matches.collectives:
        calls = [calls_of_rank[rank][call.place] for rank, call in match.items()]
        if any(call.kind not in SYNCHRONIZING_KINDS for call in calls):
            continue
        ends: dict[str, list[int]] = defaultdict(list)
        for call in calls:
            ends[host[call.rank]].append(call.end_ns)
        if len(ends) < 2:
            continue
        middle = {name: sorted(of_host)[len(of_host) // 2] for name, of_host in ends.items()}
        first = min(middle)
        for name, end in middle.items():
            if name != first:
                samples[first, name].append(end - middle[first])
    return {pair: _middle(np.array(values)) for pair, values in samples.items()}


def _middle(values: npt.NDArray[np.int64]) -> _Difference:
    middle = float(np.median(values))
    return _Difference(middle, float(np.median(np.abs(values - middle))))


def _walk(
    hosts: Sequence[str], differences: Mapping[tuple[str, str], _Difference]
) -> tuple[dict[str, float], dict[str, int]]:
    """Go from host to host along the differences: each host's offset from the first of its island."""
    neighbours: dict[str, dict[str, float]] = defaultdict(dict)
    for (a, b), difference in differences.items():
        neighbours[a][b] = difference.middle_ns
        neighbours[b][a] = -difference.middle_ns
    offset: dict[str, float] = {}
    island: dict[str, int] = {}
    for number, start in enumerate(hosts):
        if start in offset:
            continue
        offset[start], island[start] = 0.0, number
        reached = [start]
        for name in reached:
            for neighbour, ahead in neighbours[name].items():
                if neighbour not in offset:
                    offset[neighbour], island[neighbour] = offset[name] + ahead, number
                    reached.append(neighbour)
    return offset, island
