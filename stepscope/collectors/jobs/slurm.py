"""Slurm jobs: the job of a process, its GPUs, jobs in the cgroup tree, names from squeue, job prolog files.

The cgroup decides which job a process is in, because a user can change the environment and must not choose who pays.
squeue runs only where environments may not be read: once for all unknown jobs, at most once a minute, in a thread of
its own, because all nodes share its server. Job prologs write files for dcgm-exporter that are named
after the GPU ("0", or "0.7" for GPU instance 7), one job a line; an epilog that failed leaves its file behind.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.collectors.host.cgroups import CgroupMount, cgroup_mounts
from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.devices import (
    DeviceUsage,
    devices_visible_to_cuda,
    find_by_minor,
    find_by_number,
    find_by_uuid,
    parse_device_list,
)
from stepscope.collectors.jobs.processes import Process
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import Collection, Missing, MissingReason

_JOB_PATH = re.compile(r"slurm[^/]*(?:/[^/]+)*?/job_(\d+)(?:/step_([^/]+))?")
"""/slurm/uid_1000/job_123/step_0/task_1, /system.slice/node1_slurmstepd.scope/job_123/step_batch/user/task_0; in a pod
that runs slurmd with a prefix."""

_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
"""A number of a job, step or array task. One that squeue does not take, from one user's environment, would cost all
jobs their names."""
_OUTSIDE_OF_STEPS = frozenset({"", "batch", "interactive", "extern"})


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Slurm job id and step of a process; the step is "0", "batch", "extern", or empty if not known."""

    job_id: str
    step: str = ""


def slurm_place_in_cgroup(path: str) -> SlurmPlace | None:
    """The Slurm job and step of a cgroup; None if it is not a job's."""
    match = _JOB_PATH.search(path)
    return SlurmPlace(match[1], match[2] or "") if match else None


def slurm_place_by_cgroups(process: Process) -> SlurmPlace | None:
    """The Slurm job and step in whose cgroup a process is, which users cannot change."""
    places = [place for path in process.cgroups if (place := slurm_place_in_cgroup(path)) is not None]
    return max(places, key=lambda place: bool(place.step), default=None)


def slurm_place_of(process: Process) -> SlurmPlace | None:
    """The Slurm job and step of a process, by its cgroup, else as its environment claims; None if it is in no job."""
    place = slurm_place_by_cgroups(process)
    if place is not None:
        return place
    job_id = process.variable("SLURM_JOB_ID")
    if _NUMBER.fullmatch(job_id) is None:
        return None
    step = process.variable("SLURM_STEP_ID")
    return SlurmPlace(job_id, step if _NUMBER.fullmatch(step) else "")


def slurm_array_task_of(process: Process) -> str:
    """ "120_3" of a process of a Slurm array's task; empty of others."""
    job, task = process.variable("SLURM_ARRAY_JOB_ID"), process.variable("SLURM_ARRAY_TASK_ID")
    return f"{job}_{task}" if _NUMBER.fullmatch(job) and _NUMBER.fullmatch(task) else ""


def slurm_gpus_of_process(process: Process, devices: Sequence[DeviceUsage]) -> tuple[list[DeviceUsage], list[str]]:
    """Devices of the Slurm job of a process, by the variables that Slurm sets, and names that fit no single device.

    SLURM_STEP_GPUS is set on each node; SLURM_JOB_GPUS on the first, from where steps on others inherit it: it counts
    only outside of steps. Both are minor numbers, the end of the name of the device's file; on machines with MIG they
    count instances and name no device. UUIDs, which CUDA_VISIBLE_DEVICES has from Slurm 25.11 on, are exact; they count
    only in a job that has GPUs, as users set that variable themselves.
    """
    place = slurm_place_of(process)
    numbers = process.variable("SLURM_STEP_GPUS")
    if not numbers and place is not None and place.step in _OUTSIDE_OF_STEPS:
        numbers = process.variable("SLURM_JOB_GPUS")
    if not numbers:
        return [], []
    visible = devices_visible_to_cuda(devices, process.variable("CUDA_VISIBLE_DEVICES"))
    if visible:
        return visible, []
    is_split = any(one.device.instance for one in devices)
    by_name = {
        name: find_by_uuid(devices, name)
        if not name.isdecimal()
        else None
        if is_split
        else find_by_minor(devices, name)
        for name in parse_device_list(numbers)
    }
    known = [device for device in by_name.values() if device is not None]
    return known, [name for name, device in by_name.items() if device is None]


