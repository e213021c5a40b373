"""Findings on the state of ranks: of NCCL's RAS service, and of xpu_timer's hang flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from stepscope.core.documents.nccl import NcclFinding, RasSummary
from stepscope.core.documents.nccl_rank_status import HangFlags, RasCommunicator, RasGroup, RasStatus, launch_groups
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, form, listed, ranks_words

_OK = "OK"


def summaries(statuses: Iterable[RasStatus]) -> list[RasSummary]:
    """NCCL RAS: the last answer in each file."""
    return [
        RasSummary(one.file, one.line, one.version, one.num_nodes, one.num_gpus, list(one.rows))
        for one in _last_of_each_file(statuses)
    ]


def _last_of_each_file(statuses: Iterable[RasStatus]) -> list[RasStatus]:
    return list({status.file: status for status in statuses}.values())


def ras_findings(statuses: Sequence[RasStatus], *, has_timeouts: bool) -> list[NcclFinding]:
    """Ranks that are dead, do not answer, report an error, or are ahead or behind, by the last answer in each file.

    Args:
        has_timeouts: whether torch's watchdog ended the job.
    """
    found: list[NcclFinding] = []
    for status in _last_of_each_file(statuses):
        for line in status.dead:
            message = f"{line} is dead or does not answer"
            found.append(NcclFinding("ras_dead", Severity.CRITICAL, message, status.file, status.line))
        for one in status.communicators:
            found += _communicator_findings(one, status)
        if not status.communicators:
            found += _without_details(status)
    found += _standing_still(statuses)
    if has_timeouts and statuses and not found:
        found.append(_nothing_seen(statuses[-1]))
    return found


def _without_details(status: RasStatus) -> Iterator[NcclFinding]:
    rows = [row for row in status.rows if row.errors != _OK]
    if rows:
        each = "; ".join(
            f"{counted(row.communicators, 'communicator')} of {counted(row.num_ranks, 'rank')}: {row.errors}"
            for row in rows
        )
        message = f"RAS reports {each}; ask it for details (VERBOSE STATUS)"
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, status.file, status.line)


def _nothing_seen(status: RasStatus) -> NcclFinding:
    message = (
        "RAS saw no difference between the ranks although torch's watchdog ended the job: it compares launched calls, "
        "and a call that all ranks launched and none completes is no difference"
    )
    return NcclFinding("ras_ok", Severity.INFO, message, status.file, status.line)


def _communicator_findings(one: RasCommunicator, status: RasStatus) -> Iterator[NcclFinding]:
    file, line = status.file, status.line
    dead = sorted({rank.rank for rank in one.missing if rank.is_dead})
    silent = sorted({rank.rank for rank in one.missing if not rank.is_dead})
    for ranks, how in ((dead, "considered dead"), (silent, "without an answer")):
        if ranks:
            where = form(len(ranks), "its host", "their hosts")
            message = f"communicator {one.id}: {ranks_words(ranks)} {how}: look at {where} first"
            yield NcclFinding("ras_missing", Severity.CRITICAL, message, file, line, ranks)
    yield from _errors(one, status)
    for group in one.groups:
        if group.operation is None and group.ranks and not group.what.startswith("reported"):
            message = f"communicator {one.id}: {ranks_words(list(group.ranks))} {group.what}, unlike the others"
            yield NcclFinding("ras_mismatch", Severity.WARNING, message, file, line, list(group.ranks))
    yield from _ahead_and_behind(one, status)


def _errors(one: RasCommunicator, status: RasStatus) -> Iterator[NcclFinding]:
    ranks_by_error: dict[str, list[int]] = defaultdict(list)
    for rank in one.ranks:
        if rank.error:
            ranks_by_error[rank.error].append(rank.rank)
    for group in one.groups:
        if group.what.startswith("reported "):
            ranks_by_error[group.what.removeprefix("reported ")] += group.ranks
    for error, ranks in ranks_by_error.items():
        who = ranks_words(ranks) if ranks else "ranks"
        message = f"communicator {one.id}: {who} {form(len(ranks), 'reports', 'report')} {error}: look at their logs"
        yield NcclFinding("ras_error", Severity.CRITICAL, message, status.file, status.line, ranks)


def _ahead_and_behind(one: RasCommunicator, status: RasStatus) -> Iterator[NcclFinding]:
    """Who has launched fewer calls of a kind, and who more; RAS itself names the smaller group, whichever it is."""
    for kind, groups in launch_groups(one).items():
        front, behind = groups[-1], groups[:-1]
        ranks = sorted(rank for group in behind for rank in group.ranks)
        num_behind = sum(group.num_ranks for group in behind)
        calls = f"{kind or 'collectives'}: {_at(groups)}"
        is_few = num_behind < front.num_ranks
        if is_few and ranks:
            who = f"{ranks_words(ranks)} {form(len(ranks), 'has', 'have')} launched fewer collectives than the others"
        elif is_few:
            who = f"{counted(num_behind, 'rank')} {form(num_behind, 'has', 'have')} launched fewer collectives"
        else:
            first = ranks_words(list(front.ranks)) if front.ranks else counted(front.num_ranks, "rank")
            have = form(front.num_ranks, "has", "have")
            who = (
                f"{first} {have} launched more collectives and {form(front.num_ranks, 'waits', 'wait')} for the others"
            )
        message = f"communicator {one.id}: {who} ({calls}); ask again: standing still is a hang"
        yield NcclFinding("ras_mismatch", Severity.WARNING, message, status.file, status.line, ranks)


def _at(groups: Sequence[RasGroup]) -> str:
    """ "2 at 641, 30 at 640", the foremost first."""
    return listed(f"{group.num_ranks:,} at {group.operation:,}" for group in reversed(groups))


def _standing_still(statuses: Iterable[RasStatus]) -> Iterator[NcclFinding]:
    """Communicators whose ranks differ in the same calls in several answers of one file in a row."""
    by_file: dict[str, list[RasStatus]] = defaultdict(list)
    for status in statuses:
        by_file[status.file].append(status)
    for of_file in by_file.values():
        runs: dict[str, tuple[str, int]] = {}
        longest: dict[str, tuple[int, RasStatus]] = {}
        for status in of_file:
            groups = {one.id: launch_groups(one) for one in status.communicators}
            states = {identity: repr(of_one) for identity, of_one in groups.items() if of_one}
            runs = {
                identity: (state, runs[identity][1] + 1 if runs.get(identity, ("", 0))[0] == state else 1)
                for identity, state in states.items()
            }
            for identity, (_, number) in runs.items():
                if number > max(1, longest.get(identity, (1, status))[0]):
                    longest[identity] = number, status
        for identity, (number, status) in longest.items():
            message = (
                f"communicator {identity}: the ranks differ in the same calls in {number} answers of RAS in a row: "
                "a hang"
            )
            yield NcclFinding("ras_hang", Severity.CRITICAL, message, status.file, status.line)


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
