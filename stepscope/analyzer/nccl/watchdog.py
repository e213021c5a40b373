"""What do torch's timeouts tell, where the log is all that is left? Who timed out in what, and who did not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from stepscope.core.flight_recorder import OF_ALL
from stepscope.core.health import Severity
from stepscope.core.nccl import NcclFinding
from stepscope.core.nccl_events import LogEvent, TimedOut
from stepscope.core.words import ranks_words


def timeouts(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding a process group: ranks that stand at different collectives, are silent, or all wait alike."""
    by_group: dict[str | None, dict[int, TimedOut]] = defaultdict(dict)
    for event in _first_of_each(events):
        by_group[event.group][event.rank] = event
    return [_of_group(group, first) for group, first in by_group.items()]


def _first_of_each(events: Iterable[LogEvent]) -> list[TimedOut]:
    """Of each rank; torch says it twice, and only the second time of which group."""
    first: dict[int, TimedOut] = {}
    for event in events:
        if isinstance(event, TimedOut):
            known = first.setdefault(event.rank, event)
            is_same = (known.sequence, known.operation) == (event.sequence, event.operation)
            if known.group is None and is_same:
                first[event.rank] = replace(known, group=event.group)
    return list(first.values())


def _of_group(group: str | None, first: dict[int, TimedOut]) -> NcclFinding:
    standing: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank, event in sorted(first.items()):
        standing[event.sequence, event.operation].append(rank)
    place = min(first.values(), key=lambda event: (event.place.file, event.place.line)).place
    of_group = f" of group {group}" if group is not None else ""
    if len(standing) > 1:
        code, ranks, message = "desync", _fewest(standing), _apart(standing, of_group)
    else:
        (sequence, operation), waiting = next(iter(standing.items()))
        silent = _silent(group, waiting)
        code, ranks = ("silent_rank", silent) if silent else ("timeout", waiting)
        message = f"{ranks_words(waiting)} waited in {operation} {sequence}{of_group} until torch's timeout"
        message += f"; {ranks_words(silent)} did not: look there first" if silent else ""
    return NcclFinding(code, Severity.CRITICAL, message, place.file, place.line, ranks)


def _silent(group: str | None, waiting: list[int]) -> list[int]:
    """Ranks that say nothing; none where the group is not of all ranks, or where more are silent than speak: then it is
    their logs that are not here."""
    if group is not None and OF_ALL not in group and group != "0":
        return []
    silent = sorted(set(range(max(waiting))) - set(waiting))
    return silent if len(silent) < len(waiting) else []


def _fewest(standing: dict[tuple[int, str], list[int]]) -> list[int]:
    """The ranks that stand apart from most; all where none do."""
    by_number = sorted(standing.values(), key=len)
    if len(by_number[-1]) > len(by_number[-2]):
        return sorted(rank for ranks in by_number[:-1] for rank in ranks)
    return sorted(rank for ranks in by_number for rank in ranks)


def _apart(standing: dict[tuple[int, str], list[int]], of_group: str) -> str:
    said = [f"{ranks_words(ranks)} in {operation} {sequence}" for (sequence, operation), ranks in standing.items()]
    return (
        f"ranks wait in different collectives{of_group}: {'; '.join(said)}: they do not call the same in the same order"
    )
