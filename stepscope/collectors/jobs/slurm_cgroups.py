"""Which Slurm jobs are on this node, also those without a process on a GPU? From the tree of cgroups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stepscope.collectors.host.cgroup_places import Mount, mounts_of
from stepscope.collectors.host.files import Files, Unread

_JOB = re.compile(r"job_(\d+)")
_SCOPE = re.compile(r"(?:[^/]+_)?slurmstepd\.scope")
_MOST_JOBS, _MOST_PIDS = 512, 8
_NVIDIA = re.compile(r"c 195:(\d{1,3}) ")
_NO_GPU = 254
"""Minor numbers from here on are nvidia-modeset and nvidiactl."""


@dataclass(slots=True)
class SlurmJobHere:
    """A job on this node.

    Attributes:
        pids: some processes of each step, those of the steps' daemons left out.
        minors: numbers of the GPUs' files that it alone may open; None where the cgroup does not tell.
    """

    pids: dict[str, list[int]] = field(default_factory=dict)
    minors: list[str] | None = None


def slurm_jobs_here(files: Files) -> dict[str, SlurmJobHere]:
    """Jobs by number; none where Slurm keeps no cgroups."""
    found: dict[str, SlurmJobHere] = {}
    for mount in mounts_of(files):
        if not mount.is_unified and not mount.controllers & {"devices", "memory", "cpuset", "freezer"}:
            continue
        for job_id, folder in _folders(files, mount):
            if job_id not in found and len(found) >= _MOST_JOBS:
                continue
            job = found.setdefault(job_id, SlurmJobHere())
            if not job.pids:
                job.pids = dict(_steps(files, folder))
            if "devices" in mount.controllers:
                job.minors = _minors(files, folder)
    return found


def _folders(files: Files, mount: Mount) -> Iterator[tuple[str, str]]:
    """Number and folder of each job: slurm[_node]/uid_1/job_2, or system.slice/[node_]slurmstepd.scope/job_2."""
    point = mount.point.strip("/")
    if mount.is_unified:
        parents = [
            f"{point}/system.slice/{name}" for name in _names(files, f"{point}/system.slice") if _SCOPE.fullmatch(name)
        ]
    else:
        roots = [f"{point}/{name}" for name in _names(files, point) if name.startswith("slurm")]
        parents = [f"{root}/{name}" for root in roots for name in _names(files, root) if name.startswith("uid_")]
    for parent in parents:
        for name in _names(files, parent):
            match = _JOB.fullmatch(name)
            if match:
                yield match[1], f"{parent}/{name}"


def _steps(files: Files, folder: str) -> Iterator[tuple[str, list[int]]]:
    for name in _names(files, folder):
        if name.startswith("step_"):
            pids = _pids(files, f"{folder}/{name}", depth=2)
            if pids:
                yield name.removeprefix("step_"), pids


def _pids(files: Files, folder: str, depth: int) -> list[int]:
    """The first processes here and below; the daemon's own cgroup is called slurm."""
    text = files.read(f"{folder}/cgroup.procs")
    pids = [] if isinstance(text, Unread) else [int(word) for word in text.split() if word.isdecimal()]
    if depth:
        for name in _names(files, folder):
            if name == "user" or name.startswith("task_"):
                pids += _pids(files, f"{folder}/{name}", depth - 1)
    return sorted(pids)[:_MOST_PIDS]


def _minors(files: Files, folder: str) -> list[str] | None:
    """GPUs of devices.list; None where it allows everything, as it says of a cgroup from which devices were taken."""
    text = files.read(f"{folder}/devices.list")
    if isinstance(text, Unread) or any(line.startswith(("a ", "c *", "c 195:*")) for line in text.splitlines()):
        return None
    numbers = [match[1] for line in text.splitlines() if (match := _NVIDIA.match(line))]
    return [number for number in numbers if int(number) < _NO_GPU]


def _names(files: Files, folder: str) -> list[str]:
    names = files.names(folder)
    return [] if isinstance(names, Unread) else names
