"""Communication of a job: collectives and their bandwidth, cost by dimension, late ranks, transfer faults.

Bandwidths as in nccl-tests: algbw = size / time, busbw = algbw x the algorithm's factor. The time is the shortest over
the members from the last arrival to the end: with the wait of a member included, the link would look slow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.arrivals import Arrival, CallColumns
from stepscope.analyzer.collectives.calls import SYNCHRONIZING_KINDS, CallId, Matches
from stepscope.analyzer.collectives.process_groups import dimension_of_members
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Collective, DimensionCost, RankArrivals
from stepscope.core.hardware import gpu_catalogue
from stepscope.core.hardware.gpu_catalogue import Link, LinkKind, find_gpu
from stepscope.core.vocabulary import Evidence, Reason

MAX_GPUS_PER_HOST = 8
"""More ranks than this are not taken for one host's where the traces name no host."""

MAX_SIZE_RATIO = 2.0
"""Largest ratio of neighbouring sizes in one row of an uneven all-to-all, whose sizes change with every call; so the
exchange of counts and that of tokens get separate rows."""


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
    """Collectives by group, dimension, kind and size: bandwidth, transfer and waiting time, largest first.

    The size of an uneven all-to-all is the mean over the members, and calls of similar sizes share a row. Calls that
    ended on all members before their windows are left out.
    """
    described = dimension_of_members(group for view in views.values() for group in view.header.groups)
    rows: dict[_Key, list[list[CallId]]] = defaultdict(list)
    uneven: dict[_Key, list[tuple[float, list[CallId]]]] = defaultdict(list)
    for match in matches.collectives:
        if not _is_in_window(views, match.values()):
            continue
        calls = list(match.values())
        key = _key(views, tuple(sorted(match)), calls[0], described)
        sizes_of_calls = [views[c.rank].calls[c.place].num_bytes for c in calls]
        if key.kind == "all_to_all" and len(set(sizes_of_calls)) > 1:
            mean_bytes = float(np.mean([size for size in sizes_of_calls if size is not None]))
            uneven[replace(key, num_bytes=None)].append((mean_bytes, calls))
        else:
            rows[key].append(calls)
    for key, sized in uneven.items():
        for num_bytes, instances in _by_size(sized):
            rows[replace(key, num_bytes=num_bytes)] += instances
    seen: set[frozenset[CallId]] = set()
    for call, others in matches.peers.items():
        pair = frozenset([call, *others])
        if pair not in seen and _is_in_window(views, pair):
            seen.add(pair)
            members = tuple(sorted({c.rank for c in pair}))
            rows[_key(views, members, call, described, kind="p2p")].append(list(pair))
    groups = {(key.members, key.kind) for key in rows}
    link_of_group = {
        (members, kind): expected_link(views, members)
        or _expected_network(views, members, kind, network_bytes_per_second)
        for members, kind in groups
    }
    table = [
        _row(key, instances, link_of_group[key.members, key.kind], arrivals, columns) for key, instances in rows.items()
    ]
    return sorted(table, key=lambda row: -((row.transfer_ms or 0.0) + (row.wait_ms or 0.0)))


def _by_size(sized: list[tuple[float, list[CallId]]]) -> Iterable[tuple[int, list[list[CallId]]]]:
    """Calls grouped by similar size, with the median size of each group."""
    sized = sorted(sized, key=lambda one: one[0])
    sizes = np.array([size for size, _ in sized])
    begins = np.flatnonzero(sizes[1:] > MAX_SIZE_RATIO * sizes[:-1]) + 1
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


def expected_link(views: Mapping[int, RankView], members: tuple[int, ...]) -> Link | None:
    """Link that a process group's members on one host should reach; None between hosts and where unknown."""
    chosen = [views[rank] for rank in members]
    hosts = {view.header.host_name for view in chosen}
    names = {next((device.name for device in view.header.devices), None) for view in chosen}
    if len(hosts) > 1 or len(names) > 1 or not all(view.on_device for view in chosen):
        return None
    if None in hosts and len(members) > MAX_GPUS_PER_HOST:
        return None
    name = names.pop()
    gpu = find_gpu(name)
    return gpu_catalogue.scale_up_link(gpu, name, len(members)) if gpu is not None and name is not None else None


