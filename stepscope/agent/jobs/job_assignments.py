"""Jobs of processes, pods and Slurm numbers, and the assignments of devices to them.

Assignments are merged from processes, Slurm, the kubelet, job files and a dcgm-exporter's page. A process that holds
the device is certain: it belongs to one job, by its innermost cgroup. The other sources name a device only; they
add a job without a process, unless it is the same job under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.devices import DeviceUsage, dra_device, find_by_minor, is_gpu_name, plugin_device
from stepscope.collectors.jobs.kubernetes.pod_resources import PodDevice
from stepscope.collectors.jobs.kubernetes.pods import PodDirectory, pod_uid_of
from stepscope.collectors.jobs.processes import (
    Process,
    Processes,
    TeamNaming,
    UserNames,
    container_id_of,
    is_gpu_service,
    job_leader_of,
    program_name_of,
)
from stepscope.collectors.jobs.slurm import (
    SlurmNamesCollector,
    SlurmNodeJob,
    SlurmPlace,
    slurm_array_task_of,
    slurm_gpus_of_process,
    slurm_place_by_cgroups,
    slurm_place_of,
)
from stepscope.core.documents.jobs import Assignment, Job, JobKind, JobSource, Share
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Missing, MissingReason
from stepscope.core.text.numbers import counted

_SHORT_ID = 12
"""Digits of a container's id, as container tools show it."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The job of a process that uses a GPU.

    Attributes:
        inside: id of the pod in which the process runs, if the pod is not the job; its uid if no more is known.
    """

    job: Job
    step: str = ""
    inside: str = ""


class JobFinder:
    """Finds the jobs of processes, pods and Slurm numbers in what is known at the moment; never blocks.

    Attributes:
        pods_by_uid: namespace and name of this node's pods, as far as they are known without the API.
        has_slurm_cgroups: Slurm has the processes of its jobs in cgroups here: one outside of them only claims a job.
    """

    def __init__(
        self,
        files: Files,
        processes: Processes,
        naming: TeamNaming,
        pods: PodDirectory | None,
        slurm: SlurmNamesCollector | None,
    ) -> None:
        self.pods_by_uid: Mapping[str, tuple[str, str]] = {}
        self.has_slurm_cgroups = False
        self._first_of_slurm: dict[str, Process] = {}
        self._processes = processes
        self._naming = naming
        self._pods = pods
        self._slurm = slurm
        self._users = UserNames(files)

    def know_slurm(self, first: Mapping[str, Mapping[str, Process]]) -> None:
        """Take the first process of each Slurm job and step: Slurm started it, users cannot have changed it."""
        self._first_of_slurm = {
            job_id: min(of_step.values(), key=attrgetter("start")) for job_id, of_step in first.items()
        }

    def of_process(self, process: Process) -> FoundJob:
        """The job of a process: the innermost of its Slurm job, pod, container and launcher."""
        uid = pod_uid_of(process)
        pod = self._pod_named(uid) if uid else None
        place = slurm_place_by_cgroups(process) or self._claimed_place(process)
        if place is not None:
            return FoundJob(self.of_slurm(place.job_id, process), place.step, "/".join(pod) if pod else uid)
        if uid:
            return FoundJob(
                self.of_pod(*pod) if pod else Job(JobKind.KUBERNETES, uid, user=self._users.name(process.uid))
            )
        container = container_id_of(process)[:_SHORT_ID]
        leader = process if container else job_leader_of(process, self._processes)
        job = Job(
            JobKind.PROCESSES,
            container or f"{leader.pid}-{leader.start}",
            name=program_name_of(process),
            user=self._users.name(process.uid),
            team=_variable(process, self._naming.team),
            project=_variable(process, self._naming.project),
        )
        return FoundJob(job)

    def _claimed_place(self, process: Process) -> SlurmPlace | None:
        """The Slurm job that the environment of a process names; None where it is another user's, or not here."""
        place = slurm_place_of(process)
        if place is None:
            return None
        first = self._first_of_slurm.get(place.job_id)
        if first is not None or self.has_slurm_cgroups:  # as of a container that a job has started
            return place if first is not None and first.uid == process.uid is not None else None
        names = self._slurm.names(place.job_id) if self._slurm is not None else None
        user = self._users.name(process.uid)
        is_others = names is not None and user and not user.isdecimal() and user != names.user
        return None if is_others else place

    def of_slurm(self, job_id: str, process: Process | None = None) -> Job:
        """The Slurm job of an id, from the environment of one of its processes and from squeue."""
        process = self._first_of_slurm.get(job_id, process)
        job = Job(JobKind.SLURM, job_id) if process is None else self._by_environment(job_id, process)
        names = self._slurm.names(job_id) if self._slurm is not None else None
        if names is None:
            return job
        return replace(
            job, name=names.name, user=names.user, account=names.account, queue=names.queue, array=names.array
        )

    def _by_environment(self, job_id: str, process: Process) -> Job:
        user = self._users.name(process.uid or None)  # root's is the daemon that starts the step
        by_slurm = process.variable("SLURM_JOB_USER")
        return Job(
            JobKind.SLURM,
            job_id,
            name=process.variable("SLURM_JOB_NAME"),
            user=by_slurm or user if user.isdecimal() or not user else user,
            account=process.variable("SLURM_JOB_ACCOUNT"),
            team=_variable(process, self._naming.team),
            project=_variable(process, self._naming.project),
            queue=process.variable("SLURM_JOB_PARTITION"),
            array=slurm_array_task_of(process),
        )

    def of_pod(self, namespace: str, name: str) -> Job:
        """The pod as a job, with what is known of it from the API."""
        pod = self._pods.pod(namespace, name) if self._pods is not None else None
        return Job(
            JobKind.KUBERNETES,
            f"{namespace}/{name}",
            name=name,
            account=namespace,
            team=pod.team if pod else "",
            project=pod.project if pod else "",
            queue=pod.queue if pod else "",
            workload=pod.workload if pod else "",
        )

    def _pod_named(self, uid: str) -> tuple[str, str] | None:
        pod = self._pods.pod_of_uid(uid) if self._pods is not None else None
        if pod is not None:
            return pod.namespace, pod.name
        return self.pods_by_uid.get(uid)


