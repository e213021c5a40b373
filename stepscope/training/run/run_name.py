"""Run name: the same on all ranks and different from every other job."""

from __future__ import annotations

import logging
import os
import re
import time
from datetime import timedelta
from itertools import count
from pathlib import Path

from stepscope.training.run.identity import Identity, job_store, launcher

logger = logging.getLogger(__name__)

_JOB_VARIABLES = {
    "SLURM_JOB_ID": "slurm",
    "PBS_JOBID": "pbs",
    "LSB_JOBID": "lsf",
    "FLUX_JOB_ID": "flux",
    "OAR_JOB_ID": "oar",
    "PMIX_NAMESPACE": "mpi",
}
"""Variable that a scheduler or MPI sets to the job's own number on all ranks -> what the run's name begins with."""

_STORE_PATIENCE = timedelta(seconds=10)  # ranks enter profile() together; rank 0 has only to write a few bytes
_MAX_NAME_BYTES = 200  # a file's name may have 255, and ours add some to a temporary one
_shared_names = count()  # every rank calls profile() equally often, so equal numbers belong together


def check_run_name(name: str) -> str:
    """The name, when it can be a folder's.

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


def run_name(run: str | None, identity: Identity) -> str:
    """The run's name, the same on all ranks: given, from STEPSCOPE_RUN, the scheduler or torchrun, else rank 0's own.

    Raises:
        ValueError: the name given cannot be a folder's name.
    """
    given = run if run is not None else os.environ.get("STEPSCOPE_RUN") or None
    if given is not None:
        return check_run_name(given)
    for variable, prefix in _JOB_VARIABLES.items():
        if os.environ.get(variable):
            return _as_name(f"{prefix}-{os.environ[variable]}{_slurm_step()}")
    if os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return _as_name(f"run-{os.environ['TORCHELASTIC_RUN_ID']}")
    own = f"{time.strftime('run-%Y%m%d-%H%M%S')}-{os.getpid()}"
    if identity.world_size == 1:
        return own
    return _name_of_rank_zero(own, identity) or _name_by_launcher()


def _slurm_step() -> str:
    """Of srun's second and later steps in one allocation; a launcher of its own under srun is one step on each node."""
    step = os.environ.get("SLURM_STEP_ID", "0")
    return f"-step{step}" if launcher()[0] == "SLURM_PROCID" and step != "0" else ""


def _name_of_rank_zero(own: str, identity: Identity) -> str | None:
    """Through the store that torch.distributed has anyway; no collective. None where there is none or it is silent."""
    store = job_store()
    if store is None:
        return None
    key = f"stepscope/run_name/{next(_shared_names)}"
    try:
        if identity.rank == 0:
            store.set(key, own)
            return own
        store.wait([key], _STORE_PATIENCE)
        return str(store.get(key).decode())
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
    """When a process began, in clock ticks since boot; with its number it names one process of this host's uptime."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):
        return None


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME_BYTES]