_JOB_FOLDER = re.compile(r"job_(\d+)")
_SLURM_SCOPE = re.compile(r"(?:[^/]+_)?slurmstepd\.scope")
_MAX_NODE_JOBS, _MAX_PIDS = 512, 8
_NVIDIA_DEVICE = re.compile(r"c 195:(\d{1,3}) ")
_FIRST_NO_GPU_MINOR = 254
"""Minor numbers from here on are nvidia-modeset and nvidiactl."""


@dataclass(slots=True)
class SlurmNodeJob:
    """A Slurm job on this node.

    Attributes:
        pids: some processes of each step, without those of the steps' daemons.
        minors: minor numbers of the GPUs that it may open; None if its cgroup does not restrict them.
    """

    pids: dict[str, list[int]] = field(default_factory=dict)
    minors: list[str] | None = None


def slurm_jobs_on_node(files: Files) -> dict[str, SlurmNodeJob]:
    """Slurm jobs on this node by id; empty if Slurm has no cgroups."""
    found: dict[str, SlurmNodeJob] = {}
    for mount in cgroup_mounts(files):
        if not mount.is_unified and not mount.controllers & {"devices", "memory", "cpuset", "freezer"}:
            continue
        for job_id, folder in _job_folders(files, mount):
            if job_id not in found and len(found) >= _MAX_NODE_JOBS:
                continue
            job = found.setdefault(job_id, SlurmNodeJob())
            if not job.pids:
                job.pids = dict(_step_pids(files, folder))
            if "devices" in mount.controllers:
                job.minors = _allowed_minors(files, folder)
    return found


def has_slurm_cgroups(files: Files) -> bool:
    """Whether Slurm puts the processes of jobs on this node into cgroups; so it is also while there is no job."""
    return any(_slurm_folders(files, mount) for mount in cgroup_mounts(files))


def _slurm_folders(files: Files, mount: CgroupMount) -> list[str]:
    """Slurm's own cgroups of a hierarchy: slurm[_node], or system.slice/[node_]slurmstepd.scope."""
    point = mount.point.strip("/")
    if mount.is_unified:
        slice_ = f"{point}/system.slice"
        return [f"{slice_}/{name}" for name in _names(files, slice_) if _SLURM_SCOPE.fullmatch(name)]
    return [f"{point}/{name}" for name in _names(files, point) if name.startswith("slurm")]


def _job_folders(files: Files, mount: CgroupMount) -> Iterator[tuple[str, str]]:
    """Number and folder of each job: slurm[_node]/uid_1/job_2, or system.slice/[node_]slurmstepd.scope/job_2."""
    parents = _slurm_folders(files, mount)
    if not mount.is_unified:
        parents = [f"{root}/{name}" for root in parents for name in _names(files, root) if name.startswith("uid_")]
    for parent in parents:
        for name in _names(files, parent):
            match = _JOB_FOLDER.fullmatch(name)
            if match:
                yield match[1], f"{parent}/{name}"


def _step_pids(files: Files, folder: str) -> Iterator[tuple[str, list[int]]]:
    for name in _names(files, folder):
        if name.startswith("step_"):
            pids = _pids(files, f"{folder}/{name}", depth=2)
            if pids:
                yield name.removeprefix("step_"), pids


def _pids(files: Files, folder: str, depth: int) -> list[int]:
    """The first processes of a cgroup and those below; without the daemon's own, slurm."""
    text = files.read(f"{folder}/cgroup.procs")
    pids = [] if isinstance(text, NoValue) else [int(word) for word in text.split() if word.isdecimal()]
    if depth:
        for name in _names(files, folder):
            if name == "user" or name.startswith("task_"):
                pids += _pids(files, f"{folder}/{name}", depth - 1)
    return sorted(pids)[:_MAX_PIDS]


def _allowed_minors(files: Files, folder: str) -> list[str] | None:
    """GPUs of devices.list; None if it allows everything, as it does where single devices were denied."""
    text = files.read(f"{folder}/devices.list")
    if isinstance(text, NoValue) or any(line.startswith(("a ", "c *", "c 195:*")) for line in text.splitlines()):
        return None
    numbers = [match[1] for line in text.splitlines() if (match := _NVIDIA_DEVICE.match(line))]
    return [number for number in numbers if int(number) < _FIRST_NO_GPU_MINOR]


def _names(files: Files, folder: str) -> list[str]:
    names = files.names(folder)
    return [] if isinstance(names, NoValue) else names


_SQUEUE_FORMAT = "%A|%F|%K|%u|%a|%P|%j"
_SECONDS = 10.0
_PAUSE_SECONDS = 60.0
_MAX_PAUSE_SECONDS = 3600.0
_MAX_JOBS_ASKED = 100


@dataclass(frozen=True, slots=True)
class SlurmNames:
    """A Slurm job's names from squeue: its user, account, partition, name, and "120_3" of an array."""

    user: str
    account: str
    queue: str
    name: str
    array: str


