"""Targets: processes that can be captured, the run that their traces go to, and the requests pending for them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.kineto_daemon.processes import (
    JobPlace,
    KinetoProcess,
    cpu_seconds,
    is_helper,
    job_place,
    process_stat,
)

KEY_PREFIX = "kineto-"
"""First part of every key."""
_SOCKET_PREFIX = "dynoconfigclient"
_NOT_IN_RUN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_WATCHED_SECONDS = 4.0
_IDLE_SHARE = 0.02
"""Share of a core. A trainer that only waits for its GPU still launches kernels, and mostly spins."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that can be captured.

    Attributes:
        key: its id, the same after a restart of the agent.
        process: its newest poll.
        place: in its job.
        run: name of the run that holds its traces.
        run_directory: of that run.
    """

    key: str
    process: KinetoProcess
    place: JobPlace
    run: str
    run_directory: Path


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """Facts on a process that are looked up once."""

    place: JobPlace
    run: str
    is_helper: bool
    at: float
    cpu_seconds_before: float


class Targets:
    """Looks up each process once, as long as it polls. Not thread-safe."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._known: dict[str, _KnownProcess] = {}

    def of(self, processes: Iterable[KinetoProcess], now: float) -> dict[str, Target]:
        """The targets by key at `now`, monotonic seconds: all but launchers, and processes that trainers started."""
        by_key = {key_of(process): process for process in processes}
        pids = {process.peer.pid for process in by_key.values()}
        self._known = {key: self._known.get(key) or self._looked_up(one, pids, now) for key, one in by_key.items()}
        family = _ProcessTree([(process, self._known[key].place.rank) for key, process in by_key.items()])
        return {
            key: Target(key, process, known.place, known.run, self._folder / known.run)
            for key, process in by_key.items()
            for known in [self._known[key]]
            if not known.is_helper
            and not family.is_of_a_trainer(process, known.place.rank)
            and not family.is_above_ranks(process, known.place.rank)
            and not (family.is_above_others(process, known.place.rank) and self._is_waiting(process, known, now))
        }

    def _looked_up(self, process: KinetoProcess, pids: Collection[int], now: float) -> _KnownProcess:
        pid = process.peer.pid
        place, stat = job_place(pid, self._proc), process_stat(pid, self._proc)
        above = [one for one in process.ancestors_in_our_namespace if one in pids]
        leader = above[-1] if above else pid
        if place.rank is not None and stat is not None:
            leader = stat.parent  # with a rank, it is one of several that a launcher has started
        run = run_name(process.job_id, place.run_id, leader, self._proc)
        return _KnownProcess(place, run, is_helper(pid, self._proc), now, cpu_seconds(stat) if stat else 0.0)

    def _is_waiting(self, process: KinetoProcess, known: _KnownProcess, now: float) -> bool:
        """Whether it is idle, as a launcher that waits for the processes it started."""
        stat, since = process_stat(process.peer.pid, self._proc), now - known.at
        if stat is None or since <= _WATCHED_SECONDS:
            return False
        return cpu_seconds(stat) - known.cpu_seconds_before < _IDLE_SHARE * since


class _ProcessTree:
    """Ancestry of the processes in our namespace."""

    def __init__(self, processes: Sequence[tuple[KinetoProcess, int | None]]) -> None:
        self._rank_of = {process.peer.pid: rank for process, rank in processes}
        self._above_ranks: set[int] = set()
        self._above_others: set[int] = set()
        for process, rank in processes:
            above = self._above_others if rank is None else self._above_ranks
            above.update(process.ancestors_in_our_namespace)

    def is_of_a_trainer(self, process: KinetoProcess, rank: int | None) -> bool:
        """Whether a process of the same rank started it: to load data, or to compile."""
        return rank is not None and any(self._rank_of.get(pid) == rank for pid in process.ancestors_in_our_namespace)

    def is_above_ranks(self, process: KinetoProcess, rank: int | None) -> bool:
        """Whether it started processes that have ranks, and has none itself."""
        return rank is None and process.peer.pid in self._above_ranks

    def is_above_others(self, process: KinetoProcess, rank: int | None) -> bool:
        """Whether it started processes whose ranks are not known: trainers, or its own helpers."""
        return rank is None and process.peer.pid in self._above_others


def run_name(job_id: int | None, run_id: str | None, leader: int, proc: Path = Path("/proc")) -> str:
    """Name of a job's run: the same for all its ranks on this node, unlike that of any other job here.

    Args:
        job_id: of Slurm, None without.
        run_id: of torchrun's rendezvous, None without.
        leader: the process that started its ranks, or its only one.
        proc: mount point of /proc.
    """
    if job_id is not None:
        return f"slurm-{job_id}"
    if run_id is not None:
        return f"torchrun-{_NOT_IN_RUN_NAME.sub('_', run_id)[:64]}"
    stat = process_stat(leader, proc)
    return f"pid-{leader}-{stat.start_ticks if stat else 0}"  # process ids are reused


def key_of(process: KinetoProcess) -> str:
    """Key of a process: its socket has a random name that lasts as long as the process."""
    address = process.address
    name = address.decode(errors="replace") if isinstance(address, bytes) else address.rpartition("/")[2]
    plain = "".join(c for c in name.removeprefix("\0").removeprefix(_SOCKET_PREFIX) if c.isalnum() or c == "-")
    return KEY_PREFIX + plain[:64]


def ranks_to_keep(targets: Iterable[Target], in_trace: Mapping[str, int | None]) -> dict[str, int]:
    """Rank of each trace by key: that of the process's environment, else that in its trace, else the next free one.

    Args:
        in_trace: the rank in the trace of each key.
    """
    ordered = sorted(targets, key=lambda target: target.process.peer.pid)
    ranks: dict[str, int] = {}
    for target in ordered:
        rank = in_trace[target.key] if target.place.rank is None else target.place.rank
        if rank is not None and rank not in ranks.values():
            ranks[target.key] = rank
    free = (rank for rank in range(2 * len(ordered)) if rank not in set(ranks.values()))
    return ranks | {target.key: next(free) for target in ordered if target.key not in ranks}


class PendingRequests:
    """Requests that wait for the next polls of their processes. Thread-safe; the lock is held for a dict access."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[str, str | None]] = {}
        self._delivered: dict[str, int] = {}

    def put(self, key: str, text: str, *, unless: str | None) -> None:
        """Hand `text` to the process once, at its next poll at which it accepts a request.

        Args:
            unless: a file in memory or on a local disk that exists once the request is fulfilled.
        """
        with self._lock:
            self._texts[key] = (text, unless)

    def withdraw(self, key: str) -> None:
        """Remove the request of a process, and forget its delivery."""
        with self._lock:
            self._texts.pop(key, None)
            self._delivered.pop(key, None)

    def delivered(self, key: str) -> int | None:
        """Number of the poll at which the process last got a request; None before, and after it was withdrawn."""
        with self._lock:
            return self._delivered.get(key)

    def take(self, process: KinetoProcess) -> str:
        """The request text for the poll that the process has just made; empty for none."""
        if not process.accepts:
            return ""
        key = key_of(process)
        with self._lock:
            text, unless = self._texts.pop(key, ("", None))
            if not text or (unless is not None and os.path.lexists(unless)):
                return ""
            self._delivered[key] = process.num_polls
        return text
