"""What should each transfer take on the link it uses, and which transfers are alike?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.analyzer.alignment.device_calls import Call
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.edge_blocks import Nodes
from stepscope.core.hardware import find_gpu
from stepscope.trace.columns import NONE, TraceHeader

REACHED_SHARE = 0.8
"""Of a link's data sheet bandwidth large NCCL messages reach about this (nccl-tests on H100 with NVLink:
360 of 450 GB/s)."""

SMALL_MESSAGE_NS = 20_000
"""What a collective takes however small it is (nccl-tests, one host)."""

_MOVED = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Times (n - 1) / n of the message crosses the link."""


def expected_transfers(headers: Mapping[int, TraceHeader], calls_of_rank: Mapping[int, Sequence[Call]]) -> Nanoseconds:
    """By communication, rank by rank: what it should take, or NONE: no size, no link known, or several hosts."""
    expected = []
    for rank, calls in calls_of_rank.items():
        gpu = find_gpu(next((device.name for device in headers[rank].devices), None))
        bandwidth = gpu.link_bytes_per_second if gpu is not None else None
        for call in calls:
            known = bandwidth is not None and call.num_bytes is not None and _on_one_host(headers, call)
            expected.append(_expected_ns(call, bandwidth) if known and bandwidth else NONE)
    return np.array(expected, np.int64)


def _on_one_host(headers: Mapping[int, TraceHeader], call: Call) -> bool:
    members = set(call.group or ()) | {peer for p in call.peers for peer in (p.source, p.destination)}
    hosts = {headers[member].host_name if member in headers else None for member in members}
    return len(members) > 1 and len(hosts) == 1


def _expected_ns(call: Call, bytes_per_second: float) -> int:
    size = len(call.group) if call.group else 2
    moved = _MOVED[call.kind] * (size - 1) / size if call.kind in _MOVED else 1.0
    return SMALL_MESSAGE_NS + int(moved * (call.num_bytes or 0) / (bytes_per_second * REACHED_SHARE) * 1e9)


def alike(calls_of_rank: Mapping[int, Sequence[Call]]) -> Nodes:
    """By communication, rank by rank, a number that those of the same group, kind and size share."""
    numbers: dict[tuple[object, ...], int] = {}
    result = []
    for calls in calls_of_rank.values():
        for call in calls:
            result.append(numbers.setdefault((call.group, call.kind, call.num_bytes), len(numbers)))
    return np.array(result, np.int64)
