"""Processes that poll the daemon: identity, next poll, rank and place in the job of each.

libkineto asks every 5 s, from one socket whose name lives as long as the process, so that name is the key. A process
that is silent for a minute has ended, or no longer polls (the rule of dynolog). The place in a job is read from /proc,
from the environment at the start of the process: variables that it set itself later, as under
torch.multiprocessing.spawn, are not in it; then the trace's own distributedInfo gives the rank.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.collectors.host.processes import ProcessStat, parse_process_stat
from stepscope.collectors.kineto_daemon.protocol import Poll

Address = str | bytes
"""Address of a Unix socket: a path, or bytes that begin with a zero byte."""

SILENT_SECONDS = 60.0
POLL_SECONDS = 5.0
_MAX_PROCESSES = 4096
_MAX_PROCESSES_OF_USER = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """Sender of a datagram, as the kernel reports it.

    Attributes:
        pid: in our namespace, 0 where that has no such process.
        uid, gid: its user.
    """

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class KinetoProcess:
    """A process that polls.

    Attributes:
        address: of its socket.
        peer: its ids, as the kernel reports them.
        pid: in its own namespace.
        ancestors: the process ids above it, the parent first, in its own namespace.
        job_id: its SLURM_JOB_ID, None without.
        last_seen: its latest poll, monotonic seconds.
        num_polls: so far.
        accepts: whether it would have taken a request at its latest poll.
        interval: seconds between its two latest polls; libkineto's own interval after the first.
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
        """The process ids above it in our namespace; none for a process in another one, such as a container's."""
        return self.ancestors if self.pid == self.peer.pid else ()

    @property
    def next_poll(self) -> float:
        """Expected time of its next poll, monotonic seconds."""
        return self.last_seen + self.interval


class Registry:
    """The processes that polled within the last minute. Bounded; not thread-safe."""

    def __init__(self) -> None:
        self._processes: dict[Address, KinetoProcess] = {}
        self._of_user: Counter[int] = Counter()

    def record(self, address: Address, peer: Peer, poll: Poll, now: float) -> KinetoProcess | None:
        """Record a poll and return its process; None when there are too many already."""
        known = self._processes.get(address)
        if known is None:
            self.forget_silent(now)
            if len(self._processes) >= _MAX_PROCESSES or self._of_user[peer.uid] >= _MAX_PROCESSES_OF_USER:
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
    {
        b"torch.distributed.run",
        b"torch.distributed.launch",
        b"accelerate.commands.launch",
        b"deepspeed.launcher.launch",
    }
)
"""They import PyTorch and do not train themselves, also before they have started those that do."""
_HELPER_PATHS = (b"/torch/_inductor/compile_worker/",)
"""Parts of command lines of processes that PyTorch starts beside a trainer, which import it as well."""
_MAX_FILE_BYTES = 1 << 20
_MAX_RANK = 1 << 24


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Place of a process in its job; None is unknown.

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
    """Place of a process; all unknown where its environment cannot be read."""
    return place_of_environment(parse_environ(_read_file(proc / str(pid) / "environ")))


def is_helper(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether PyTorch started it beside a trainer, or it is a launcher; False where that cannot be read."""
    command = _read_file(proc / str(pid) / "cmdline")
    return any(part in command for part in _HELPER_PATHS) or _is_launcher(command.split(b"\0"))


def process_stat(pid: int, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Parent and times of a process; None where it is gone."""
    return parse_process_stat(_read_file(proc / str(pid) / "stat").decode(errors="replace"))


def cpu_seconds(stat: ProcessStat) -> float:
    """CPU time of a process so far."""
    return (stat.user_ticks + stat.system_ticks) / os.sysconf("SC_CLK_TCK")


def parse_environ(content: bytes) -> dict[str, str]:
    """Variables of /proc/PID/environ by name."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def place_of_environment(environment: Mapping[str, str]) -> JobPlace:
    """Place of a process with this environment."""
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
