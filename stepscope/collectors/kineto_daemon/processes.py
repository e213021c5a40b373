"""Processes that poll the daemon: identity, next poll, place in the job, and which of them can be captured.

libkineto asks every 5 s, from one socket whose name lives as long as the process, so that name is the key. A process
that is silent for a minute has ended, or no longer polls (the rule of dynolog). The place in a job is read from /proc,
from the environment at the start of the process: variables that it set itself later, as under
torch.multiprocessing.spawn, are not in it; then the trace's own distributedInfo gives the rank.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.collectors.host.processes import ProcessStat, parse_process_stat
from stepscope.collectors.kineto_daemon.protocol import KinetoPoll

Address = str | bytes
"""Address of a Unix socket: a path, or bytes that begin with a zero byte."""

SILENT_SECONDS = 60.0
POLL_SECONDS = 5.0
_MAX_PROCESSES = 4096
_MAX_PROCESSES_OF_USER = 1024


@dataclass(frozen=True, slots=True)
class KinetoPeer:
    """Sender of a libkineto datagram; its pid is in our namespace, 0 where that has no such process."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class KinetoProcess:
    """A process that polls the kineto daemon.

    Attributes:
        ancestors: the process ids above it, the parent first, in its own namespace.
        job_id: its SLURM_JOB_ID, None without.
        last_seen, first_seen: its latest and its first poll, monotonic seconds.
        accepts: whether it would have taken a request at its latest poll.
        interval: seconds between its two latest polls; libkineto's own interval after the first.
    """

    address: Address
    peer: KinetoPeer
    pid: int
    ancestors: tuple[int, ...]
    job_id: int | None
    last_seen: float
    num_polls: int
    accepts: bool
    interval: float = POLL_SECONDS
    first_seen: float = 0.0

    @property
    def ancestors_in_our_namespace(self) -> tuple[int, ...]:
        """The process ids above it in our namespace; none for a process in another one, such as a container's."""
        return self.ancestors if self.pid == self.peer.pid else ()

    @property
    def next_poll(self) -> float:
        return self.last_seen + self.interval


class KinetoRegistry:
    """The processes that polled the kineto daemon within the last minute. Bounded; not thread-safe."""

    def __init__(self) -> None:
        self._processes: dict[Address, KinetoProcess] = {}
        self._of_user: Counter[int] = Counter()

    def record(self, address: Address, peer: KinetoPeer, poll: KinetoPoll, now: float) -> KinetoProcess | None:
        """Record a poll and return its process; None when there are too many already."""
        known = self._processes.get(address)
        if known is not None and known.peer.uid != peer.uid:  # another user has taken the name of one that ended
            self.forget(address)
            known = None
        if known is None:
            self.forget_silent(now)
            if len(self._processes) >= _MAX_PROCESSES or self._of_user[peer.uid] >= _MAX_PROCESSES_OF_USER:
                return None
            pid, *ancestors = poll.pids
            job_id = poll.job_id if poll.job_id > 0 else None
            process = KinetoProcess(address, peer, pid, tuple(ancestors), job_id, now, 1, poll.accepts, first_seen=now)
            self._of_user[peer.uid] += 1
        else:
            interval = min(now - known.last_seen, SILENT_SECONDS)
            process = replace(
                known, last_seen=now, num_polls=known.num_polls + 1, accepts=poll.accepts, interval=interval
            )
        self._processes[address] = process
        return process

    def forget_silent(self, now: float) -> None:
        """Remove processes that have been silent for a minute."""
        for address, process in list(self._processes.items()):
            if now - process.last_seen > SILENT_SECONDS:
                self.forget(address)

    def forget(self, address: Address) -> None:
        """Remove a process whose socket is gone."""
        process = self._processes.pop(address, None)
        if process is not None:
            self._of_user[process.peer.uid] -= 1

    def processes(self, now: float) -> tuple[KinetoProcess, ...]:
        """All processes that polled within the last minute, the first to poll first."""
        self.forget_silent(now)
        return tuple(self._processes.values())


