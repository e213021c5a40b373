"""Which communicators stand still with their ranks at different places? By answers of NCCL's RAS, one after another."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.nccl_sources import RasCommunicator, RasStatus
from stepscope.core.ras_counts import ranks_behind


@dataclass(frozen=True, slots=True)
class Stalled:
    """A communicator that stands.

    Attributes:
        ranks: of the communicator: behind the others, dead, or without an answer.
        processes: of all its ranks, as their hosts number them.
        seconds: since it was seen so first.
    """

    communicator: str
    ranks: tuple[int, ...]
    processes: frozenset[int]
    seconds: float


class StalledCommunicators:
    """Remembers since when each has stood."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[object, float]] = {}

    def look(self, status: RasStatus, now: float) -> list[Stalled]:
        """Those that are as they were the last time, and uneven; `now` in monotonic seconds."""
        since, found = {}, []
        for one in status.communicators:
            ranks = ranks_behind(one)
            if not ranks:
                continue
            counts = _counts(one)
            before, began = self._since.get(one.id, (None, now))
            since[one.id] = counts, began if before == counts else now
            if before == counts:
                processes = frozenset(rank.process for rank in (*one.ranks, *one.missing))
                found.append(Stalled(one.id, tuple(ranks), processes, now - began))
        self._since = since
        return found


def _counts(one: RasCommunicator) -> object:
    counts = tuple((rank.rank, tuple(sorted(rank.counts.items()))) for rank in one.ranks)
    return counts, tuple(rank.rank for rank in one.missing), one.problems
