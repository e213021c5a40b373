"""Step records written by hand: ranks whose steps take so many milliseconds, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepscope.core.documents.run_directory import RankSteps, Step

MS = 1_000_000
START_NS = 1_000 * MS


def rank_steps(
    rank: int,
    lengths_ms: Sequence[float],
    more: Callable[[int], dict[str, Any]] = lambda _: {},
    *,
    attempt: int = 1,
    first: int = 0,
    start_ns: int = START_NS,
) -> RankSteps:
    """Steps of one rank, each beginning where the one before ended and its profiling was done."""
    steps, now = [], start_ns
    for place, length in enumerate(lengths_ms):
        fields = more(first + place)
        end = now + round(length * MS)
        steps.append(Step(first + place, now, end, attempt=attempt, **fields))
        now = end + fields.get("export_ns", 0) + fields.get("prepare_ns", 0)
    return RankSteps(rank, steps)


def captured(first: int, last: int) -> Callable[[int], dict[str, Any]]:
    """A profiler prepared before, recorded and written after these steps."""

    def more(index: int) -> dict[str, Any]:
        if index == first - 2:
            return {"prepare_ns": 50 * MS}
        if index == first - 1:
            return {"state": "warmup"}
        if first <= index <= last:
            return {"state": "active", "captured": True, "export_ns": 200 * MS if index == last else 0}
        return {}

    return more
