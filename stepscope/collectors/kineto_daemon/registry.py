"""Which processes ask for traces to take: who is each, since when, when does it ask next?

libkineto asks every 5 s, from one socket of a name of its own as long as the process lives, so that name is the key.
A process that is silent for a minute has ended, or waits for its daemon no more (as dynolog has it).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from stepscope.collectors.kineto_daemon.wire import Poll

Address = str | bytes
"""Of a socket: a path, or bytes that begin with a zero byte."""

SILENT_SECONDS = 60.0
POLL_SECONDS = 5.0
_MOST_PROCESSES = 4096
_MOST_PROCESSES_OF_USER = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sent a datagram, as the kernel says.

    Attributes:
        pid: in our namespace, 0 where that has no such process.
        uid, gid: its user.
    """

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class KinetoProcess:
    """A process that asks.

    Attributes:
        address: of its socket.
        peer: who it is, as the kernel says.
        pid: in its own namespace.
        ancestors: the process ids above it, the parent first, in its own namespace.
        job_id: its SLURM_JOB_ID, None without.
        last_seen: its latest poll, monotonic seconds.
        num_polls: so far.
        accepts: whether it would have taken a request at its latest poll.
        interval: from its last poll but one to its latest, seconds; libkineto's own before.
    """

    address: Address
    peer: Peer
    pid: int
    ancestors: tuple[int, ...]
    job_id: int | None
    last_seen: float
    num_polls: int
    accepts: bool
    interval: float = POLL_SECONDS

    @property
    def ancestors_in_our_namespace(self) -> tuple[int, ...]:
        """The process ids above it as we know them; none of a process in another namespace, a container's."""
        return self.ancestors if self.pid == self.peer.pid else ()

    @property
    def next_poll(self) -> float:
        """When it should ask next, monotonic seconds."""
        return self.last_seen + self.interval


class Registry:
    """The processes that asked within the last minute. Bounded; for one thread at a time."""

    def __init__(self) -> None:
        self._processes: dict[Address, KinetoProcess] = {}
        self._of_user: Counter[int] = Counter()

    def saw(self, address: Address, peer: Peer, poll: Poll, now: float) -> KinetoProcess | None:
        """A process asked; None when there are too many to know this one, too."""
        known = self._processes.get(address)
        if known is None:
            self.forget_silent(now)
            full = len(self._processes) >= _MOST_PROCESSES or self._of_user[peer.uid] >= _MOST_PROCESSES_OF_USER
            if full:
                return None
            pid, *ancestors = poll.pids
            job_id = poll.job_id if poll.job_id > 0 else None
            process = KinetoProcess(address, peer, pid, tuple(ancestors), job_id, now, 1, poll.accepts)
            self._of_user[peer.uid] += 1
        else:
            interval = min(now - known.last_seen, SILENT_SECONDS)
            process = replace(
                known, last_seen=now, num_polls=known.num_polls + 1, accepts=poll.accepts, interval=interval
            )
        self._processes[address] = process
        return process

    def forget_silent(self, now: float) -> None:
        """Drop those that have been silent for long."""
        for address, process in list(self._processes.items()):
            if now - process.last_seen > SILENT_SECONDS:
                self.forget(address)

    def forget(self, address: Address) -> None:
        """Drop one: its socket is gone."""
        process = self._processes.pop(address, None)
        if process is not None:
            self._of_user[process.peer.uid] -= 1

    def processes(self, now: float) -> tuple[KinetoProcess, ...]:
        """All that asked within the last minute, the first to ask first."""
        self.forget_silent(now)
        return tuple(self._processes.values())