def _variable(process: Process, names: tuple[str, ...]) -> str:
    return next((process.variable(name) for name in names if process.variable(name)), "")


class RunningProcesses:
    """Processes on GPUs that are still running: a GPU's list of processes is some seconds old."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: frozenset[int] = frozenset()

    def on(self, devices: Sequence[DeviceUsage]) -> dict[int, Process]:
        """Processes by id. Removes those that have ended, and services, from the holders of the devices."""
        listed = {pid for device in devices for pid in device.holders}
        found = {pid: process for pid in listed if (process := self._processes.read(pid)) is not None}
        ended = (self._known & listed) - found.keys()
        self._known = frozenset(found) | ended
        services = {pid for pid, process in found.items() if is_gpu_service(process)}
        for device in devices:
            for pid in ended | services:
                device.holders.pop(pid, None)
        return {pid: process for pid, process in found.items() if pid not in services}


def hidden_processes(devices: Iterable[DeviceUsage], running: dict[int, Process]) -> list[Missing]:
    """Missing job information: of processes in other PID namespaces, and of environments that may not be read."""
    missing = []
    for usage in devices:
        hidden = sorted(usage.holders.keys() - running.keys())
        if hidden:
            detail = f"process {hidden[0]} is not in this PID namespace (containers: hostPID)"
            missing.append(Missing(GPU + "job_info", usage.device.labels(), MissingReason.NO_PERMISSION, detail))
    closed = sum(process.variables is None for process in running.values())
    if closed:
        detail = f"the environment of {counted(closed, 'process')} may not be read: it takes root or CAP_SYS_PTRACE"
        missing.append(Missing(JOB + "info", (), MissingReason.NO_PERMISSION, detail))
    return missing


_LAST_RESORT = frozenset({JobSource.DCGM_EXPORTER})


@dataclass(frozen=True, slots=True)
class SourceAssignment:
    """A job and its device as one source reports it.

    Attributes:
        job, device, source: who has which device, by which source.
        pid: of the process that holds the device; None where the source knows no process.
        step: Slurm step, or container.
        share: how the job has the device; None where the source does not know.
        inside: namespace/name of the pod in which the job's process runs, if the pod is not the job itself.
    """

    job: Job
    device: Device
    source: JobSource
    pid: int | None = None
    step: str = ""
    share: Share | None = None
    inside: str = ""


@dataclass(slots=True)
class _Merged:
    job: Job
    sources: list[JobSource] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    shares: set[Share] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)


def merged_assignments(assignments: Iterable[SourceAssignment]) -> list[Assignment]:
    """One assignment of a GPU for each job and device, in the order of the source assignments.

    A job has all facts that any source has of it; of two that differ the first counts.
    """
    by_device: dict[Device, dict[tuple[JobKind, str], _Merged]] = {}
    facts: dict[tuple[JobKind, str], Job] = {}
    for assignment in assignments:
        jobs = by_device.setdefault(assignment.device, {})
        facts[assignment.job.key] = job_with_facts_of(facts.get(assignment.job.key, assignment.job), assignment.job)
        merged = jobs.setdefault(assignment.job.key, _Merged(assignment.job))
        if assignment.source not in merged.sources:
            merged.sources.append(assignment.source)
        if assignment.pid is not None:
            merged.pids.add(assignment.pid)
        if assignment.step and assignment.step not in merged.steps:
            merged.steps.append(assignment.step)
        if assignment.share is not None:
            merged.shares.add(assignment.share)
        if assignment.inside:
            merged.pods.add(assignment.inside)
    found = []
    for device, jobs in by_device.items():
        kept = _kept(list(jobs.values()))
        shares = set[Share]().union(*(one.shares for one in kept))
        for one in kept:
            found.append(
                Assignment(
                    facts[one.job.key],
                    device,
                    _share_of(shares, len(kept)),
                    tuple(one.sources),
                    tuple(sorted(one.pids)),
                    tuple(one.steps),
                )
            )
    return found


def _kept(merged: Sequence[_Merged]) -> list[_Merged]:
    """Without duplicates: the pod in which Slurm's daemon runs its jobs, and jobs that only a page names."""
    around = set[str]().union(*(one.pods for one in merged))
    kept = [one for one in merged if one.pids or one.job.kind is not JobKind.KUBERNETES or one.job.id not in around]
    sure = [one for one in kept if not _LAST_RESORT.issuperset(one.sources)]
    return sure or kept


