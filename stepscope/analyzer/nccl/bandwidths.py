"""Bandwidth of collectives by size, from the NCCL inspector and from nccl-tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stepscope.core.documents.nccl import Bandwidth, Benchmarked, InspectorCall, LogEvent, Measured

_MIN_SHARE = 0.5
"""Share of collectives in which a rank must be the last to be named."""


def inspector_bandwidths(calls: Iterable[InspectorCall]) -> list[Bandwidth]:
    """One row per communicator, collective and size."""
    rows: dict[tuple[str, str, str], list[InspectorCall]] = defaultdict(list)
    for call in calls:
        rows[call.communicator, call.collective, call.size].append(call)
    return [_bandwidth(same) for _, same in sorted(rows.items())]


def _bandwidth(calls: Sequence[InspectorCall]) -> Bandwidth:
    by_sequence: dict[int | None, list[InspectorCall]] = defaultdict(list)
    for call in calls:
        by_sequence[call.sequence].append(call)
    last: Counter[int] = Counter()
    rates = []
    for sequence, members in by_sequence.items():
        if sequence is None:
            rates += [call.bus_gbs for call in members]
            continue
        shortest = min(members, key=lambda call: call.microseconds)
        rates.append(shortest.bus_gbs)
        if len(members) > 1 and shortest.rank is not None:
            last[shortest.rank] += 1
    first = calls[0]
    rank, count = last.most_common(1)[0] if last else (None, 0)
    share = count / last.total() if last else 0.0
    is_named = share >= _MIN_SHARE
    return Bandwidth(
        first.communicator,
        first.collective,
        first.num_ranks,
        first.bytes,
        first.size,
        len(rates),
        median(rates),
        rank if is_named else None,
        share if is_named else None,
    )


def benchmark_bandwidths(events: Iterable[LogEvent]) -> list[Bandwidth]:
    """One row per run of nccl-tests: the mean over its sizes."""
    found: list[Bandwidth] = []
    rate: Measured | None = None
    for event in events:
        if isinstance(event, Measured):
            rate = event
        elif isinstance(event, Benchmarked) and rate is not None and rate.place.file == event.place.file:
            name = event.test.removesuffix("_perf")
            found.append(Bandwidth("", name, None, None, "mean over sizes", 1, rate.bus_bandwidth_gbs))
            rate = None
    if rate is not None:
        found.append(Bandwidth("", "", None, None, "mean over sizes", 1, rate.bus_bandwidth_gbs))
    return found
