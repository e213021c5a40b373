"""Scenarios of a replay with other communication: calls left out, merged into larger ones, or with fewer bytes.

A transfer is a latency plus its bytes at a rate (Hockney, 1994). Both are fitted to the job's own calls where their
sizes differ enough; else the latency is what a slow network leaves of a call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, covered_time
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.what_if.job_graph import NEVER
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.analyzer.what_if.replay import ReplayModel, Scenario
from stepscope.core.vocabulary import Cause

_SPREAD_OF_SIZES = 4.0
"""Largest over smallest size from which a latency and a rate can be told apart."""

SLOWEST_NS_PER_BYTE = 4.0
"""Of transfers between four processes on two busy cores, or over 10 Gbit/s Ethernet used by half."""
FASTEST_NS_PER_BYTE = 0.5
"""Of the same on idle cores."""
SMALL_BYTES = 2**20
"""A call of fewer may be mostly latency; of larger ones of one size as little is claimed as is certain."""
MOST_LATENCY_NS = 10e6
"""More is not claimed of calls of one size, which may go over a slower network."""


class TransferCost(NamedTuple):
    """What a transfer takes: a latency, and its bytes at a rate."""

    latency_ns: float
    ns_per_byte: float

    def of(self, num_bytes: float) -> float:
        """Time of a transfer of so many bytes, ns."""
        return self.latency_ns + self.ns_per_byte * num_bytes


def fitted_costs(num_bytes: Sequence[int], took_ns: Sequence[float]) -> list[TransferCost]:
    """Cost of transfers from calls of one kind; several where it is not certain, first that of the least latency.

    Empty if no call takes time.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for one, duration in zip(num_bytes, took_ns, strict=True):
        if one > 0 and duration > 0:
            by_size[one].append(duration)
    if not by_size:
        return []
    sizes = np.array(sorted(by_size), np.float64)
    usual = np.array([np.median(by_size[int(size)]) for size in sizes])
    if sizes[-1] >= _SPREAD_OF_SIZES * sizes[0]:
        return [_weighted_line(sizes, usual)]
    size, took = float(sizes.mean()), float(usual.mean())
    rates = [SLOWEST_NS_PER_BYTE, *([FASTEST_NS_PER_BYTE] if size < SMALL_BYTES else [])]
    latencies = dict.fromkeys(min(max(took - rate * size, 0.0), MOST_LATENCY_NS) for rate in rates)
    return [TransferCost(latency, (took - latency) / size) for latency in latencies]


def _weighted_line(sizes: npt.NDArray[np.float64], took: npt.NDArray[np.float64]) -> TransferCost:
    """The line with the least squares of relative errors whose latency and rate are not negative."""
    weight = 1.0 / took
    columns = np.stack((weight, sizes * weight), axis=1)
    (latency, rate), *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    if latency < 0:
        return TransferCost(0.0, float(np.average(took / sizes)))
    if rate < 0:
        return TransferCost(float(np.average(took)), 0.0)
    return TransferCost(float(latency), float(rate))


def without_calls(scenario: Scenario, numbers: Iterable[int]) -> Scenario:
    """The scenario in which these communications do not happen: nobody waits for them."""
    transfer = scenario.transfer_ns.copy()
    transfer[list(numbers)] = NEVER
    return replace(scenario, transfer_ns=transfer)


def with_merged_calls(
    scenario: Scenario,
    groups: Iterable[Sequence[int]],
    num_bytes: Sequence[int],
    cost: TransferCost,
    *,
    by_last: bool,
) -> Scenario:
    """The scenario in which each group of communications is one, of all their bytes.

    Args:
        groups: communications in issue order.
        num_bytes: of each communication.
        by_last: the merged one is issued with the last of a group, as a bucket is, else with the first, as a gather.
    """
    transfer = scenario.transfer_ns.copy()
    for group in groups:
        if len(group) > 1:
            chosen = group[-1 if by_last else 0]
            total = float(np.maximum(transfer[list(group)], 0).sum())
            transfer[list(group)] = NEVER
            transfer[chosen] = int(min(total, cost.of(sum(num_bytes[one] for one in group))))
    return replace(scenario, transfer_ns=transfer)


def with_fewer_bytes(
    scenario: Scenario, numbers: Sequence[int], num_bytes: Sequence[int], cost: TransferCost, factor: float
) -> Scenario:
    """The scenario in which these communications have a part of their bytes."""
    transfer = scenario.transfer_ns.copy()
    for one in numbers:
        saved = (1.0 - factor) * cost.ns_per_byte * num_bytes[one]
        transfer[one] = int(max(transfer[one] - saved, factor * transfer[one]))
    return replace(scenario, transfer_ns=transfer)


def without_spans(
    model: ReplayModel, scenario: Scenario, spans_of_rank: Mapping[int, Intervals], share: float = 1.0
) -> Scenario:
    """The scenario without what ranks do in these host spans, on their own clocks: compute, launches and kernels.

    Args:
        share: of that time which is left out.
    """
    duration, host = scenario.duration_ns.copy(), scenario.host_ns.copy()
    for rank, spans in spans_of_rank.items():
        part = model.graph.layout.parts.get(rank)
        if part is None or not len(spans):
            continue
        device = part.graph.device
        computes = np.flatnonzero(device.work == Work.COMPUTE)
        own = computes + part.first_activity
        if model.on_device:
            key = part.graph.host.key_ns
            launched = device.launched_by[computes]
            inside = (launched >= 0) & (covered_time(key[launched] - 1, key[launched], spans) > 0)
            duration[own[inside]] = ((1.0 - share) * duration[own[inside]]).astype(np.int64)
            column = HOST_COLUMN[Cause.HOST_BOUND]
            before = np.concatenate((key[:1], key[:-1]))
            busy = covered_time(np.minimum(before, key), key, spans)
            host[part.calls, column] = np.maximum(host[part.calls, column] - (share * busy).astype(np.int64), 0)
        else:
            gone = covered_time(device.start_ns[computes], device.end_ns[computes], spans)
            duration[own] = np.maximum(duration[own] - (share * gone).astype(np.int64), 0)
            key = part.graph.host.key_ns
            before = np.concatenate((key[:1], key[:-1]))
            idle = covered_time(before, key, spans)
            column = HOST_COLUMN[Cause.HOST_BOUND]
            least = np.maximum(host[part.calls, column] - (share * idle).astype(np.int64), 0)
            host[part.calls, column] = np.minimum(host[part.calls, column], least)
    return replace(scenario, duration_ns=duration, host_ns=host)
