"""How fast were the collectives, how much of them was hidden, and who came last? From transfer time only.

Bandwidths by nccl-tests' definitions: algbw = size / time, busbw = algbw x what the algorithm moves for it. The time is
the shortest over the members from the last arrival to the end: a member that waited would make the link look slow.
TraceLens, the best rival here, takes the shortest kernel of a collective, which is the same only if the last arriver
waits for nobody; it has neither what the link should give nor hidden time nor who was late.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.dimensions import dimension_of_members
from stepscope.analyzer.alignment.exposure import CallColumns
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Collective
from stepscope.core.hardware import find_gpu
from stepscope.core.links import Link, bus_factor, expected_seconds, is_latency_bound, scale_out_link, scale_up_link

MOST_GPUS_OF_A_HOST = 8
"""Hosts that the traces do not name: more ranks than this are not taken for one host's."""

ALIKE_UP_TO = 2.0
"""Sizes of an uneven all-to-all change with every call: those that lie no further apart than by this factor make one
row, so that the exchange of the counts stays apart from the tokens'."""


@dataclass(frozen=True, slots=True)
class _Key:
    members: tuple[int, ...]
    dimension: str | None
    kind: str
    num_bytes: int | None


def collective_table(
    views: Mapping[int, RankView],
    matches: Matches,
    arrivals: Mapping[CallId, Arrival],
    columns: CallColumns,
    *,
    network_bytes_per_second: float | None = None,
) -> list[Collective]:
    """One row for each group, dimension, kind and size, by transfer and waiting time, largest first.

    The size of an all-to-all to which each member brings another is the mean over the members, and such calls of
    similar sizes share a row.
    Calls that ended on all members before their windows began are left out: nothing of them is booked.
    """
    described = dimension_of_members(group for view in views.values() for group in view.header.groups)
    rows: dict[_Key, list[list[CallId]]] = defaultdict(list)
    uneven: dict[_Key, list[tuple[float, list[CallId]]]] = defaultdict(list)
    for match in matches.collectives:
        if not _is_in_window(views, match.values()):
            continue
        calls = list(match.values())
        key = _key(views, tuple(sorted(match)), calls[0], described)
        sizes = {views[c.rank].calls[c.place].num_bytes for c in calls} if key.kind == "all_to_all" else set()
        if len(sizes) > 1:
            uneven[replace(key, num_bytes=None)].append((_mean_bytes(views, calls), calls))
        else:
            rows[key].append(calls)
    for key, sized in uneven.items():
        for num_bytes, instances in _alike(sized):
            rows[replace(key, num_bytes=num_bytes)] += instances
    seen: set[frozenset[CallId]] = set()
    for call, others in matches.peers.items():
        pair = frozenset([call, *others])
        if pair not in seen and _is_in_window(views, pair):
            seen.add(pair)
            members = tuple(sorted({c.rank for c in pair}))
            rows[_key(views, members, call, described, kind="p2p")].append(list(pair))
    groups = {(key.members, key.kind) for key in rows}
    links = {
        (members, kind): link_of(views, members) or network_of(views, members, kind, network_bytes_per_second)
        for members, kind in groups
    }
    table = [_row(key, instances, links[key.members, key.kind], arrivals, columns) for key, instances in rows.items()]
    return sorted(table, key=lambda row: -((row.transfer_ms or 0.0) + (row.wait_ms or 0.0)))


def _mean_bytes(views: Mapping[int, RankView], calls: Iterable[CallId]) -> float:
    """Of the members that tell their size."""
    told = (views[c.rank].calls[c.place].num_bytes for c in calls)
    return float(np.mean([size for size in told if size is not None]))


def _alike(sized: list[tuple[float, list[CallId]]]) -> Iterable[tuple[int, list[list[CallId]]]]:
    """Calls of similar sizes together, each with the median of their sizes."""
    sized = sorted(sized, key=lambda one: one[0])
    sizes = np.array([size for size, _ in sized])
    begins = np.flatnonzero(sizes[1:] > ALIKE_UP_TO * sizes[:-1]) + 1
    for low, high in zip([0, *begins.tolist()], [*begins.tolist(), len(sized)], strict=True):
        yield round(float(np.median(sizes[low:high]))), [calls for _, calls in sized[low:high]]


def _is_in_window(views: Mapping[int, RankView], calls: Iterable[CallId]) -> bool:
    return any(views[c.rank].calls[c.place].end_ns > views[c.rank].window.start_ns for c in calls)


def _key(
    views: Mapping[int, RankView],
    members: tuple[int, ...],
    example: CallId,
    described: Mapping[tuple[int, ...], str],
    kind: str | None = None,
) -> _Key:
    call = views[example.rank].calls[example.place]
    return _Key(members, described.get(members) or call.dimension, kind or call.kind, call.num_bytes)


