"""Timeouts of torch's watchdog: ranks in different calls, ranks ahead and behind, silent ranks, ranks that all wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepscope.core.documents.hang import OF_ALL
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_facts import GroupProgress, LogEvent, TimedOut, WatchdogStuck
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import form, ranks_words

_Call = tuple[int | None, str]
"""Number and kind of a collective."""


def timeouts(events: Sequence[LogEvent]) -> list[NcclFinding]:
    """One finding per process group."""
    progress = [event for event in events if isinstance(event, GroupProgress)]
    first = _first_of_each(events, progress)
    by_group: dict[str | None, dict[int, TimedOut]] = defaultdict(dict)
    for event in _with_groups_of_equals([*first, *_named_elsewhere(first, progress)]):
        by_group[event.group][event.rank] = event
    timed_out = {rank for first in by_group.values() for rank in first}
    known = _Known(timed_out, timed_out | {event.rank for event in progress})
    return [_timeout_finding(group, first, known, progress) for group, first in by_group.items()]


@dataclass(frozen=True, slots=True)
class _Known:
    """Ranks with a timeout in any group, and all ranks with lines of torch's."""

    timed_out: set[int]
    ranks: set[int]


def _first_of_each(events: Iterable[LogEvent], progress: Iterable[GroupProgress]) -> list[TimedOut]:
    """First timeout of each rank; torch names the group in another line, or only the second time."""
    first: dict[int, TimedOut] = {}
    groups: dict[tuple[int, int | None], str | None] = {
        (event.rank, event.failed): event.group for event in progress if event.failed is not None
    }
    for event in events:
        if isinstance(event, TimedOut):
            named = event.group or groups.get((event.rank, event.sequence))
            known = first.setdefault(event.rank, replace(event, group=named))
            is_same = (known.sequence, known.operation) == (event.sequence, event.operation)
            if known.group is None and is_same:
                first[event.rank] = replace(known, group=named)
    return list(first.values())


def _named_elsewhere(first: Iterable[TimedOut], progress: Iterable[GroupProgress]) -> Iterator[TimedOut]:
    """Timeouts whose own line is missing, as where ranks write into each other's: torch tells each a second time."""
    calls = {(event.group, event.sequence): event for event in first}
    ranks = {event.rank for event in first}
    for one in progress:
        call = calls.get((one.group, one.failed))
        if call is not None and one.failed is not None and one.rank not in ranks:
            ranks.add(one.rank)
            yield replace(call, rank=one.rank, place=one.place)


def _with_groups_of_equals(first: Sequence[TimedOut]) -> Iterator[TimedOut]:
    """Timeouts without a group take that of the only group in which others wait in the same call."""
    groups: dict[_Call, set[str]] = defaultdict(set)
    for event in first:
        if event.group is not None:
            groups[event.sequence, event.operation].add(event.group)
    for event in first:
        same = groups.get((event.sequence, event.operation), set())
        yield replace(event, group=next(iter(same))) if event.group is None and len(same) == 1 else event


def _timeout_finding(
    group: str | None, first: dict[int, TimedOut], known: _Known, progress: Iterable[GroupProgress]
) -> NcclFinding:
    ranks_by_call: dict[_Call, list[int]] = defaultdict(list)
    for rank, event in sorted(first.items()):
        ranks_by_call[event.sequence, event.operation].append(rank)
    place = min(first.values(), key=lambda event: (event.place.file, event.place.line)).place
    of_group = f" of group {group}" if group is not None else ""
    if len(ranks_by_call) > 1:
        code, ranks, message = "desync", _minority(ranks_by_call), _describe_mismatch(ranks_by_call, of_group)
    else:
        (call, waiting) = next(iter(ranks_by_call.items()))
        num_ranks = next(iter(first.values())).group_size
        silent = _silent_ranks(group, waiting, known, num_ranks)
        code, ranks = ("silent_rank", silent) if silent else ("timeout", waiting)
        message = f"{ranks_words(waiting)} waited in {_call_words(call)}{of_group} until torch's timeout"
        if silent:
            have = form(len(silent), "has", "have")
            is_known = known.ranks.issuperset(silent)
            message += f"; {ranks_words(silent)} {'did not' if is_known else f'{have} no timeout in these files'}"
            message += ": look there first"
        elif num_ranks is not None and num_ranks > len(waiting):
            message += (
                f"; the other {num_ranks - len(waiting)} of the group's {num_ranks} ranks have none in these files"
            )
        message += _after(call, waiting, progress)
    return NcclFinding(code, Severity.CRITICAL, message, place.file, place.line, ranks)


