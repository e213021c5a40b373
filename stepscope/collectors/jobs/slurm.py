"""Which Slurm job does a process belong to, and which GPUs does Slurm say it has?

The cgroup counts, as a user can change the environment: who pays must not be theirs to choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.collectors.jobs.designations import by_minor, by_uuid, names_of, visible_to_cuda
from stepscope.collectors.jobs.devices import Device
from stepscope.collectors.jobs.processes import Process

_PATH = re.compile(r"slurm[^/]*(?:/[^/]+)*?/job_(\d+)(?:/step_([^/]+))?")
"""/slurm/uid_1000/job_123/step_0/task_1, /system.slice/node1_slurmstepd.scope/job_123/step_batch/user/task_0; the one
of a pod that holds slurmd has more before it."""

_OUTSIDE_OF_STEPS = frozenset({"", "batch", "interactive", "extern"})


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Where in Slurm a process is: the job's number, and the step ("0", "batch", "extern"; empty: not known)."""

    job_id: str
    step: str = ""


def place_in_cgroup(path: str) -> SlurmPlace | None:
    """The job and step of a cgroup; None where it is no job's."""
    match = _PATH.search(path)
    return SlurmPlace(match[1], match[2] or "") if match else None


def place_of(process: Process) -> SlurmPlace | None:
    """The job and step of a process; None where it is in none."""
    places = [place for path in process.cgroups if (place := place_in_cgroup(path)) is not None]
    if places:
        return max(places, key=lambda place: bool(place.step))
    job_id = process.variable("SLURM_JOB_ID")
    if not job_id.isdecimal():
        return None
    step = process.variable("SLURM_STEP_ID")
    return SlurmPlace(job_id, step if step.isdecimal() else "")


def array_task_of(process: Process) -> str:
    """ "120_3" of a process of an array's task; empty of others."""
    job, task = process.variable("SLURM_ARRAY_JOB_ID"), process.variable("SLURM_ARRAY_TASK_ID")
    return f"{job}_{task}" if job and task else ""


@dataclass(frozen=True, slots=True)
class Given:
    """What Slurm gave: devices, and names that mean none, or more than one."""

    devices: tuple[Device, ...] = ()
    unknown: tuple[str, ...] = ()


def given_by_slurm(process: Process, devices: Sequence[Device]) -> Given:
    """Devices that a process's job has by the variables that Slurm sets.

    SLURM_STEP_GPUS is set on each node; SLURM_JOB_GPUS on the first, from where steps on others inherit it: it counts
    outside of steps alone. Both are minor numbers, what ends the name of the device's file; on machines with MIG they
    count instances, and tell nothing. UUIDs, which CUDA_VISIBLE_DEVICES has from Slurm 25.11 on, tell more; they count
    in a job that has GPUs, as users set that variable themselves.
    """
    place = place_of(process)
    numbers = process.variable("SLURM_STEP_GPUS")
    if not numbers and place is not None and place.step in _OUTSIDE_OF_STEPS:
        numbers = process.variable("SLURM_JOB_GPUS")
    if not numbers:
        return Given()
    visible = visible_to_cuda(devices, process.variable("CUDA_VISIBLE_DEVICES"))
    if visible:
        return Given(tuple(visible))
    is_split = any(device.gpu_instance for device in devices)
    by_name = {
        name: by_uuid(devices, name) if not name.isdecimal() else None if is_split else by_minor(devices, name)
        for name in names_of(numbers)
    }
    known = tuple(device for device in by_name.values() if device is not None)
    return Given(known, tuple(name for name, device in by_name.items() if device is None))