_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_OPTIONS_WITH_VALUE = frozenset({b"-W", b"-X"})
"""Options of Python that take the next argument."""
_LAUNCHERS = frozenset({b"torchrun", b"accelerate", b"deepspeed"})
_LAUNCHER_MODULES = frozenset(
    {b"torch.distributed.run", b"torch.distributed.launch", b"accelerate.commands.launch", b"deepspeed.launcher.launch"}
)
"""They import PyTorch and do not train themselves, also before they have started those that do."""
_HELPER_PATHS = (b"/torch/_inductor/compile_worker/",)
"""Parts of command lines of processes that PyTorch starts beside a trainer, which import it as well."""
_MAX_FILE_BYTES = 1 << 20
_MAX_RANK = 1 << 24


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Place in its job of a process that polls the kineto daemon; None is unknown.

    Attributes:
        rank: among all ranks; world_size: their number; local_size: their number on this node.
        run_id: of torchrun's rendezvous, set by its user.
        trace_folder: below which libkineto may write (KINETO_ONDEMAND_TRACE_DIR).
    """

    rank: int | None = None
    run_id: str | None = None
    trace_folder: str | None = None
    world_size: int | None = None
    local_size: int | None = None


def job_place(pid: int, proc: Path = Path("/proc")) -> JobPlace:
    """Place in its job of a process that polls the kineto daemon; unknown where its environment cannot be read."""
    return place_of_environment(parse_environ(_read_file(proc / str(pid) / "environ")))


def is_helper(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process that polls the kineto daemon is a helper or a launcher; False where it is not known."""
    command = _read_file(proc / str(pid) / "cmdline")
    return any(part in command for part in _HELPER_PATHS) or _is_launcher(command.split(b"\0"))


def process_uid(pid: int, proc: Path = Path("/proc")) -> int | None:
    """User of a process of this machine that polls the kineto daemon, or has started one; None where it is gone."""
    uids = re.search(rb"^Uid:\s+\d+\s+(\d+)", _read_file(proc / str(pid) / "status"), re.MULTILINE)
    return int(uids[1]) if uids else None


