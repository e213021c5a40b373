"""Which processes are one job where nobody says so? Those of one container, or of one launcher."""

from __future__ import annotations

import re
from itertools import pairwise

from stepscope.collectors.jobs.processes import Process, Processes

_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio|nerdctl|lxc)[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_OF_RANKS = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LAUNCHER = re.compile(
    r"(?:^|[/ ])(?:torchrun|torch\.distributed\.(?:run|launch)|mpirun|mpiexec\S*|prterun|orted|hydra_pmi_proxy|"
    r"accelerate|deepspeed|horovodrun)(?: |$)"
)
_SERVICES = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persiste", "nvidia-smi", "dcgm-exporter")
"""Beginnings of the commands that hold a GPU for others."""
_MOST_ABOVE = 4


def is_service(process: Process) -> bool:
    """Whether it holds the GPU for others, and is no job."""
    return process.command.startswith(_SERVICES)


def container_of(process: Process) -> str:
    """Id of its container, 64 digits; empty without."""
    return next((match[1] for path in process.cgroups if (match := _CONTAINER.search(path))), "")


def leader_of(process: Process, processes: Processes) -> Process:
    """Whoever stands for the job: the leader of its process group (what a shell started), or that of its launcher.

    torchrun gives each rank a session of its own, so that sessions tell nothing.
    """
    leader = _of_group(process, processes)
    for _ in range(_MOST_ABOVE):
        parent = processes.read(leader.parent) if leader.parent > 1 else None
        if parent is None or not (_is_rank(leader) or _LAUNCHER.search(" ".join(parent.arguments))):
            break
        leader = _of_group(parent, processes)
    return leader


def name_of(process: Process) -> str:
    """What it runs: the script, "train.py", or the module; else its command."""
    for word, following in pairwise((*process.arguments, "")):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return process.command


def _is_rank(process: Process) -> bool:
    return any(process.variable(name) for name in _OF_RANKS)


def _of_group(process: Process, processes: Processes) -> Process:
    leader = processes.read(process.group) if process.group not in (0, process.pid) else None
    return leader or process
