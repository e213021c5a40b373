"""Targets: processes that can be captured, the run their traces go to, and the requests pending for them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.kineto_daemon.processes import JobPlace, KinetoProcess, is_helper, job_place, process_times

KEY_PREFIX = "kineto-"
"""Of every key."""
_SOCKET_PREFIX = "dynoconfigclient"
_NOT_IN_RUN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_WATCHED_SECONDS = 4.0
_IDLE_SHARE = 0.02
"""Of a core. A trainer that waits for its GPU alone still launches, and mostly spins."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that can be captured.

    Attributes:
        key: names it, also to an agent that has restarted meanwhile.
        process: as it asks.
        place: in its job.
        run: the name of its job here.
        run_directory: where its traces come to lie.
    """

    key: str
    process: KinetoProcess
    place: JobPlace
    run: str
    run_directory: Path


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """What stays as it is as long as a process asks."""

    place: JobPlace
    run: str
    is_helper: bool
    at: float
    cpu_seconds: float


class Targets:
    """Looks up each process once, as long as it asks. For one thread."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._known: dict[str, _KnownProcess] = {}

    def of(self, processes: Iterable[KinetoProcess], now: float) -> dict[str, Target]:
        """The targets by key, at `now` (monotonic seconds): all but launchers, and processes that trainers started."""
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
        place, times = job_place(pid, self._proc), process_times(pid, self._proc)
        above = [one for one in process.ancestors_in_our_namespace if one in pids]
        leader = above[-1] if above else pid
        if place.rank is not None and times is not None:
            leader = times.parent  # with a rank, it is one of several that a launcher has started
        run = run_name(process.job_id, place.run_id, leader, self._proc)
        return _KnownProcess(place, run, is_helper(pid, self._proc), now, times.cpu_seconds if times else 0.0)

    def _is_waiting(self, process: KinetoProcess, known: _KnownProcess, now: float) -> bool:
        """Whether it does nothing itself, as a launcher that waits for those it started."""
        times = process_times(process.peer.pid, self._proc)
        since = now - known.at
        return (
            times is not None
            and since > _WATCHED_SECONDS
            and times.cpu_seconds - known.cpu_seconds < _IDLE_SHARE * since
        )


class _ProcessTree:
    """Who started whom, among processes whose ids are ours."""

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
        """Whether it started processes that have ranks, and has none."""
        return rank is None and process.peer.pid in self._above_ranks

    def is_above_others(self, process: KinetoProcess, rank: int | None) -> bool:
        """Whether it started processes whose ranks are not known: trainers, or its own helpers."""
        return rank is None and process.peer.pid in self._above_others


def run_name(job_id: int | None, run_id: str | None, leader: int, proc: Path = Path("/proc")) -> str:
    """What a job is called: alike for all its ranks on this node, unlike any other job's here.

    Args:
        job_id: Slurm's, None without.
        run_id: of torchrun's rendezvous, None without.
        leader: the process that started its ranks, or its only one.
        proc: where to look.
    """
    if job_id is not None:
        return f"slurm-{job_id}"
    if run_id is not None:
        return f"torchrun-{_NOT_IN_RUN_NAME.sub('_', run_id)[:64]}"
    times = process_times(leader, proc)
    return f"pid-{leader}-{times.start_ticks if times else 0}"  # process ids come again


def key_of(process: KinetoProcess) -> str:
    """A process's key: its socket has a random name that lives as long as the process."""
    address = process.address
    name = address.decode(errors="replace") if isinstance(address, bytes) else address.rpartition("/")[2]
    plain = "".join(c for c in name.removeprefix("\0").removeprefix(_SOCKET_PREFIX) if c.isalnum() or c == "-")
    return KEY_PREFIX + plain[:64]


def ranks_to_keep(targets: Iterable[Target], in_trace: Mapping[str, int | None]) -> dict[str, int]:
    """The rank that each trace is kept as: its environment's, else its trace's, else the next that is free.

    Args:
        targets: the processes.
        in_trace: the rank that the trace of each key tells.
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
            key: of the process.
            text: the request.
            unless: a file in memory or on a local disk whose existence says that the request was fulfilled meanwhile.
        """
        with self._lock:
            self._texts[key] = (text, unless)

    def withdraw(self, key: str) -> None:
        """Hand nothing over any more, and forget what was."""
        with self._lock:
            self._texts.pop(key, None)
            self._delivered.pop(key, None)

    def delivered(self, key: str) -> int | None:
        """At which of its polls the process last got a request; None before, and after it was withdrawn."""
        with self._lock:
            return self._delivered.get(key)

    def take(self, process: KinetoProcess) -> str:
        """The text for the poll that the process has just made; empty for none."""
        if not process.accepts:
            return ""
        key = key_of(process)
        with self._lock:
            text, unless = self._texts.pop(key, ("", None))
            if not text or (unless is not None and os.path.lexists(unless)):
                return ""
            self._delivered[key] = process.num_polls
        return text
