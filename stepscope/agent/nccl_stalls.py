"""Stalled NCCL communicators as NCCL's own RAS service sees them, also of jobs that run without stepscope.

A stall alone is not a hang: it looks the same while one rank writes a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stepscope.collectors.nccl.rank_status import ask_ras, read_ras
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.documents.nccl import RasCommunicator, RasStatus, ranks_behind
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import DataError
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import Collection, MissingReason
from stepscope.core.text.numbers import ranks_words

_MIN_STALL_SECONDS = 15.0
_MAX_REPORTED = 16
_METRIC = TRAINING + "nccl_stalled_seconds"


class NcclSource:
    """Source of stalled communicators on this node.

    Args:
        address: host and port of the RAS service.
        ranks: processes that are connected to the agent; they give a communicator's run, and whether it is in a phase.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: tuple[str, int],
        ranks: Callable[[], Sequence[TrainingRank]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._address = address
        self._ranks = ranks
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._stalled = StallHistory()

    def collect(self) -> Collection:
        """Ask once. Nobody listening is normal: no NCCL job runs here."""
        name = f"{self._address[0]}:{self._address[1]}"
        try:
            status = read_ras(ask_ras(self._address), file=name)
        except ConnectionRefusedError:
            return Collection()
        except OSError as error:
            reason = MissingReason.TIMED_OUT if isinstance(error, TimeoutError) else MissingReason.UNREACHABLE
            return NoValue(reason, f"NCCL's RAS at {name}: {error.strerror or error}").of_all()
        except DataError as error:
            return NoValue(MissingReason.UNREADABLE, str(error)).of_all()
        stalled = self._stalled.observe(status, self._clock())
        lasting = [one for one in stalled if one.seconds >= _MIN_STALL_SECONDS][:_MAX_REPORTED]
        return self._collection(lasting, self._wall_clock_ns())

    def _collection(self, stalled: Iterable[StalledCommunicator], now_ns: int) -> Collection:
        into = ReadingsBuilder(now_ns)
        ranks = self._ranks()
        for one in stalled:
            ours = [rank for rank in ranks if rank.pid in one.processes]
            if any(rank.doing for rank in ours):
                continue
            run = ours[0].hello.run if ours else ""
            message = (
                f"communicator {one.communicator}: {ranks_words(list(one.ranks))} behind the others, and no count has"
                f" moved for {one.seconds:.0f} s: a hang, unless they are at work on something else"
            )
            into.add(_METRIC, one.seconds, run=run, communicator=one.communicator)
            into.note("nccl_stalled", message, run=run, communicator=one.communicator)
        return into.collection()


def ras_address(text: str) -> tuple[str, int] | None:
    """Host and port of "host:port"; None where it is something else."""
    host, _, port = text.rpartition(":")
    with suppress(ValueError):
        if host and 0 < int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    return None


@dataclass(frozen=True, slots=True)
class StalledCommunicator:
    """A communicator that makes no progress.

    Attributes:
        ranks: ranks of the communicator that are behind the others, dead, or do not answer.
        processes: process ids of all its ranks, as on their hosts.
        seconds: since this was seen first.
    """

    communicator: str
    ranks: tuple[int, ...]
    processes: frozenset[int]
    seconds: float


class StallHistory:
    """Since when each communicator has made no progress."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[object, float]] = {}

    def observe(self, status: RasStatus, now: float) -> list[StalledCommunicator]:
        """Communicators with ranks behind that have not changed since the last call; `now` in monotonic seconds."""
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
                found.append(StalledCommunicator(one.id, tuple(ranks), processes, now - began))
        self._since = since
        return found


def _counts(one: RasCommunicator) -> object:
    counts = tuple((rank.rank, tuple(sorted(rank.counts.items()))) for rank in one.ranks)
    return counts, tuple(rank.rank for rank in one.missing), one.problems