def link_of(views: Mapping[int, RankView], members: tuple[int, ...]) -> Link | None:
    """What the members' bytes should travel over within a host; None between hosts, between different or unknown GPUs,
    and on CPUs."""
    chosen = [views[rank] for rank in members]
    hosts = {view.header.host_name for view in chosen}
    names = {next((device.name for device in view.header.devices), None) for view in chosen}
    if len(hosts) > 1 or len(names) > 1 or not all(view.on_device for view in chosen):
        return None
    if None in hosts and len(members) > MOST_GPUS_OF_A_HOST:
        return None
    name = names.pop()
    gpu = find_gpu(name)
    return scale_up_link(gpu, name, len(members)) if gpu is not None and name is not None else None


def network_of(
    views: Mapping[int, RankView], members: tuple[int, ...], kind: str, network_bytes_per_second: float | None
) -> Link | None:
    """The same between hosts, whose network is not in the traces; None where nobody told its rate, where a host has no
    name, and on CPUs."""
    hosts = Counter(views[rank].header.host_name for rank in members)
    on_device = all(views[rank].on_device for rank in members)
    if network_bytes_per_second is None or None in hosts or len(hosts) < 2 or not on_device:
        return None
    largest = max(hosts, key=lambda host: hosts[host])
    within = tuple(rank for rank in members if views[rank].header.host_name == largest)
    link = link_of(views, within) if len(within) > 1 else None
    return scale_out_link(network_bytes_per_second, kind, list(hosts.values()), link)


def _row(
    key: _Key,
    instances: list[list[CallId]],
    link: Link | None,
    arrivals: Mapping[CallId, Arrival],
    columns: CallColumns,
) -> Collective:
    num_bytes, size = key.num_bytes, len(key.members)
    every = columns.places(call for calls in instances for call in calls)
    split = [calls for calls in instances if all(call in arrivals for call in calls)]
    transfers, skews, caused, times_last = _timings(split, arrivals, columns)
    transfer = float(np.median(transfers)) if len(transfers) else None
    algbw = num_bytes / transfer if num_bytes and transfer else None
    expected = latency_bound = None
    if link is not None and num_bytes:
        best = expected_seconds(link, key.kind, size, num_bytes)
        expected = num_bytes * bus_factor(key.kind, size) / best / 1e9
        latency_bound = is_latency_bound(link, key.kind, size, num_bytes)
    arriver = caused.most_common(1)[0][0] if caused else None
    return Collective(
        group=",".join(map(str, key.members)),
        dimension=key.dimension,
        kind=key.kind,
        bytes=num_bytes,
        count=len(instances),
        algbw_gbs=algbw,
        busbw_gbs=None if algbw is None else algbw * bus_factor(key.kind, size),
        expected_busbw_gbs=expected,
        transfer_ms=float(transfers.sum()) / 1e6 if len(transfers) else None,
        wait_ms=float(columns.wait[every].sum()) / 1e6 if len(transfers) else None,
        hidden=_hidden_share(columns, every),
        skew_ms=float(skews.mean()) / 1e6 if len(skews) else None,
        last_arriver=arriver,
        times_last=None if arriver is None else times_last[arriver],
        largest_skew_ms=float(skews.max()) / 1e6 if len(skews) else None,
        hidden_wait=_share(columns.hidden_wait[every], columns.wait[every]),
        hidden_transfer=_share(columns.hidden_transfer[every], columns.transfer[every]),
        exposed_wait_ms=float(columns.exposed_wait[every].sum()) / 1e6,
        exposed_transfer_ms=float(columns.exposed_transfer[every].sum()) / 1e6,
        link=str(link.kind) if link is not None else None,
        latency_bound=latency_bound,
    )


def _timings(
    instances: list[list[CallId]], arrivals: Mapping[CallId, Arrival], columns: CallColumns
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Counter[int], Counter[int]]:
    """Of each instance: the shortest transfer and the skew of the starts (nanoseconds). Of each rank: for how long it
    was waited (nanoseconds, all members together), and how often it came last.

    By the waiting, not by the count: who is 10 ms late once a step costs more than who is last by 4 us thrice.
    """
    caused, times_last = Counter[int](), Counter[int]()
    if not instances:
        return np.empty(0, np.int64), np.empty(0, np.int64), caused, times_last
    places = columns.places(call for calls in instances for call in calls)
    begins = np.cumsum([0, *(len(calls) for calls in instances[:-1])])
    transfers = np.minimum.reduceat(columns.transfer[places], begins)
    # by waits, not by starts, which cannot be compared where nothing ties the members' clocks together
    skews = np.maximum.reduceat(columns.wait[places], begins) - np.minimum.reduceat(columns.wait[places], begins)
    waits = np.add.reduceat(columns.wait[places], begins)
    for calls, skew, wait in zip(instances, skews.tolist(), waits.tolist(), strict=True):
        if skew > 0:
            last = max((arrivals[call] for call in calls), key=lambda a: a.at_ns).rank
            caused[last] += wait
            times_last[last] += 1
    return transfers, skews, caused, times_last


def _share(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None


def _hidden_share(columns: CallColumns, places: npt.NDArray[np.intp]) -> float:
    """Share of the calls' time, over all members, in which compute ran."""
    hidden = columns.hidden_wait[places] + columns.hidden_transfer[places] + columns.hidden_unsplit[places]
    return _share(hidden, columns.end[places] - columns.start[places]) or 0.0
