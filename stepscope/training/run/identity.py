"""Identity of this process and its run: rank, host, launcher, GPU, versions, run name, the ranks' store.

Nothing here starts CUDA, which would take GPU memory.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from stepscope import __version__

logger = logging.getLogger(__name__)


LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""Variables of torchrun, srun, Open MPI, and MPICH and Intel MPI: rank, world size, local rank. The first launcher that
tells a rank has started this process: torchrun under srun tells its own. Slurm's SLURM_NTASKS is not among them, as a
batch script has it without being a task of so many."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This process among the processes of its job."""

    rank: int
    local_rank: int
    world_size: int
    host: str


def identify_process() -> Identity:
    """Rank and host of this process: by torch.distributed, else by what a launcher set, else a job of one."""
    rank_variable, size_variable, local_variable = launcher()
    rank, world_size = _number(rank_variable, 0), _number(size_variable, 1)
    distributed = initialized_distributed()
    if distributed is not None:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return Identity(
        rank=rank,
        local_rank=_number(local_variable, 0),
        world_size=max(world_size, rank + 1),
        host=socket.gethostname(),
    )


def launcher() -> tuple[str, str, str]:
    """In the training process, the run's identity: the launcher's variables that give this process its rank.

    One of `LAUNCHERS`; the first where none does.
    """
    return next((variables for variables in LAUNCHERS if _number(variables[0], -1) >= 0), LAUNCHERS[0])


def software_versions() -> dict[str, str]:
    """Versions of the software that decides how a step runs, for the run's manifest."""
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


def num_usable_cpus() -> int:
    """In the training process, facts of the run: number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_affinity() -> str:
    """The CPUs that this training process may use, as the kernel lists them ("0-3,8"); empty where unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    cpus = sorted(os.sched_getaffinity(0))
    begins = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in zip(begins, ends, strict=True)
    )


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, ""))
    except ValueError:
        return default


def gpu_uuid(identity: Identity) -> str | None:
    """UUID of the GPU that this rank trains on (GPU-... or MIG-...); None when unknown. On the thread that trains."""
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


def initialized_distributed() -> Any:
    """In the training process, the run's identity: torch.distributed where it is initialised; else None."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def job_store() -> Any:
    """The store of this run's job, torch.distributed's default one; None before it is there or where it is hidden.

    torchrun's store outlives a restart (since torch 2.2), with what the ranks before it wrote; so each has keys of its
    own.
    """
    distributed = initialized_distributed()
    find = getattr(getattr(distributed, "distributed_c10d", None), "_get_default_store", None)
    num_restarts = _number("TORCHELASTIC_RESTART_COUNT", 0)
    if find is None or num_restarts <= 0:
        return None if find is None else find()
    return distributed.PrefixStore(f"restart{num_restarts}", find())


def agree_with_rank_zero(store: Any, key: str, own: str, identity: Identity) -> str:
    """Rank 0's value on all ranks of a run, by way of the job's store and without a collective; on rank 0 its own.

    Raises:
        RuntimeError: the store does not answer, or rank 0 has not come within seconds.
        ValueError: the store holds no text.
    """
    if identity.rank == 0:
        store.set(key, own)
        return own
    store.wait([key], _STORE_PATIENCE)
    return str(store.get(key).decode())


def own_store_connection(store: Any, timeout: timedelta) -> Any:
    """The job's store over a connection of its own, so that a wait on one thread never holds another up.

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


_JOB_VARIABLES = {
    "SLURM_JOB_ID": "slurm",
    "PBS_JOBID": "pbs",
    "LSB_JOBID": "lsf",
    "FLUX_JOB_ID": "flux",
    "OAR_JOB_ID": "oar",
    "PMIX_NAMESPACE": "mpi",
}
"""Variable that a scheduler or MPI sets to the job's own number on all ranks -> kind of the job."""

_STORE_PATIENCE = timedelta(seconds=10)  # ranks enter profile() together; rank 0 has only to write a few bytes
_MAX_NAME_BYTES = 200  # a file's name may have 255, and ours add some to a temporary one
_shared_names = count()  # every rank calls profile() equally often, so equal numbers belong together


def check_run_name(name: str) -> str:
    """In the training process: check the new run's name and return it: it has to be a folder's.

    Raises:
        ValueError: it cannot, or readers would pass it over.
    """
    is_folder_name = name.strip() == name != "" and name.isprintable() and not set(name) & {"/", "\\"}
    if not is_folder_name or name.startswith("."):
        raise ValueError(f"a run's name is a folder's name that does not begin with a dot, not {name[:80]!r}")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(
            f"a run's name has at most {_MAX_NAME_BYTES} bytes, not {len(name.encode())}: {name[:40]!r}..."
        )
    return name


def choose_run_name(run: str | None, identity: Identity) -> str:
    """The run's name, the same on all ranks: given, from STEPSCOPE_RUN, the scheduler or torchrun, else rank 0's own.

    Raises:
        ValueError: the name given cannot be a folder's name.
    """
    given = run if run is not None else os.environ.get("STEPSCOPE_RUN") or None
    if given is not None:
        return check_run_name(given)
    job = scheduled_job()
    if job is not None:
        return _as_name(f"{job[0]}-{job[1]}{_slurm_step()}")
    if os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return _as_name(f"run-{os.environ['TORCHELASTIC_RUN_ID']}")
    own = f"{time.strftime('run-%Y%m%d-%H%M%S')}-{os.getpid()}"
    if identity.world_size == 1:
        return own
    return _name_of_rank_zero(own, identity) or _name_by_launcher()


def scheduled_job() -> tuple[str, str] | None:
    """In the training process, the run's identity: kind and number of its job; None where no variable says them."""
    return next(
        ((kind, os.environ[variable]) for variable, kind in _JOB_VARIABLES.items() if os.environ.get(variable)), None
    )


def _slurm_step() -> str:
    """Of srun's second and later steps in one allocation; a launcher of its own under srun is one step on each node."""
    step = os.environ.get("SLURM_STEP_ID", "0")
    return f"-step{step}" if launcher()[0] == "SLURM_PROCID" and step != "0" else ""


def _name_of_rank_zero(own: str, identity: Identity) -> str | None:
    """None where the ranks share no store, or it is silent."""
    store = job_store()
    if store is None:
        return None
    key = f"stepscope/run_name/{next(_shared_names)}"
    try:
        return agree_with_rank_zero(store, key, own, identity)
    except (RuntimeError, ValueError) as error:  # torch's store errors are RuntimeErrors
        logger.warning("rank 0 has not sent the run's name; call profile() on all ranks: %s", error)
        return None


def _name_by_launcher() -> str:
    """From what ranks have in common before they can talk: on one host the launcher's process, else its address."""
    environment = os.environ
    if environment.get("LOCAL_WORLD_SIZE", "") == environment.get("WORLD_SIZE", "none"):
        started = process_start(os.getppid())
        if started is not None:
            return f"run-launcher{os.getppid()}-{started}"
    place = f"{environment.get('MASTER_ADDR', 'host')}-port{environment.get('MASTER_PORT', '0')}"
    logger.warning(
        "today's jobs at %s share one run directory; give profile(run=...), set STEPSCOPE_RUN, or call profile() after"
        " init_process_group",
        place,
    )
    return _as_name(f"{time.strftime('run-%Y%m%d')}-{place}")


def process_start(process_id: int) -> str | None:
    """In the training process, the run's identity: start of a process in clock ticks since boot.

    With its number it names one process of this host's uptime.
    """
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):
        return None


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME_BYTES]
