"""How far do the ranks' clocks stand apart? From the ends of collectives that nobody leaves early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.alignment.device_calls import SYNCHRONIZING_KINDS, Call
from stepscope.analyzer.alignment.matching import Matches

SAME_CLOCK_NS = 20_000
"""Ends of one collective differ by this much on one host (kernel exits are not simultaneous)."""

OUTLIER_MADS = 3.0
"""An offset within this many median absolute deviations is noise."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What to subtract from each rank's times to get the job's clock.

    Attributes:
        offset_ns: by rank.
        residual_us: spread (MAD) of the ends after correction; None when all ranks share one host's clock.
        unrelated: ranks whose clock nothing ties to the others'.
    """

    offset_ns: dict[int, int]
    residual_us: float | None
    unrelated: frozenset[int]


def estimate_clocks(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, host_of_rank: Mapping[int, str | None]
) -> Clocks:
    """Offsets between hosts; ranks of one named host share a clock, and so do ranks that show no offset.

    The offset of a host is the median, over collectives, of (its end - the members' median end).
    """
    named = set(host_of_rank.values())
    zero = dict.fromkeys(calls_of_rank, 0)
    if len(named) == 1 and None not in named:
        return Clocks(zero, None, frozenset())
    host = {rank: name if name is not None else f"rank {rank}" for rank, name in host_of_rank.items()}
    deviations: dict[str, list[float]] = defaultdict(list)
    for match in matches.collectives:
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        if any(call.kind not in SYNCHRONIZING_KINDS for call in calls.values()):
            continue
        middle = float(np.median([call.end_ns for call in calls.values()]))
        for rank, call in calls.items():
            deviations[host[rank]].append(call.end_ns - middle)
    offsets = {name: float(np.median(values)) for name, values in deviations.items()}
    spread = {name: float(np.median(np.abs(np.array(v) - offsets[name]))) for name, v in deviations.items()}
    if None in named and all(abs(o) <= max(SAME_CLOCK_NS, OUTLIER_MADS * spread[n]) for n, o in offsets.items()):
        return Clocks(zero, None, frozenset())
    related = {rank for rank in calls_of_rank if host[rank] in offsets}
    residual = max(spread.values(), default=0.0) / 1e3 if offsets else None
    return Clocks(
        {rank: round(offsets.get(host[rank], 0.0)) for rank in calls_of_rank},
        residual,
        frozenset(calls_of_rank.keys() - related) if len(set(host.values())) > 1 else frozenset(),
    )
