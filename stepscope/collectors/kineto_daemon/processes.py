"""Processes that poll the daemon: who each is, when it asks next, its rank and its place in a job.

libkineto asks every 5 s, from one socket whose name lives as long as the process, so that name is the key. A process
that is silent for a minute has ended, or no longer waits for its daemon (as dynolog has it). The place in a job is read
from /proc, with the environment that the process was started with: what it set itself later, as under
torch.multiprocessing.spawn, is not in it; then the trace's own distributedInfo gives the rank.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.collectors.host.processes import parse_process_stat
from stepscope.collectors.kineto_daemon.protocol import Poll

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


_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_OPTIONS_WITH_VALUE = frozenset({b"-W", b"-X"})
"""Options of Python that take the next word."""
_LAUNCHERS = frozenset({b"torchrun", b"accelerate", b"deepspeed"})
_LAUNCHER_MODULES = frozenset(
    {
        b"torch.distributed.run",
        b"torch.distributed.launch",
        b"accelerate.commands.launch",
        b"deepspeed.launcher.launch",
    }
)
"""They import PyTorch and train nothing themselves, also before they have started those that do."""
_HELPER_PATHS = (b"/torch/_inductor/compile_worker/",)
"""In the command lines of processes that PyTorch starts beside a trainer, and that import it as well."""
_MOST_FILE_BYTES = 1 << 20
_MOST_RANK = 1 << 24


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a process stands in its job; None is unknown.

    Attributes:
        rank: among all ranks; world_size: how many there are.
        run_id: of torchrun's rendezvous, given by its user.
        trace_folder: below which libkineto may write (KINETO_ONDEMAND_TRACE_DIR).
    """

    rank: int | None = None
    run_id: str | None = None
    trace_folder: str | None = None
    world_size: int | None = None
    local_size: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Of /proc/<pid>/stat.

    Attributes:
        parent: its process id.
        cpu_seconds: that it has used so far.
        start_ticks: when it began, since boot.
    """

    parent: int
    cpu_seconds: float
    start_ticks: int


def job_place(pid: int, proc: Path = Path("/proc")) -> JobPlace:
    """The place of a process; all unknown where its environment cannot be read."""
    return place_of_environment(parse_environ(_read_file(proc / str(pid) / "environ")))


def is_helper(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether PyTorch has started it beside a trainer, or it is a launcher; False where that cannot be read."""
    command = _read_file(proc / str(pid) / "cmdline")
    return any(part in command for part in _HELPER_PATHS) or _is_launcher(command.split(b"\0"))


def process_times(pid: int, proc: Path = Path("/proc")) -> ProcessTimes | None:
    """Times of a process; None where it is gone."""
    stat = parse_process_stat(_read_file(proc / str(pid) / "stat").decode(errors="replace"))
    if stat is None:
        return None
    cpu_seconds = (stat.user_ticks + stat.system_ticks) / os.sysconf("SC_CLK_TCK")
    return ProcessTimes(stat.parent, cpu_seconds, stat.start_ticks)


def parse_environ(content: bytes) -> dict[str, str]:
    """Variables by name."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def place_of_environment(environment: Mapping[str, str]) -> JobPlace:
    """The place that an environment tells of."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    return JobPlace(
        rank=_first_number(environment, _RANKS),
        run_id=None if run_id in ("", "none") else run_id,
        trace_folder=environment.get("KINETO_ONDEMAND_TRACE_DIR") or None,
        world_size=_first_number(environment, _WORLD_SIZES),
        local_size=_first_number(environment, _LOCAL_SIZES),
    )


def _is_launcher(arguments: Sequence[bytes]) -> bool:
    """`python -u /usr/bin/torchrun ...`, `python -m torch.distributed.run ...`."""
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
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= _MOST_RANK else None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES)
    except OSError:
        return b""
