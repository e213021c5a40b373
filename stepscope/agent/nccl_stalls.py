"""Stalled NCCL communicators, seen by NCCL's own RAS service; also of jobs that run without stepscope.

A stall alone is not a hang: it looks the same while one rank writes a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stepscope.collectors.nccl.ras import ask_ras, read_ras
from stepscope.core.documents.nccl_logs import RasCommunicator, RasStatus, ranks_behind
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import DataError
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of
from stepscope.core.text.numbers import ranks_words

_TOLD_AFTER_SECONDS = 15.0
_MOST_TOLD = 16
_METRIC = TRAINING + "nccl_stalled_seconds"


class NcclSource:
    """Asks the service on this node.

    Args:
        address: host and port of the service.
        ranks: processes that speak to the agent: whose run a communicator is of, and whether it is in a phase.
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
        self._stalled = StalledCommunicators()

    def collect(self) -> Collection:
        """Ask once. That nobody listens is no fault: no NCCL job runs here."""
        name = f"{self._address[0]}:{self._address[1]}"
        try:
            status = read_ras(ask_ras(self._address), file=name)
        except ConnectionRefusedError:
            return Collection()
        except OSError as error:
            reason = MissingReason.TIMED_OUT if isinstance(error, TimeoutError) else MissingReason.UNREACHABLE
            return Collection((), (Missing("", (), reason, f"NCCL's RAS at {name}: {error.strerror or error}"),))
        except DataError as error:
            return Collection((), (Missing("", (), MissingReason.UNREADABLE, str(error)),))
        told = self._stalled.look(status, self._clock())
        lasting = [one for one in told if one.seconds >= _TOLD_AFTER_SECONDS][:_MOST_TOLD]
        return self._collection(lasting, self._wall_clock_ns())

    def _collection(self, stalled: Iterable[Stalled], now_ns: int) -> Collection:
        readings, findings = [], []
        ranks = self._ranks()
        for one in stalled:
            ours = [rank for rank in ranks if rank.pid in one.processes]
            if any(rank.doing for rank in ours):
                continue
            labels = labels_of(run=ours[0].run if ours else "", communicator=one.communicator)
            message = (
                f"communicator {one.communicator}: {ranks_words(list(one.ranks))} behind the others, and no count has"
                f" moved for {one.seconds:.0f} s: a hang, unless they are at work on something else"
            )
            readings.append(Reading(_METRIC, one.seconds, labels, now_ns))
            findings.append(Finding("nccl_stalled", message, labels, now_ns))
        return Collection(tuple(readings), (), tuple(findings))


def ras_address(told: str) -> tuple[str, int] | None:
    """Host and port of "host:port"; None where it is neither."""
    host, _, port = told.rpartition(":")
    with suppress(ValueError):
        if host and 0 < int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    return None


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
