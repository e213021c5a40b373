"""Failures: watchdog timeouts, network card errors, RAS findings, hints from the trainer's log.

Statuses of failed transfers are libibverbs' ibv_wc_status; their usual causes are from reports (pytorch#81628,
nccl#426, nccl#1405).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from stepscope.core.documents.hang import OF_ALL
from stepscope.core.documents.nccl import (
    HangFlags,
    LogEvent,
    NcclFinding,
    RasCommunicator,
    RasStatus,
    TimedOut,
    TrainerTimes,
    ranks_with_fewer_calls,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import form, ranks_words


def timeouts(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding per process group: ranks in different collectives, silent ranks, or ranks that all wait alike."""
    by_group: dict[str | None, dict[int, TimedOut]] = defaultdict(dict)
    for event in _first_of_each(events):
        by_group[event.group][event.rank] = event
    return [_timeout_finding(group, first) for group, first in by_group.items()]


def _first_of_each(events: Iterable[LogEvent]) -> list[TimedOut]:
    """First timeout of each rank; torch reports it twice, and names the group only the second time."""
    first: dict[int, TimedOut] = {}
    for event in events:
        if isinstance(event, TimedOut):
            known = first.setdefault(event.rank, event)
            is_same = (known.sequence, known.operation) == (event.sequence, event.operation)
            if known.group is None and is_same:
                first[event.rank] = replace(known, group=event.group)
    return list(first.values())


def _timeout_finding(group: str | None, first: dict[int, TimedOut]) -> NcclFinding:
    ranks_by_call: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank, event in sorted(first.items()):
        ranks_by_call[event.sequence, event.operation].append(rank)
    place = min(first.values(), key=lambda event: (event.place.file, event.place.line)).place
    of_group = f" of group {group}" if group is not None else ""
    if len(ranks_by_call) > 1:
        code, ranks, message = "desync", _minority(ranks_by_call), _describe_mismatch(ranks_by_call, of_group)
    else:
        (sequence, operation), waiting = next(iter(ranks_by_call.items()))
        silent = _silent_ranks(group, waiting)
        code, ranks = ("silent_rank", silent) if silent else ("timeout", waiting)
        message = f"{ranks_words(waiting)} waited in {operation} {sequence}{of_group} until torch's timeout"
        message += f"; {ranks_words(silent)} did not: look there first" if silent else ""
    return NcclFinding(code, Severity.CRITICAL, message, place.file, place.line, ranks)


def _silent_ranks(group: str | None, waiting: list[int]) -> list[int]:
    """Ranks without a timeout; none if the group is not of all ranks, or if more are silent than not, which means that
    their logs are missing."""
    if group is not None and OF_ALL not in group and group != "0":
        return []
    silent = sorted(set(range(max(waiting))) - set(waiting))
    return silent if len(silent) < len(waiting) else []


def _minority(ranks_by_call: dict[tuple[int, str], list[int]]) -> list[int]:
    """Ranks apart from the majority; all of them without one."""
    by_number = sorted(ranks_by_call.values(), key=len)
    has_majority = len(by_number[-1]) > len(by_number[-2])
    return sorted(rank for ranks in (by_number[:-1] if has_majority else by_number) for rank in ranks)


def _describe_mismatch(ranks_by_call: dict[tuple[int, str], list[int]], of_group: str) -> str:
    calls = [f"{ranks_words(ranks)} in {name} {sequence}" for (sequence, name), ranks in ranks_by_call.items()]
    return (
        f"ranks wait in different collectives{of_group}: {'; '.join(calls)}: "
        "they do not call the same in the same order"
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
    """Description of a failed transfer: "retries exceeded: the peer does not answer (status 12, vendor error 129)"."""
    return f"{_STATUS.get(status, 'unknown error')} (status {status}, vendor error {vendor_error})"


def transfer_error_advice(status: int) -> str:
    """What to check after a failed transfer."""
    return _ADVICE.get(status, "look at both hosts' kernel logs and the card's counters")


def ras_findings(statuses: Iterable[RasStatus]) -> list[NcclFinding]:
    """Findings of RAS: ranks that are dead, do not answer, or differ from the others."""
    found: list[NcclFinding] = []
    for status in statuses:
        for line in status.dead:
            message = f"{line} is dead or does not answer"
            found.append(NcclFinding("ras_dead", Severity.CRITICAL, message, status.file, 0))
        for one in status.communicators:
            found += _communicator_findings(one, status.file)
    return found


def _communicator_findings(one: RasCommunicator, file: str) -> Iterator[NcclFinding]:
    dead = [rank.rank for rank in one.missing if rank.is_dead]
    silent = [rank.rank for rank in one.missing if not rank.is_dead]
    for ranks, how in ((dead, "considered dead"), (silent, "without an answer")):
        if ranks:
            where = form(len(ranks), "its host", "their hosts")
            message = f"communicator {one.id}: {ranks_words(ranks)} {how}: look at {where} first"
            yield NcclFinding("ras_missing", Severity.CRITICAL, message, file, 0, ranks)
    for problem_ranks, what in one.problems:
        message = f"communicator {one.id}: {ranks_words(list(problem_ranks))} {what}, unlike the others"
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, file, 0, list(problem_ranks))
    yield from _behind(one, file)


def _behind(one: RasCommunicator, file: str) -> Iterator[NcclFinding]:
    """Finding on ranks that launched fewer collectives than most, from the counts of the JSON format."""
    behind = ranks_with_fewer_calls(one)
    if behind:
        message = (
            f"communicator {one.id}: {ranks_words(behind)} {form(len(behind), 'has', 'have')} launched fewer "
            "collectives than the others; ask again: standing still is a hang"
        )
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, file, 0, behind)


def flag_findings(pages: Iterable[HangFlags]) -> list[NcclFinding]:
    """Findings on ranks that xpu_timer flags: all of them in a hang; a few are only slow."""
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
    """One finding if the optimizer's step takes longer than forward and backward together."""
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