def _expected_network(
    views: Mapping[int, RankView], members: tuple[int, ...], kind: str, network_bytes_per_second: float | None
) -> Link | None:
    """Expected network link between hosts; None without a given rate, for hosts without name, and on CPUs."""
    hosts = Counter(views[rank].header.host_name for rank in members)
    on_device = all(views[rank].on_device for rank in members)
    if network_bytes_per_second is None or None in hosts or len(hosts) < 2 or not on_device:
        return None
    largest = max(hosts, key=lambda host: hosts[host])
    within = tuple(rank for rank in members if views[rank].header.host_name == largest)
    link = expected_link(views, within) if len(within) > 1 else None
    return gpu_catalogue.scale_out_link(network_bytes_per_second, kind, list(hosts.values()), link)


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
        best = gpu_catalogue.expected_seconds(link, key.kind, size, num_bytes)
        expected = num_bytes * gpu_catalogue.bus_factor(key.kind, size) / best / 1e9
        latency_bound = gpu_catalogue.is_latency_bound(link, key.kind, size, num_bytes)
    arriver = caused.most_common(1)[0][0] if caused else None
    hidden = columns.hidden_wait[every] + columns.hidden_transfer[every] + columns.hidden_unsplit[every]
    return Collective(
        group=",".join(map(str, key.members)),
        dimension=key.dimension,
        kind=key.kind,
        bytes=num_bytes,
        count=len(instances),
        algbw_gbs=algbw,
        busbw_gbs=None if algbw is None else algbw * gpu_catalogue.bus_factor(key.kind, size),
        expected_busbw_gbs=expected,
        transfer_ms=float(transfers.sum()) / 1e6 if len(transfers) else None,
        wait_ms=float(columns.wait[every].sum()) / 1e6 if len(transfers) else None,
        hidden=_share(hidden, columns.end[every] - columns.start[every]) or 0.0,
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
    """By instance, the shortest transfer and the skew of the starts; by rank, the waiting of all members for it and how
    often it was last; times in nanoseconds."""
    caused, times_last = Counter[int](), Counter[int]()
    if not instances:
        return np.empty(0, np.int64), np.empty(0, np.int64), caused, times_last
    places = columns.places(call for calls in instances for call in calls)
    begins = np.cumsum([0, *(len(calls) for calls in instances[:-1])])
    transfers = np.minimum.reduceat(columns.transfer[places], begins)
    # by waits, not by starts, which cannot be compared without a common clock
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


OVERLAP_THRESHOLD = 0.1
"""Hidden share below which transfers are not overlapped; recorded DDP and FSDP steps hide 0.9."""

FAULT_THRESHOLD = 0.25
"""Least share of the exposed transfer time, of the job or of a rank, for a fault to be named."""

SMALL_MESSAGES_THRESHOLD = 0.5
"""Least share of latency-bound messages in the exposed transfer time for them to be named."""

TransferFault = tuple[Reason, tuple[Evidence, ...]]
"""Reason and its evidence."""


def cost_by_dimension(views: Mapping[int, RankView], columns: CallColumns) -> list[DimensionCost]:
    """Exposed and hidden communication by parallel dimension, the most expensive first."""
    dimension_of_call = [call.dimension for view in views.values() for call in view.calls]
    dimensions = sorted(set(dimension_of_call), key=str)
    code = np.array([dimensions.index(dimension) for dimension in dimension_of_call], np.intp)
    window = sum(view.window_ns for view in views.values())
    exposed = ("exposed_wait", "exposed_transfer", "exposed_unsplit")
    names = (*exposed, "hidden_wait", "hidden_transfer", "hidden_unsplit", "surely_waited")
    sums = [np.bincount(code, weights=getattr(columns, name), minlength=len(dimensions)) / window for name in names]
    inside = [call.end_ns > view.window.start_ns for view in views.values() for call in view.calls]
    counts = np.bincount(code, weights=inside, minlength=len(dimensions))
    costs = [
        DimensionCost(dimension, int(counts[i]), *(float(column[i]) for column in sums))
        for i, dimension in enumerate(dimensions)
        if counts[i]
    ]
    return sorted(costs, key=lambda cost: -(cost.wait + cost.transfer + cost.unsplit))


def arrivals_of_ranks(views: Mapping[int, RankView], matches: Matches, columns: CallColumns) -> list[RankArrivals]:
    """Mean lateness of each rank at synchronizing collectives, the latest first."""
    count: dict[int, int] = dict.fromkeys(columns.first, 0)
    last = dict.fromkeys(columns.first, 0)
    late = dict.fromkeys(columns.first, 0)
    for match in matches.collectives:
        places = columns.places(match.values())
        kind = views[next(iter(match))].calls[next(iter(match.values())).place].kind
        if kind not in SYNCHRONIZING_KINDS or not columns.known[places].all():
            continue
        after = columns.wait[places].max() - columns.wait[places]
        latest = int(after.max())
        for rank, nanoseconds in zip(match, after.tolist(), strict=True):
            count[rank] += 1
            late[rank] += nanoseconds
            last[rank] += nanoseconds == latest > 0
    ranks = [
        RankArrivals(rank, number, last[rank], late[rank] / number / 1e6) for rank, number in count.items() if number
    ]
    return sorted(ranks, key=lambda row: (-row.mean_late_ms, row.rank))


def transfer_faults(table: Sequence[Collective], views: Mapping[int, RankView], num_steps: int) -> list[TransferFault]:
    """Collectives: faults of the exposed transfers (slow link, small messages, no overlap), with evidence."""
    exposed = sum(row.exposed_transfer_ms or 0.0 for row in table)
    if exposed <= 0:
        return []
    return [*_slow(table, exposed, views), *_small(table, exposed, num_steps), *_not_overlapped(table, exposed)]


def _slow(table: Sequence[Collective], exposed: float, views: Mapping[int, RankView]) -> list[TransferFault]:
    slow = [
        row
        for row in table
        if row.busbw_gbs is not None
        and row.expected_busbw_gbs is not None
        and not row.latency_bound
        and row.busbw_gbs < gpu_catalogue.SLOW_BELOW * row.expected_busbw_gbs
    ]
    if _exposed(slow) < FAULT_THRESHOLD * exposed:
        slow = _slow_for_some(slow, table)
    if not slow:
        return []
    worst = max(slow, key=lambda row: row.exposed_transfer_ms or 0.0)
    reached, expected = worst.busbw_gbs or 0.0, worst.expected_busbw_gbs or 0.0
    ranks = _members(worst)
    device = next((device.name for device in views[ranks[0]].header.devices), "")
    # no faster than the slower link: the transfer does not use the fast link at all
    around = (
        worst.link not in (LinkKind.PCIE, LinkKind.NETWORK)
        and reached <= gpu_catalogue.pcie_link(device).bytes_per_second / 1e9
    )
    evidence = (
        Evidence("bus_bandwidth", reached, "GB/s", gpu_catalogue.SLOW_BELOW * expected, ranks),
        Evidence("expected_bus_bandwidth", expected, "GB/s", None, ranks),
    )
    return [(Reason.WRONG_TRANSPORT if around else Reason.SLOW_LINK, evidence)]


def _slow_for_some(slow: Sequence[Collective], table: Sequence[Collective]) -> list[Collective]:
    """The slow transfers that are a fault of some ranks, however many others have fast ones."""
    if not slow:
        return []
    exposed, own = (_exposed_of_ranks(rows) for rows in (table, slow))
    mean = sum(exposed.values()) / len(exposed)
    held_up = {rank for rank, ms in own.items() if ms >= FAULT_THRESHOLD * max(exposed[rank], mean)}
    return [row for row in slow if not held_up.isdisjoint(_members(row))]


def _exposed_of_ranks(rows: Sequence[Collective]) -> dict[int, float]:
    """Exposed transfer of each rank, ms."""
    of_rank: dict[int, float] = defaultdict(float)
    for row in rows:
        members = _members(row)
        for rank in members:
            of_rank[rank] += (row.exposed_transfer_ms or 0.0) / len(members)
    return of_rank


def _members(row: Collective) -> list[int]:
    return [int(rank) for rank in row.group.split(",")]


def _small(table: Sequence[Collective], exposed: float, num_steps: int) -> list[TransferFault]:
    small = [row for row in table if row.latency_bound]
    share = _exposed(small) / exposed
    if share < SMALL_MESSAGES_THRESHOLD:
        return []
    per_step = sum(row.count for row in small) / max(num_steps, 1)
    return [
        (
            Reason.SMALL_MESSAGES,
            (
                Evidence("small_message_share", share, "ratio", SMALL_MESSAGES_THRESHOLD),
                Evidence("small_messages_per_step", per_step, "calls"),
            ),
        )
    ]


def _not_overlapped(table: Sequence[Collective], exposed: float) -> list[TransferFault]:
    """Exposed traffic that could be hidden: weight gathers by prefetching, gradient reductions by overlap, tensor
    parallelism by async TP."""
    found: list[TransferFault] = []
    for reason, kinds in (
        (Reason.NO_PREFETCH, {("dp", "all_gather")}),
        (Reason.NO_OVERLAP, {("dp", "all_reduce"), ("dp", "reduce_scatter")}),
        (Reason.NO_OVERLAP, {("tp", "all_reduce"), ("tp", "reduce_scatter"), ("tp", "all_gather")}),
    ):
        rows = [row for row in table if (row.dimension, row.kind) in kinds and row.hidden_transfer is not None]
        whole = sum(row.transfer_ms or 0.0 for row in rows)
        if not whole or _exposed(rows) < FAULT_THRESHOLD * exposed:
            continue
        hidden = sum((row.hidden_transfer or 0.0) * (row.transfer_ms or 0.0) for row in rows) / whole
        if hidden < OVERLAP_THRESHOLD and reason not in dict(found):
            found.append((reason, (Evidence("hidden_transfer", hidden, "ratio", OVERLAP_THRESHOLD),)))
    return found


def _exposed(rows: Sequence[Collective]) -> float:
    return sum(row.exposed_transfer_ms or 0.0 for row in rows)