def job_with_facts_of(job: Job, other: Job) -> Job:
    """The job with its empty facts filled from another record of it."""
    unknown = {one.name: getattr(other, one.name) for one in fields(Job) if not getattr(job, one.name)}
    return replace(job, **unknown) if any(unknown.values()) else job


def _share_of(reported: set[Share], num_jobs: int) -> Share:
    for share in (Share.MPS, Share.TIME_SLICED):
        if share in reported:
            return share
    return Share.TIME_SLICED if num_jobs > 1 else Share.EXCLUSIVE


def assignments_from_processes(
    devices: Iterable[DeviceUsage],
    running: Mapping[int, Process],
    kubelet_assignments: Iterable[SourceAssignment],
    finder: JobFinder,
) -> Iterator[SourceAssignment]:
    """Agent's jobs: assignment of GPUs to the jobs of the processes that hold them.

    Args:
        kubelet_assignments: a pod whose name is not known is one of those that have the device.
    """
    pods: dict[Device, dict[str, Job]] = {}
    for assignment in kubelet_assignments:
        pods.setdefault(assignment.device, {})[assignment.job.id] = assignment.job
    found: dict[int, FoundJob] = {}
    for usage in devices:
        for pid, holder in usage.holders.items():
            process = running.get(pid)
            if process is None:
                continue
            if pid not in found:
                found[pid] = finder.of_process(process)
            one = _with_pod_name(found[pid], process, pods.get(usage.device, {}))
            is_mps = holder.is_mps or bool(process.variable("CUDA_MPS_PIPE_DIRECTORY"))
            share = Share.MPS if is_mps else None
            yield SourceAssignment(one.job, usage.device, JobSource.PROCESS, pid, one.step, share, one.inside)


