"""Identity of this process: rank, host, launcher, GPU, versions, environment, and the store the job's ranks share.

Nothing here starts CUDA, which would take GPU memory.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepscope import __version__

LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""Variables of torchrun, srun, Open MPI, and MPICH and Intel MPI: rank, world size, local rank. The first launcher that
tells a rank has started this process: torchrun under srun tells its own. Slurm's SLURM_NTASKS is not among them, as a
batch script has it without being a task of so many."""

_ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "OMP_")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|API_?KEY", re.IGNORECASE)
_MAX_RANKS_CAPTURED = 64  # 64 traces of some 10 MB are what people open; larger jobs name their ranks


@dataclass(frozen=True, slots=True)
class Identity:
    """This process among the processes of its job."""

    rank: int
    local_rank: int
    world_size: int
    host: str


def identify() -> Identity:
    """From torch.distributed when it is initialised, else from what a launcher set, else a job of one."""
    rank_variable, size_variable, local_variable = launcher()
    rank, world_size = _number(rank_variable, 0), _number(size_variable, 1)
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return Identity(
        rank=rank,
        local_rank=_number(local_variable, 0),
        world_size=max(world_size, rank + 1),
        host=socket.gethostname(),
    )


def launcher() -> tuple[str, str, str]:
    """Launcher, one of `LAUNCHERS`, whose variables give this process its rank; the first where none does."""
    return next((variables for variables in LAUNCHERS if _number(variables[0], -1) >= 0), LAUNCHERS[0])


def captures_on_this_rank(ranks: str | Iterable[int], identity: Identity) -> bool:
    """Whether this rank writes traces. "all", "auto" (the first 64 ranks: whole neighbourhoods) or rank numbers."""
    if not isinstance(ranks, str):
        return identity.rank in set(ranks)
    if ranks == "all":
        return True
    if ranks != "auto":
        raise ValueError(f'ranks is "all", "auto" or rank numbers, not {ranks!r}')
    return identity.rank < _MAX_RANKS_CAPTURED


def versions() -> dict[str, str]:
    """Versions of what decides how a step runs."""
    found = {"stepscope": __version__, "python": platform.python_version(), "kernel": platform.release()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        for name in ("cuda", "hip"):
            if getattr(torch.version, name, None):
                found[name] = str(getattr(torch.version, name))
        if torch.cuda.is_available() and hasattr(torch.cuda, "nccl"):
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def relevant_environment() -> dict[str, str]:
    """Variables that change how a step runs; none that could hold a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_ENVIRONMENT_PREFIXES) and not _SECRET.search(name)
    }


def num_usable_cpus() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, ""))
    except ValueError:
        return default


def gpu_uuid(identity: Identity) -> str | None:
    """NVML's name of the current device (GPU-... or MIG-...); None when unknown. On the thread that trains."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [name.strip() for name in visible]
    is_named = bool(names) and all(name.startswith(("GPU-", "MIG-")) and len(name) > len("GPU-") + 8 for name in names)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        if is_named and len(names) == 1:
            return names[0]
        return names[identity.local_rank] if is_named and identity.local_rank < len(names) else None
    device: int = torch.cuda.current_device()
    if is_named and device < len(names):
        return names[device]
    uuid: object = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


def job_store() -> Any:
    """torch.distributed's default store; None before it is initialised, and in a torch that hides it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    find = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def own_connection(store: Any, timeout: timedelta) -> Any:
    """The same store over a connection of its own, so that a wait on one thread never holds another up.

    A torch that cannot make one (before 2.7) gives the store itself.

    Raises:
        RuntimeError: the store does not answer.
    """
    clone = getattr(store, "clone", None)
    if clone is None:
        return store
    own = clone()
    own.set_timeout(timeout)
    return own
