"""Bandwidth of collectives by size, as the NCCL inspector and nccl-tests measured it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stepscope.core.documents.nccl import Bandwidth
from stepscope.core.documents.nccl_logs import Benchmarked, InspectorCall, LogEvent, Measured

_LEAST_SHARE = 0.5


def inspected(calls: Iterable[InspectorCall]) -> list[Bandwidth]:
    """A row for each communicator, collective and size."""
    rows: dict[tuple[str, str, str], list[InspectorCall]] = defaultdict(list)
    for call in calls:
        rows[call.communicator, call.collective, call.size].append(call)
    return [_row(of) for _, of in sorted(rows.items())]


def _row(calls: Sequence[InspectorCall]) -> Bandwidth:
    by_sequence: dict[int | None, list[InspectorCall]] = defaultdict(list)
    for call in calls:
        by_sequence[call.sequence].append(call)
    last: Counter[int] = Counter()
    rates = []
    for sequence, of in by_sequence.items():
        if sequence is None:
            rates += [call.bus_gbs for call in of]
            continue
        shortest = min(of, key=lambda call: call.microseconds)
        rates.append(shortest.bus_gbs)
        if len(of) > 1 and shortest.rank is not None:
            last[shortest.rank] += 1
    first = calls[0]
    rank, count = last.most_common(1)[0] if last else (None, 0)
    share = count / last.total() if last else None
    return Bandwidth(
        first.communicator,
        first.collective,
        first.num_ranks,
        first.bytes,
        first.size,
        len(rates),
        median(rates),
        rank if share is not None and share >= _LEAST_SHARE else None,
        share if share is not None and share >= _LEAST_SHARE else None,
    )


def tested(events: Iterable[LogEvent]) -> list[Bandwidth]:
    """A row for each run of nccl-tests: the mean over its sizes."""
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
