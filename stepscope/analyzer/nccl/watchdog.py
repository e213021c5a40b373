"""What do torch's timeouts tell, where the log is all that is left? Who timed out in what, and who did not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from stepscope.core.health import Severity
from stepscope.core.nccl import NcclFinding
from stepscope.core.nccl_events import LogEvent, TimedOut
from stepscope.core.words import ranks_words


def timeouts(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding: ranks that stand at different collectives, or those that are silent, or that all wait alike."""
    first: dict[int, TimedOut] = {}
    for event in events:
        if isinstance(event, TimedOut):
            first.setdefault(event.rank, event)
    if not first:
        return []
    standing: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank, event in sorted(first.items()):
        standing[event.sequence, event.operation].append(rank)
    place = min(first.values(), key=lambda event: (event.place.file, event.place.line)).place
    if len(standing) > 1:
        code, ranks, message = "desync", _fewest(standing), _apart(standing)
    else:
        (sequence, operation), waiting = next(iter(standing.items()))
        silent = [rank for rank in range(max(waiting)) if rank not in first]
        code, ranks = ("silent_rank", silent) if silent else ("timeout", waiting)
        message = f"{ranks_words(waiting)} waited in {operation} {sequence} until torch's timeout"
        message += f"; {ranks_words(silent)} did not: look there first" if silent else ""
    return [NcclFinding(code, Severity.CRITICAL, message, place.file, place.line, ranks)]


def _fewest(standing: dict[tuple[int, str], list[int]]) -> list[int]:
    """The ranks that stand apart from most; all where none do."""
    by_number = sorted(standing.values(), key=len)
    if len(by_number[-1]) > len(by_number[-2]):
        return sorted(rank for ranks in by_number[:-1] for rank in ranks)
    return sorted(rank for ranks in by_number for rank in ranks)


def _apart(standing: dict[tuple[int, str], list[int]]) -> str:
    said = [f"{ranks_words(ranks)} in {operation} {sequence}" for (sequence, operation), ranks in standing.items()]
    return f"ranks wait in different collectives: {'; '.join(said)}: they do not call the same in the same order"
