"""How fast were the collectives, how much of them was hidden, and who came last? From transfer time only.

Bandwidths by nccl-tests' definitions: algbw = size / time, busbw = algbw x what the algorithm moves for it. The time is
the shortest over the members from the last arrival to the end: a member that waited would make the link look slow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.device_calls import Call
from stepscope.analyzer.alignment.dimensions import dimension_of_members
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Collective
from stepscope.core.headings import COMPUTE_HEADINGS

_Key = tuple[tuple[int, ...], str, int | None]

_BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""busbw / algbw for n ranks; 1 for the rest."""


def collective_table(
    views: Mapping[int, RankView], matches: Matches, arrivals: Mapping[CallId, Arrival]
) -> list[Collective]:
    """One row for each group, kind and size, by transfer and waiting time, largest first."""
    rows: dict[_Key, list[list[CallId]]] = defaultdict(list)
    for match in matches.collectives:
        first = _call(views, next(iter(match.values())))
        rows[tuple(sorted(match)), first.kind, first.num_bytes].append(list(match.values()))
    seen: set[frozenset[CallId]] = set()
    for call, others in matches.peers.items():
        pair = frozenset([call, *others])
        if pair not in seen:
            seen.add(pair)
            one = _call(views, call)
            members = tuple(sorted({c.rank for c in pair}))
            rows[members, "p2p", one.num_bytes].append(list(pair))
    table = [_row(key, instances, views, arrivals) for key, instances in rows.items()]
    dimensions = dimension_of_members(group for view in views.values() for group in view.header.groups)
    table = [replace(row, dimension=_dimension(row, dimensions)) for row in table]
    return sorted(table, key=lambda row: -((row.transfer_ms or 0.0) + (row.wait_ms or 0.0)))


def _dimension(row: Collective, dimensions: Mapping[tuple[int, ...], str]) -> str | None:
    members = {int(rank) for rank in row.group.split(",")}
    exact = next((dimension for ranks, dimension in dimensions.items() if set(ranks) == members), None)
    if exact is None and row.kind == "p2p":  # a pair of a longer pipeline
        return next((d for ranks, d in dimensions.items() if d == "pp" and members <= set(ranks)), None)
    return exact


def _row(
    key: _Key, instances: list[list[CallId]], views: Mapping[int, RankView], arrivals: Mapping[CallId, Arrival]
) -> Collective:
    members, kind, num_bytes = key
    transfers, waits, skews, last = [], [], [], Counter[int]()
    for calls in instances:
        known = [c for c in calls if c in arrivals]
        if not known:
            continue
        starts = [_call(views, c).start_ns for c in calls]
        skews.append(max(starts) - min(starts))
        if skews[-1] > 0:
            last[arrivals[known[0]].rank] += 1
        ends = [(_call(views, c), arrivals[c].at_ns) for c in known]
        transfers.append(min(call.end_ns - min(max(call.start_ns, at), call.end_ns) for call, at in ends))
        waits.append(sum(max(min(at, call.end_ns) - call.start_ns, 0) for call, at in ends))
    transfer = float(np.median(transfers)) if transfers else None
    algbw = num_bytes / transfer if num_bytes and transfer else None
    factor = _BUS_FACTOR[kind](len(members)) if kind in _BUS_FACTOR else 1.0
    return Collective(
        group=",".join(map(str, members)),
        dimension=None,
        kind=kind,
        bytes=num_bytes,
        count=len(instances),
        algbw_gbs=algbw,
        busbw_gbs=None if algbw is None else algbw * factor,
        expected_busbw_gbs=None,
        transfer_ms=sum(transfers) / 1e6 if transfers else None,
        wait_ms=sum(waits) / 1e6 if waits else None,
        hidden=_hidden(instances, views),
        skew_ms=float(np.median(skews)) / 1e6 if skews else None,
        last_arriver=last.most_common(1)[0][0] if last else None,
    )


def _hidden(instances: list[list[CallId]], views: Mapping[int, RankView]) -> float:
    """Share of the calls' time, over all members, in which compute ran."""
    by_rank: dict[int, list[Call]] = defaultdict(list)
    for calls in instances:
        for call in calls:
            by_rank[call.rank].append(_call(views, call))
    total = covered = 0
    for rank, calls_of_rank in by_rank.items():
        start = np.array([c.start_ns for c in calls_of_rank], np.int64)
        end = np.array([c.end_ns for c in calls_of_rank], np.int64)
        total += int((end - start).sum())
        covered += int(covered_time(start, end, views[rank].segments.intervals_of(*COMPUTE_HEADINGS)).sum())
    return covered / total if total else 0.0


def _call(views: Mapping[int, RankView], call: CallId) -> Call:
    return views[call.rank].calls[call.place]
