"""Failures: watchdog timeouts, network card errors, RAS findings, hints from the trainer's log.

Transfer errors: Statuses are libibverbs' ibv_wc_status. Which cause is usual is from reports: pytorch#81628,
nccl#426, nccl#1405.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from stepscope.core.documents.hang import OF_ALL
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_logs import (
    HangFlags,
    LogEvent,
    RasCommunicator,
    RasStatus,
    TimedOut,
    TrainerTimes,
    ranks_with_fewer_calls,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import form, ranks_words


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


_STATUS = {
    1: "local length error",
    2: "local queue pair error",
    4: "local protection error: memory that is not registered, or no longer",
    5: "work flushed: the queue pair had failed before; look for the first error",
    6: "memory window bind error",
    8: "bad response",
    9: "local access error",
    10: "remote access error: the peer's memory is not registered, or no longer",
    11: "remote operation error: the peer's card or process is gone",
    12: "retries exceeded: the peer does not answer",
    13: "the peer was never ready to receive",
}

_ADVICE = {
    4: "look at the GPU's memory registration: nvidia_peermem or DMA-BUF, NCCL_NET_GDR_LEVEL, IOMMU; try GDR off once",
    5: "look for an earlier error of this peer, and at its host",
    10: "look at the peer's log: it freed memory or failed first",
    11: "look at the peer's host and log",
    12: "look at cable, switch port and routing to the peer; if it fails at once, NCCL_IB_GID_INDEX (often 3)",
    13: "look at the peer: it hangs or is gone",
}


def transfer_error_words(status: int, vendor_error: int) -> str:
    """What happened, in words: "retries exceeded: the peer does not answer (status 12, vendor error 129)"."""
    return f"{_STATUS.get(status, 'unknown error')} (status {status}, vendor error {vendor_error})"


def transfer_error_advice(status: int) -> str:
    """What to look at."""
    return _ADVICE.get(status, "look at both hosts' kernel logs and the card's counters")


def ras_findings(statuses: Iterable[RasStatus]) -> list[NcclFinding]:
    """Ranks that are dead, do not answer, or stand elsewhere than the others."""
    found: list[NcclFinding] = []
    for status in statuses:
        for line in status.dead:
            message = f"{line} is dead or does not answer"
            found.append(NcclFinding("ras_dead", Severity.CRITICAL, message, status.file, 0))
        for one in status.communicators:
            found += _of(one, status.file)
    return found


def _of(one: RasCommunicator, file: str) -> Iterator[NcclFinding]:
    dead = [rank.rank for rank in one.missing if rank.is_dead]
    silent = [rank.rank for rank in one.missing if not rank.is_dead]
    for ranks, how in ((dead, "considered dead"), (silent, "without an answer")):
        if ranks:
            message = (
                f"communicator {one.id}: {ranks_words(ranks)} {how}: look at "
                f"{form(len(ranks), 'its host', 'their hosts')} first"
            )
            yield NcclFinding("ras_missing", Severity.CRITICAL, message, file, 0, ranks)
    for told, what in one.problems:
        message = f"communicator {one.id}: {ranks_words(list(told))} {what}, unlike the others"
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, file, 0, list(told))
    yield from _behind(one, file)


def _behind(one: RasCommunicator, file: str) -> Iterator[NcclFinding]:
    """By the counts of JSON: ranks that launched less than most."""
    behind = ranks_with_fewer_calls(one)
    if behind:
        message = (
            f"communicator {one.id}: {ranks_words(behind)} {form(len(behind), 'has', 'have')} launched fewer "
            "collectives than the others; ask again: standing still is a hang"
        )
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, file, 0, behind)


def flag_findings(pages: Iterable[HangFlags]) -> list[NcclFinding]:
    """A hang flags all ranks; some alone are slow."""
    found = []
    for page in pages:
        if page.flagged and not page.clear:
            ranks = list(page.flagged)
            message = f"xpu_timer flags {ranks_words(ranks, world_size=len(ranks))} as hung"
            found.append(NcclFinding("hang", Severity.CRITICAL, message, page.file, 0, ranks))
        elif page.flagged:
            ranks = list(page.flagged)
            message = f"xpu_timer flags {ranks_words(ranks)} of {len(ranks) + len(page.clear)}: a hang would flag all"
            found.append(NcclFinding("hang_flag", Severity.INFO, message, page.file, 0, ranks))
    return found


_NEEDED = ("forward", "backward", "step")
_COMMUNICATION = "backward_allreduce"


def trainer_findings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding where the optimizer's step takes longer than forward and backward together."""
    for event in events:
        if isinstance(event, TrainerTimes) and all(part in event.parts for part in _NEEDED):
            forward, backward, step = (event.parts[part] for part in _NEEDED)
            if step > forward + backward:
                communication = event.parts.get(_COMMUNICATION)
                less = f", communication {communication:,.0f}" if communication is not None else ""
                message = (
                    f"the optimizer's step takes {step:,.0f} ms, forward and backward {forward + backward:,.0f}{less}: "
                    "host-bound, an optimizer on the CPU; not NCCL"
                )
                return [NcclFinding("cpu_optimizer", Severity.WARNING, message, event.place.file, event.place.line)]
    return []
