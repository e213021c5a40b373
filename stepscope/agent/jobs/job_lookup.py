"""Lookup of the job that a process, a pod or a Slurm number belongs to, and which GPU processes belong to none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.devices import DeviceUsage
from stepscope.collectors.jobs.kubernetes.pods import PodDirectory, pod_uid_of
from stepscope.collectors.jobs.processes import (
    Process,
    Processes,
    UserNames,
    container_of,
    is_service,
    leader_of,
    program_name_of,
)
from stepscope.collectors.jobs.slurm import SlurmNamesCollector, array_task_of, slurm_place_of
from stepscope.collectors.jobs.team_naming import TeamNaming
from stepscope.core.documents.jobs import Job, JobKind
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Missing, MissingReason
from stepscope.core.text.numbers import counted

_SHORT_ID = 12
"""Digits of a container's id, as container tools show it."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The job of a process.

    Attributes:
        step: Slurm step.
        inside: id of the pod in which the process runs, if the pod is not the job; its uid if no more is known.
    """

    job: Job
    step: str = ""
    inside: str = ""


class JobFinder:
    """Finds jobs in what is known at the moment; never blocks.

    Attributes:
        pods_by_uid: namespace and name of this node's pods, as far as they are known without the API.
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
        place = slurm_place_of(process)
        if place is not None:
            return FoundJob(self.of_slurm(place.job_id, process), place.step, "/".join(pod) if pod else uid)
        if uid:
            return FoundJob(
                self.of_pod(*pod) if pod else Job(JobKind.KUBERNETES, uid, user=self._users.name(process.uid))
            )
        container = container_of(process)[:_SHORT_ID]
        leader = process if container else leader_of(process, self._processes)
        job = Job(
            JobKind.PROCESSES,
            container or f"{leader.pid}-{leader.start}",
            name=program_name_of(process),
            user=self._users.name(process.uid),
            team=_variable(process, self._naming.team),
            project=_variable(process, self._naming.project),
        )
        return FoundJob(job)

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
            array=array_task_of(process),
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
        services = {pid for pid, process in found.items() if is_service(process)}
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