def _with_pod_name(found: FoundJob, process: Process, pods: Mapping[str, Job]) -> FoundJob:
    """The job with its pod's name if only the uid was known: the device's only pod, or that of the host name.

    A user can change HOSTNAME, but only to that of another pod of the same device.
    """
    is_nameless = found.job.kind is JobKind.KUBERNETES and "/" not in found.job.id
    if not is_nameless and ("/" in found.inside or not found.inside):
        return found
    like = [pod for pod in pods.values() if len(pods) == 1 or pod.name == process.variable("HOSTNAME")]
    if len(like) != 1:
        return found
    return FoundJob(like[0]) if is_nameless else replace(found, inside=like[0].id)


def first_slurm_processes(jobs: Mapping[str, SlurmNodeJob], processes: Processes) -> dict[str, dict[str, Process]]:
    """Agent's jobs: the oldest process of each Slurm job and step; Slurm started it, the user the others."""
    found: dict[str, dict[str, Process]] = {}
    for job_id, here in jobs.items():
        for step, pids in here.pids.items():
            read = [process for pid in pids if (process := processes.read(pid)) is not None]
            if read:
                found.setdefault(job_id, {})[step] = min(read, key=attrgetter("start"))
    return found


def assignments_from_slurm(
    jobs: Mapping[str, SlurmNodeJob],
    first: Mapping[str, Mapping[str, Process]],
    devices: Sequence[DeviceUsage],
    finder: JobFinder,
    unknown: list[str],
) -> Iterator[SourceAssignment]:
    """Agent's jobs: assignment of GPUs to this node's Slurm jobs, by cgroup, else by environment.

    A job has the GPUs that its cgroup may open, else those in its environment.

    Args:
        unknown: receives names of devices that are not known.
    """
    for job_id, here in jobs.items():
        job = finder.of_slurm(job_id)
        if here.minors is not None:
            for minor in here.minors:
                found = find_by_minor(devices, minor)
                if found is not None:
                    yield SourceAssignment(job, found.device, JobSource.DEVICE_CGROUP)
            continue
        for step, process in first.get(job_id, {}).items():
            known, names = slurm_gpus_of_process(process, devices)
            unknown += [f"{name} of Slurm job {job_id}" for name in names]
            for found in known:
                yield SourceAssignment(job, found.device, JobSource.SLURM_ENVIRONMENT, None, step)


def assignments_from_kubelet(
    kubelet_devices: Iterable[PodDevice], devices: Sequence[DeviceUsage], finder: JobFinder, unknown: list[str]
) -> Iterator[SourceAssignment]:
    """Agent's jobs: assignment of GPUs to the pods to which the kubelet gave them.

    `unknown` receives names of devices that are not known.
    """
    for one in kubelet_devices:
        found, is_share = (dra_device(devices, one.name), False) if one.is_claim else plugin_device(devices, one.name)
        if found is not None:
            share = Share.TIME_SLICED if is_share else None
            job = finder.of_pod(one.namespace, one.pod)
            yield SourceAssignment(job, found.device, JobSource.KUBELET, None, one.container, share)
        elif one.is_claim or is_gpu_name(one.name):
            unknown.append(f"{one.name} of pod {one.namespace}/{one.pod}")


def assignments_from_job_files(
    job_files: Iterable[tuple[DeviceUsage, str]], slurm_jobs: Mapping[str, SlurmNodeJob], finder: JobFinder
) -> Iterator[SourceAssignment]:
    """Assignments in the files of job prologs, without jobs that have ended according to Slurm's cgroups."""
    for usage, job_id in job_files:
        if not slurm_jobs or job_id in slurm_jobs:
            yield SourceAssignment(finder.of_slurm(job_id), usage.device, JobSource.HPC_JOB_FILE)


def assignments_from_dcgm_exporter(devices: Iterable[DeviceUsage], finder: JobFinder) -> Iterator[SourceAssignment]:
    """Agent's jobs: assignment of GPUs to the jobs and pods on a dcgm-exporter's page."""
    for usage in devices:
        for workload in usage.workloads:
            job: Job | None = None
            if workload.get("job"):
                job = Job(JobKind.SLURM, workload["job"])
            elif workload.get("pod") and workload.get("namespace"):
                job = finder.of_pod(workload["namespace"], workload["pod"])
            if job is not None:
                share = Share.TIME_SLICED if workload.get("vgpu") else None
                yield SourceAssignment(
                    job, usage.device, JobSource.DCGM_EXPORTER, None, workload.get("container", ""), share
                )