def _call_words(call: _Call) -> str:
    """ "ALLREDUCE 19"."""
    sequence, operation = call
    return operation if sequence is None else f"{operation} {sequence}"


def _after(call: _Call, waiting: Sequence[int], progress: Iterable[GroupProgress]) -> str:
    """How many calls the waiting ranks had enqueued behind it: their own Python code went on."""
    sequence, _ = call
    behind = {
        event.enqueued - sequence
        for event in progress
        if sequence is not None and event.enqueued is not None and event.rank in waiting and event.failed == sequence
    }
    fewest = min(behind, default=0)
    return f" (at least {fewest:,} further {form(fewest, 'call was', 'calls were')} enqueued)" if fewest > 0 else ""


def _silent_ranks(group: str | None, waiting: list[int], known: _Known, num_ranks: int | None) -> list[int]:
    """Ranks without a timeout; none if the group is not of all ranks, or if more are silent than not, which means that
    their logs are missing."""
    highest = max(known.ranks)
    if num_ranks is not None:
        if highest != num_ranks - 1:
            return []  # not of all ranks, or not all are known
    elif group is not None and OF_ALL not in group and group != "0":
        return []
    if highest + 1 >= 2 * len(waiting):
        return []
    silent = set(range(highest + 1)) - set(waiting)
    is_of_all = silent.isdisjoint(known.timed_out)  # who waits in another group may be no member of this one
    return sorted(silent) if is_of_all else []


def _minority(ranks_by_call: dict[_Call, list[int]]) -> list[int]:
    """Ranks apart from the majority; all of them without one."""
    by_number = sorted(ranks_by_call.values(), key=len)
    has_majority = len(by_number[-1]) > len(by_number[-2])
    return sorted(rank for ranks in (by_number[:-1] if has_majority else by_number) for rank in ranks)


def _describe_mismatch(ranks_by_call: dict[_Call, list[int]], of_group: str) -> str:
    calls = [f"{ranks_words(ranks)} in {_call_words(call)}" for call, ranks in ranks_by_call.items()]
    message = f"ranks wait in different collectives{of_group}: {'; '.join(calls)}: "
    numbers = {sequence for sequence, _ in ranks_by_call if sequence is not None}
    if len({operation for _, operation in ranks_by_call}) > 1 or len(numbers) < 2:
        message += "they do not call the same in the same order"
    else:
        message += "they did not make the same number of calls"
    return message + _ahead(ranks_by_call, max(numbers)) if len(numbers) > 1 else message


def _ahead(ranks_by_call: dict[_Call, list[int]], foremost: int) -> str:
    """Who is behind, and by how many calls: those ranks hold the others up, or have skipped calls."""
    behind = [
        f"{ranks_words(ranks)} {form(len(ranks), 'is', 'are')} {foremost - sequence:,} "
        f"{form(foremost - sequence, 'call')} behind"
        for (sequence, _), ranks in sorted(ranks_by_call.items(), key=lambda entry: entry[0][0] or 0)
        if sequence is not None and sequence < foremost
    ]
    return f"; {', '.join(behind)}"


def stuck_watchdogs(events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """Finding on ranks whose watchdog made no progress itself."""
    stuck = [event for event in events if isinstance(event, WatchdogStuck)]
    if stuck:
        ranks = sorted({event.rank for event in stuck if event.rank is not None})
        who = ranks_words(ranks) if ranks else "a rank"
        message = (
            f"torch's watchdog of {who} made no progress for {max(event.seconds for event in stuck):,} s: a CUDA call, "
            "or a thread that holds Python's lock, blocks it; take a stack of the process (py-spy dump --native)"
        )
        place = stuck[0].place
        yield NcclFinding("watchdog_stuck", Severity.CRITICAL, message, place.file, place.line, ranks)
