"""What is wrong with communicators by NCCL's own watch (RAS), and by xpu_timer's flags?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.core.counting import form
from stepscope.core.health import Severity
from stepscope.core.nccl import NcclFinding
from stepscope.core.nccl_sources import HangFlags, RasCommunicator, RasStatus
from stepscope.core.ras_counts import ranks_with_fewer_calls
from stepscope.core.words import ranks_words


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
