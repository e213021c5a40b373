"""What a preflight is asked for, and which programs measure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.collectors.jobs.devices import parse_device_list
from stepscope.core.documents.machine_checks import CHECKS, CheckGroup
from stepscope.core.errors import UsageError

_MOST_GPUS = 1024
"""In one node: no range is longer."""
_DRIVER_SECONDS = (5.0, 15.0)
"""At least and at most. A driver without persistence mode takes up to 3 s to wake a GPU."""


def driver_seconds_of(seconds: float) -> float:
    """What NVML may take to tell all of a GPU, where one check may take so long; some tens of ms are usual."""
    least, most = _DRIVER_SECONDS
    return min(most, max(least, seconds))


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """What to check.

    Attributes:
        device_type: "cuda", or "cpu" to try the code without GPUs.
        quick: the short form.
        groups: of checks.
        gpus: indices, beginnings of UUIDs, or UUIDs of MIG instances; None for all.
        slurm_gpus: names that Slurm gives, minor numbers or UUIDs, in place of `gpus`; None where it is not Slurm.
        expected_gpus: how many whole GPUs the node has; 0: as many as there are.
        seconds: that one check may take on one GPU before it counts as hung.
        start_seconds: that a process may take to import torch and open its GPU.
        driver_seconds: that NVML may take to tell all of a GPU, see `driver_seconds_of`.
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
        """Whether anything is run on the GPUs, or the driver only asked."""
        return self.groups != {CheckGroup.STATE}


@dataclass(frozen=True, slots=True)
class Programs:
    """Commands of the processes, and their environment.

    Attributes:
        device: measures; the kind of device is appended.
        state: asks the driver.
        environment: of this process.
    """

    device: tuple[str, ...] = (sys.executable, "-m", "stepscope.workflow.preflight.device_worker")
    state: tuple[str, ...] = (sys.executable, "-m", "stepscope.workflow.preflight.driver_worker")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def gpus_of(text: str) -> tuple[str, ...]:
    """GPUs as they are named: "0,2-4,GPU-1b2c3d4e"."""
    names: list[str] = []
    for name in (word.strip() for word in text.split(",")):
        first, dash, last = name.partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(last) < _MOST_GPUS:
            names += map(str, range(int(first), int(last) + 1))
        elif name:
            names.append(name)
    return tuple(dict.fromkeys(names))


def slurm_gpus_of(text: str) -> tuple[str, ...]:
    """GPUs as Slurm names them in SLURM_JOB_GPUS: "0,2-4,GPU-1b2c3d4e"; none of "NoDevFiles"."""
    return tuple(dict.fromkeys(parse_device_list(text)))


def groups_of(text: str) -> frozenset[CheckGroup]:
    """The groups that are named, by themselves or by one of their checks: "memory,matmul".

    Raises:
        UsageError: there is none of that name.
    """
    groups = set()
    for name in (word.strip().replace("-", "_") for word in text.split(",")):
        if name in CHECKS:
            groups.add(CHECKS[name])
        elif name in CheckGroup.__members__.values():
            groups.add(CheckGroup(name))
        else:
            known = ", ".join(CheckGroup)
            raise UsageError(f"there is no check {name!r}", where="--checks", what_next=f"there are {known}")
    return frozenset(groups)
