"""What does communication cost in each parallel dimension, who comes late to it, and what is wrong with it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.analyzer.alignment.call_words import SYNCHRONIZING_KINDS
from stepscope.analyzer.alignment.exposure import CallColumns
from stepscope.analyzer.alignment.matching import Matches
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Collective, DimensionCost, Evidence, RankArrivals
from stepscope.core.causes import Reason
from stepscope.core.links import SLOW_BELOW, LinkKind, pcie_link

OVERLAPPED_FROM = 0.1
"""A transfer that is hidden less is not overlapped at all; recorded DDP and FSDP steps hide 0.9."""

FAULT_NAMED_FROM = 0.25
"""Share of the exposed transfer time from which on a fault of it is named."""

SMALL_MESSAGES_FROM = 0.5
"""Share of the exposed transfer time in messages so small that latency, not bandwidth, takes most of it."""

TransferFault = tuple[Reason, tuple[Evidence, ...]]
"""What is wrong, and the numbers that say so."""


def cost_by_dimension(views: Mapping[int, RankView], columns: CallColumns) -> list[DimensionCost]:
    """Exposed and hidden communication by the dimension that each call serves, the most expensive first."""
    told = [call.dimension for view in views.values() for call in view.calls]
    dimensions = sorted(set(told), key=str)
    code = np.array([dimensions.index(dimension) for dimension in told], np.intp)
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
    """How late each rank comes on average to the collectives that need everybody, the latest first."""
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
    """What is wrong with the exposed transfers, as far as the traces show, each with its numbers."""
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
        and row.busbw_gbs < SLOW_BELOW * row.expected_busbw_gbs
    ]
    if _exposed(slow) < FAULT_NAMED_FROM * exposed:
        return []
    worst = max(slow, key=lambda row: row.exposed_transfer_ms or 0.0)
    reached, expected = worst.busbw_gbs or 0.0, worst.expected_busbw_gbs or 0.0
    ranks = [int(rank) for rank in worst.group.split(",")]
    device = next((device.name for device in views[ranks[0]].header.devices), "")
    # what a slower way would give explains it: the bytes do not travel over the fast link at all
    around = worst.link not in (LinkKind.PCIE, LinkKind.NETWORK) and reached <= pcie_link(device).bytes_per_second / 1e9
    evidence = (
        Evidence("bus_bandwidth", reached, "GB/s", SLOW_BELOW * expected, ranks),
        Evidence("expected_bus_bandwidth", expected, "GB/s", None, ranks),
    )
    return [(Reason.WRONG_TRANSPORT if around else Reason.SLOW_LINK, evidence)]


def _small(table: Sequence[Collective], exposed: float, num_steps: int) -> list[TransferFault]:
    small = [row for row in table if row.latency_bound]
    share = _exposed(small) / exposed
    if share < SMALL_MESSAGES_FROM:
        return []
    per_step = sum(row.count for row in small) / max(num_steps, 1)
    return [
        (
            Reason.SMALL_MESSAGES,
            (
                Evidence("small_message_share", share, "ratio", SMALL_MESSAGES_FROM),
                Evidence("small_messages_per_step", per_step, "calls"),
            ),
        )
    ]


def _not_overlapped(table: Sequence[Collective], exposed: float) -> list[TransferFault]:
    """Traffic that could be hidden: gathers of weights by prefetching, reductions of gradients by overlap.

    Of tensor parallelism, all that a layer waits for: async TP hides it behind parts of the product it belongs to.
    """
    found: list[TransferFault] = []
    for reason, kinds in (
        (Reason.NO_PREFETCH, {("dp", "all_gather")}),
        (Reason.NO_OVERLAP, {("dp", "all_reduce"), ("dp", "reduce_scatter")}),
        (Reason.NO_OVERLAP, {("tp", "all_reduce"), ("tp", "reduce_scatter"), ("tp", "all_gather")}),
    ):
        rows = [row for row in table if (row.dimension, row.kind) in kinds and row.hidden_transfer is not None]
        whole = sum(row.transfer_ms or 0.0 for row in rows)
        if not whole or _exposed(rows) < FAULT_NAMED_FROM * exposed:
            continue
        hidden = sum((row.hidden_transfer or 0.0) * (row.transfer_ms or 0.0) for row in rows) / whole
        if hidden < OVERLAPPED_FROM and reason not in dict(found):
            found.append((reason, (Evidence("hidden_transfer", hidden, "ratio", OVERLAPPED_FROM),)))
    return found


def _exposed(rows: Sequence[Collective]) -> float:
    return sum(row.exposed_transfer_ms or 0.0 for row in rows)