def process_stat(pid: int, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Parent and times of a process that polls the kineto daemon; None where it is gone."""
    return parse_process_stat(_read_file(proc / str(pid) / "stat").decode(errors="replace"))


def process_cpu_seconds(stat: ProcessStat) -> float:
    """CPU time so far of a process that polls the kineto daemon."""
    return (stat.user_ticks + stat.system_ticks) / os.sysconf("SC_CLK_TCK")


def parse_environ(content: bytes) -> dict[str, str]:
    """Variables in /proc/PID/environ of a process that polls the kineto daemon, by name."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def place_of_environment(environment: Mapping[str, str]) -> JobPlace:
    """Place in its job of a process that polls the kineto daemon, by its environment."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    return JobPlace(
        rank=_first_number(environment, _RANKS),
        run_id=None if run_id in ("", "none") else run_id,
        trace_folder=environment.get("KINETO_ONDEMAND_TRACE_DIR") or None,
        world_size=_first_number(environment, _WORLD_SIZES),
        local_size=_first_number(environment, _LOCAL_SIZES),
    )


def _is_launcher(arguments: Sequence[bytes]) -> bool:
    """Whether it is `python -u /usr/bin/torchrun ...`, `python -m torch.distributed.run ...` or the like."""
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == b"-m":
            return next(rest, b"") in _LAUNCHER_MODULES
        if argument in _OPTIONS_WITH_VALUE:
            next(rest, b"")
        elif not argument.startswith(b"-"):
            return argument.rpartition(b"/")[2] in _LAUNCHERS
    return False


def _first_number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((number for name in names if (number := _parse_rank(environment.get(name, ""))) is not None), None)


def _parse_rank(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= _MAX_RANK else None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:
        return b""


KEY_PREFIX = "kineto-"
"""First part of every key."""
_SOCKET_PREFIX = "dynoconfigclient"
_NOT_IN_RUN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_WATCHED_SECONDS = 4.0
_IDLE_SHARE = 0.02
"""Share of a core. A trainer that only waits for its GPU still launches kernels, and mostly spins."""


@dataclass(frozen=True, slots=True)
class KinetoTarget:
    """A process that libkineto can capture; its key is the same after a restart of the agent."""

    key: str
    process: KinetoProcess
    place: JobPlace
    run: str
    run_directory: Path


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    """Facts on a process that are looked up once."""

    uid: int
    place: JobPlace
    run: str
    is_helper: bool
    at: float
    cpu_seconds_before: float


class KinetoTargets:
    """Looks up each process that polls the kineto daemon once, as long as it polls. Not thread-safe."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._known: dict[str, _KnownProcess] = {}

    def of(self, processes: Iterable[KinetoProcess], now: float) -> dict[str, KinetoTarget]:
        """The targets by key at `now`, monotonic seconds: all but launchers, and processes that trainers started."""
        by_key = {kineto_key_of(process): process for process in processes}
        pids = {process.peer.pid for process in by_key.values()}
        self._known = {key: known for key, known in self._known.items() if key in by_key}
        for key, one in sorted(by_key.items(), key=lambda item: item[1].first_seen):
            if key not in self._known:
                self._known[key] = self._looked_up(one, pids, now)
        family = _ProcessTree([(process, self._known[key].place.rank) for key, process in by_key.items()])
        return {
            key: KinetoTarget(key, process, known.place, known.run, self._folder / known.run)
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
        run = self._name_for(process.peer.uid, kineto_run_name(process.job_id, place.run_id, leader, self._proc))
        return _KnownProcess(
            process.peer.uid, place, run, is_helper(pid, self._proc), now, process_cpu_seconds(stat) if stat else 0.0
        )

    def _name_for(self, uid: int, run: str) -> str:
        """The name of a run, with the uid where another user's processes, which were there before, have it."""
        is_taken = any(one.run == run and one.uid != uid for one in self._known.values())
        return f"{run}-uid{uid}" if is_taken else run

    def _is_waiting(self, process: KinetoProcess, known: _KnownProcess, now: float) -> bool:
        """Whether it is idle, as a launcher that waits for the processes it started."""
        stat, since = process_stat(process.peer.pid, self._proc), now - known.at
        if stat is None or since <= _WATCHED_SECONDS:
            return False
        return process_cpu_seconds(stat) - known.cpu_seconds_before < _IDLE_SHARE * since


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


def kineto_run_name(job_id: int | None, run_id: str | None, leader: int, proc: Path = Path("/proc")) -> str:
    """Kineto daemon: run name of a job's libkineto traces.

    The same for all its ranks on this node, unlike that of any other job here.

    Args:
        run_id: of torchrun's rendezvous, None without.
        leader: the process that started its ranks, or its only one.
    """
    if job_id is not None:
        return f"slurm-{job_id}"
    if run_id is not None:
        return f"torchrun-{_NOT_IN_RUN_NAME.sub('_', run_id)[:64]}"
    stat = process_stat(leader, proc)
    return f"pid-{leader}-{stat.start_ticks if stat else 0}"  # process ids are reused


def kineto_key_of(process: KinetoProcess) -> str:
    """Key of a process that polls the kineto daemon: its socket has a random name that lasts as long as the process."""
    address = process.address
    name = address.decode(errors="replace") if isinstance(address, bytes) else address.rpartition("/")[2]
    plain = "".join(c for c in name.removeprefix("\0").removeprefix(_SOCKET_PREFIX) if c.isalnum() or c == "-")
    return KEY_PREFIX + plain[:64]


def ranks_to_keep(targets: Iterable[KinetoTarget], in_trace: Mapping[str, int | None]) -> dict[str, int]:
    """Kineto daemon: rank of each libkineto trace by key.

    Of the process's environment, else of its trace, else the next free one.

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
    """Requests that wait for libkineto's next polls. Thread-safe; the lock is held for a dict access."""

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
        key = kineto_key_of(process)
        with self._lock:
            text, unless = self._texts.pop(key, ("", None))
            if not text or (unless is not None and os.path.lexists(unless)):
                return ""
            self._delivered[key] = process.num_polls
        return text
