"""What does /proc tell of a process's place in its job? All of it for our own user's processes and as root.

The environment there is the one that the process was started with: what it set itself later, as under
torch.multiprocessing.spawn, is not in it; then the trace's own distributedInfo tells the rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_WITH_VALUE = frozenset({b"-W", b"-X"})
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
_HELPERS = (b"/torch/_inductor/compile_worker/",)
"""In the command lines of processes that PyTorch starts beside a trainer, and that import it as well."""
_MOST_BYTES = 1 << 20
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
    return place_in(parse_environ(_content(proc / str(pid) / "environ")))


def is_helper(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether PyTorch has started it beside a trainer, or it is a launcher; False where that cannot be read."""
    command = _content(proc / str(pid) / "cmdline")
    return any(part in command for part in _HELPERS) or _is_launcher(command.split(b"\0"))


def process_times(pid: int, proc: Path = Path("/proc")) -> ProcessTimes | None:
    """Times of a process; None where it is gone."""
    fields = _content(proc / str(pid) / "stat").rpartition(b")")[2].split()
    try:
        cpu_ticks = int(fields[11]) + int(fields[12])
        return ProcessTimes(int(fields[1]), cpu_ticks / os.sysconf("SC_CLK_TCK"), int(fields[19]))
    except (ValueError, IndexError):
        return None


def parse_environ(content: bytes) -> dict[str, str]:
    """Variables by name."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def place_in(environment: Mapping[str, str]) -> JobPlace:
    """The place that an environment tells of."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    return JobPlace(
        rank=_first(environment, _RANKS),
        run_id=None if run_id in ("", "none") else run_id,
        trace_folder=environment.get("KINETO_ONDEMAND_TRACE_DIR") or None,
        world_size=_first(environment, _WORLD_SIZES),
        local_size=_first(environment, _LOCAL_SIZES),
    )


def _is_launcher(arguments: Sequence[bytes]) -> bool:
    """`python -u /usr/bin/torchrun ...`, `python -m torch.distributed.run ...`."""
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == b"-m":
            return next(rest, b"") in _LAUNCHER_MODULES
        if argument in _WITH_VALUE:
            next(rest, b"")
        elif not argument.startswith(b"-"):
            return argument.rpartition(b"/")[2] in _LAUNCHERS
    return False


def _first(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((number for name in names if (number := _number(environment.get(name, ""))) is not None), None)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= _MOST_RANK else None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""