def _squeue_in_path() -> str | None:
    """As `shutil.which`, for whose compression libraries the agent has no use."""
    paths = (os.path.join(folder, "squeue") for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


class SlurmNamesCollector:
    """Names of Slurm jobs from squeue. Only `collect` blocks; the rest returns what is known."""

    def __init__(self, command: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`command` is squeue's path; found in PATH by default."""
        self._command = command or _squeue_in_path()
        self._clock = clock
        self._known: dict[str, SlurmNames | None] = {}
        self._wanted: frozenset[str] = frozenset()
        self._due = 0.0
        self._pause = _PAUSE_SECONDS
        self._failure: Missing | None = None

    @property
    def is_possible(self) -> bool:
        return self._command is not None

    def names(self, job_id: str) -> SlurmNames | None:
        return self._known.get(job_id)

    def want(self, job_ids: Iterable[str]) -> None:
        """Request the names of these jobs and forget all others."""
        self._wanted = frozenset(job_ids)

    def collect(self) -> Collection:
        """Run squeue if names are missing; raises nothing."""
        now, wanted = self._clock(), self._wanted
        self._known = {job_id: names for job_id, names in self._known.items() if job_id in wanted}
        unknown = sorted(wanted - self._known.keys())[:_MAX_JOBS_ASKED]
        if unknown and now >= self._due and self._command:
            failure = self._ask(self._command, unknown)
            self._pause = min(self._pause * 2, _MAX_PAUSE_SECONDS) if failure else _PAUSE_SECONDS
            self._due = now + self._pause
            self._failure = Missing(JOB + "info", (), *failure) if failure else None
        return Collection(missing=(self._failure,) if self._failure else ())

    def _ask(self, command: str, job_ids: list[str]) -> tuple[MissingReason, str] | None:
        """Fill `_known`; why it cannot be."""
        line = [command, "--noheader", "--all", "--format", _SQUEUE_FORMAT, "--jobs", ",".join(job_ids)]
        try:
            answer = subprocess.run(
                line, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return MissingReason.TIMED_OUT, f"squeue: no answer within {_SECONDS:g} s"
        except OSError as error:
            return MissingReason.FAILED, f"{command}: {error.strerror}"
        if answer.returncode and "Invalid job id" not in answer.stderr:
            reason = answer.stderr.strip().partition("\n")[0] or f"status {answer.returncode}"
            return MissingReason.UNREACHABLE, f"squeue: {reason}"
        found = parse_squeue(answer.stdout)
        self._known.update({job_id: found.get(job_id) for job_id in job_ids})
        return None


def parse_squeue(text: str) -> dict[str, SlurmNames]:
    """Slurm jobs by id from lines in `_SQUEUE_FORMAT`; a job's name may contain bars."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7 and parts[0].isdecimal():
            array = f"{parts[1]}_{parts[2]}" if parts[2].isdecimal() else ""
            found[parts[0]] = SlurmNames(parts[3], parts[4], parts[5], parts[6], array)
    return found


_JOB_FILE_NAME = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?", re.ASCII)
_MAX_JOBS_A_FILE = 16
_MAX_JOB_NAME = 64


def read_hpc_job_files(
    files: Files, folder: str, devices: Sequence[DeviceUsage]
) -> tuple[list[tuple[DeviceUsage, str]], list[str]]:
    """Jobs in the files that Slurm prologs write.

    Args:
        folder: of the job files, below the files' root.

    Returns:
        Pairs of a device and a job id, and names of files whose number is ambiguous: NVML's index and Slurm's number,
        the minor number, are different GPUs.
    """
    names = files.names(folder)
    found: list[tuple[DeviceUsage, str]] = []
    ambiguous: list[str] = []
    for name in [] if isinstance(names, NoValue) else names:
        match = _JOB_FILE_NAME.fullmatch(name)
        if match is None:
            continue
        text = files.read(f"{folder}/{name}")
        jobs = [] if isinstance(text, NoValue) else [line.strip() for line in text.splitlines() if line.strip()]
        device = _device_of_file(match, devices)
        if device is None:
            ambiguous += [name] if jobs else []
            continue
        found += [(device, job) for job in dict.fromkeys(jobs[:_MAX_JOBS_A_FILE]) if len(job) <= _MAX_JOB_NAME]
    return found, ambiguous


def _device_of_file(match: re.Match[str], devices: Sequence[DeviceUsage]) -> DeviceUsage | None:
    if not match[2]:
        return find_by_number(devices, match[1])
    like = [one for one in devices if one.device.index == one.minor == match[1] and one.device.instance == match[2]]
    return like[0] if like else None
