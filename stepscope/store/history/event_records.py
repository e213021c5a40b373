"""Events of the metric history: the newest word on each, their days, and the time that they span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stepscope.store.history.catalog import DAY_MS
from stepscope.store.history.questions import HistoryEvent


def newest_events(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Events without what was told of each before; the oldest first."""
    newest = {(event.kind, event.start_ns, event.labels, event.code): event for event in events}
    return sorted(newest.values(), key=lambda event: (event.start_ns, event.kind.value, event.labels, event.code))


def edges_of(events: Sequence[HistoryEvent]) -> tuple[int, int | None]:
    """Time of the first start and the last end of events, ms; None where one has no end."""
    ends = [event.end_ns for event in events if event.end_ns is not None]
    last = max(ends) // 1_000_000 + 1 if len(ends) == len(events) else None
    return min(event.start_ns for event in events) // 1_000_000, last


def by_day(events: Iterable[HistoryEvent]) -> list[tuple[int, list[HistoryEvent]]]:
    """Events by the day that they began on; ms."""
    days: dict[int, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        days[event.start_ns // 1_000_000 // DAY_MS * DAY_MS].append(event)
    return sorted(days.items())
