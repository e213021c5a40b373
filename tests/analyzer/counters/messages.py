"""Counters of a rank written by hand: messages every ten seconds with a GPU sample a second and a host's every five."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.protocol.counters import Counters, GpuCounters, HostCounters
from tests.analyzer.job_time.records import START_NS

SECOND = 1_000_000_000
Values = Callable[[float], Mapping[str, float]]
"""Of a time in seconds since the first step."""


def rank_counters(
    seconds: float,
    *,
    rank: int = 0,
    uuid: str | None = None,
    gpu: Values | None = None,
    host: Values | None = None,
    held: Callable[[float], Mapping[str, float]] = lambda _: {},
    of_message: Callable[[float], Mapping[str, Any]] = lambda _: {},
    start_ns: int = START_NS,
) -> RankCounters:
    """Counters from the first step on for so many seconds; values of a GPU and host at each time.

    Args:
        held: throttle reasons by name.
        of_message: further fields of the GPU in the message of a time.
    """
    messages = []
    for end in range(10, int(seconds) + 10, 10):
        times = [at for at in range(end - 9, end + 1) if at <= seconds]
        host_times = [at for at in (end - 5, end) if at <= seconds]
        gpus = []
        if gpu is not None and times:
            gpus.append(
                GpuCounters(
                    uuid or f"GPU-{rank}",
                    tuple(start_ns + at * SECOND for at in times),
                    _columns(gpu, times),
                    _columns(held, times),
                    **{"other_processes": 0, "other_memory_bytes": 0.0} | dict(of_message(float(end))),
                )
            )
        hosts = None
        if host is not None and host_times:
            hosts = HostCounters(tuple(start_ns + at * SECOND for at in host_times), _columns(host, host_times))
        messages.append(Counters(start_ns + end * SECOND, 10.0, tuple(gpus), hosts))
    return RankCounters(rank, messages)


def _columns(values: Values, times: list[int]) -> dict[str, tuple[float | None, ...]]:
    rows = [values(float(at)) for at in times]
    return {name: tuple(row.get(name) for row in rows) for name in sorted({name for row in rows for name in row})}
