"""What does a process's environment say of its place in the job? Readable for our own user's processes, or as root.

It is the environment that the process was started with: what it set itself later (torch.multiprocessing.spawn) is not
there; then the trace's own distributedInfo tells the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
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


def job_place(pid: int, proc: Path = Path("/proc")) -> JobPlace:
    """The place of a process; all unknown where its environment cannot be read."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            return place_in(parse_environ(file.read(_MOST_BYTES)))
    except OSError:
        return JobPlace()


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
    )


def _first(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((number for name in names if (number := _number(environment.get(name, ""))) is not None), None)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= _MOST_RANK else None
