"""Request of a preflight, and the commands of its worker processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.collectors.jobs.devices import parse_device_list
from stepscope.core.documents.machine_checks import CHECKS, CheckGroup
from stepscope.core.text.names import unknown_name

MAX_GPUS = 1024
"""Of one node: the limit of a range."""
_DRIVER_SECONDS = (5.0, 15.0)
"""At least and at most. A driver without persistence mode takes up to 3 s to wake a GPU."""

_WORKER = (sys.executable, "-m", "stepscope.workflow.preflight.worker_process")


def driver_seconds_of(seconds: float) -> float:
    """Deadline of NVML for all readings of a GPU, from that of a check; some tens of ms are usual."""
    least, most = _DRIVER_SECONDS
    return min(most, max(least, seconds))


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """Checks and GPUs of a preflight.

    Attributes:
        device_type: "cuda", or "cpu" to try the code without GPUs.
        quick: the short form.
        groups: of checks.
        gpus: indices, beginnings of UUIDs, or UUIDs of MIG instances; None for all.
        slurm_gpus: minor numbers or UUIDs as Slurm names them, in place of `gpus`; None without Slurm.
        expected_gpus: whole GPUs that the node must have; 0 for no such check.
        seconds: deadline of one check on one GPU.
        start_seconds: deadline of importing torch and opening a GPU.
        driver_seconds: deadline of NVML for all readings of a GPU, see `driver_seconds_of`.
    """

    device_type: str = "cuda"
    quick: bool = False
    groups: frozenset[CheckGroup] = frozenset(CheckGroup)
    gpus: tuple[str, ...] | None = None
    slurm_gpus: tuple[str, ...] | None = None
    expected_gpus: int = 0
    seconds: float = 60.0
    start_seconds: float = 180.0
    driver_seconds: float = _DRIVER_SECONDS[1]

    @property
    def runs(self) -> bool:
        """Whether anything runs on the GPUs; else only NVML is asked."""
        return self.groups != {CheckGroup.STATE}


@dataclass(frozen=True, slots=True)
class Programs:
    """Commands of the worker processes.

    Attributes:
        device: measures; the kind of device is appended.
        state: asks NVML.
    """

    device: tuple[str, ...] = _WORKER
    state: tuple[str, ...] = (*_WORKER, "driver")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def gpus_of(text: str) -> tuple[str, ...]:
    """Names in a list such as "0,2-4,GPU-1b2c3d4e"."""
    names: list[str] = []
    for name in (word.strip() for word in text.split(",")):
        first, dash, last = name.partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(last) < MAX_GPUS:
            names += map(str, range(int(first), int(last) + 1))
        elif name:
            names.append(name)
    return tuple(dict.fromkeys(names))


def slurm_gpus_of(text: str) -> tuple[str, ...]:
    """Names in a list of SLURM_JOB_GPUS such as "0,2-4,GPU-1b2c3d4e"; none in "NoDevFiles"."""
    return tuple(dict.fromkeys(parse_device_list(text)))


def groups_of(text: str) -> frozenset[CheckGroup]:
    """Groups in a list of groups or checks such as "memory,matmul".

    Raises:
        UsageError: there is no group or check of a name.
    """
    groups = set()
    for name in (word.strip().replace("-", "_") for word in text.split(",")):
        if name in CHECKS:
            groups.add(CHECKS[name])
        elif name in CheckGroup.__members__.values():
            groups.add(CheckGroup(name))
        else:
            raise unknown_name("check", name, CheckGroup, where="--checks")
    return frozenset(groups)
