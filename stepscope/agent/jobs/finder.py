"""Which job is a process's, which a pod's, which that of a Slurm number?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.kubernetes.pod_directory import PodDirectory
from stepscope.collectors.jobs.kubernetes.pod_processes import pod_uid_of
from stepscope.collectors.jobs.kubernetes.pod_resources import GivenDevice
from stepscope.collectors.jobs.plain import container_of, leader_of, name_of
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.collectors.jobs.settings import Naming
from stepscope.collectors.jobs.slurm import array_task_of, place_of
from stepscope.collectors.jobs.slurm_names import SlurmNamesCollector
from stepscope.collectors.jobs.user_names import UserNames
from stepscope.core.jobs import Job, JobKind

_SHORT_ID = 12
"""Digits of a container's id, as container tools show it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A process's job.

    Attributes:
        job: which.
        step: of Slurm.
        inside: id of the pod in which the process runs, where the job is not the pod.
    """

    job: Job
    step: str = ""
    inside: str = ""

    @property
    def is_nameless_pod(self) -> bool:
        """Whether it is a pod of which the uid alone is known."""
        return self.job.kind is JobKind.KUBERNETES and "/" not in self.job.id


class JobFinder:
    """Names jobs by what is known at the moment; asks nobody.

    Attributes:
        pods_by_uid: namespace and name of this node's pods, as far as they are known without the API.
    """

    def __init__(
        self,
        files: Files,
        processes: Processes,
        naming: Naming,
        pods: PodDirectory | None,
        slurm: SlurmNamesCollector | None,
    ) -> None:
        self.pods_by_uid: Mapping[str, tuple[str, str]] = {}
        self._pods_by_host: dict[str, tuple[str, str]] = {}
        self._processes = processes
        self._naming = naming
        self._pods = pods
        self._slurm = slurm
        self._users = UserNames(files)

    def know_pods(self, given: Iterable[GivenDevice]) -> None:
        """Pods with devices. A pod is its processes' host name; one that two namespaces have tells nothing."""
        names = {(one.namespace, one.pod) for one in given}
        count = Counter(pod for _, pod in names)
        self._pods_by_host = {pod: (namespace, pod) for namespace, pod in names if count[pod] == 1}

    def of_process(self, process: Process) -> Found:
        """The job of a process, by its innermost home: Slurm's, a pod, a container, a launcher."""
        uid = pod_uid_of(process)
        pod = self._pod_named(process, uid) if uid else None
        place = place_of(process)
        if place is not None:
            inside = "/".join(pod) if pod else ""
            return Found(self.of_slurm(place.job_id, process), place.step, inside)
        if uid:
            return Found(self.of_pod(*pod) if pod else Job(JobKind.KUBERNETES, uid, user=self._users.name(process.uid)))
        container = container_of(process)[:_SHORT_ID]
        leader = process if container else leader_of(process, self._processes)
        job = Job(
            JobKind.PROCESSES,
            container or f"{leader.pid}-{leader.start}",
            name=name_of(process),
            user=self._users.name(process.uid),
            team=_variable(process, self._naming.team),
            project=_variable(process, self._naming.project),
        )
        return Found(job)

    def of_slurm(self, job_id: str, process: Process | None = None) -> Job:
        """The Slurm job of this number; what the environment of one of its processes does not tell, squeue may."""
        names = self._slurm.names(job_id) if self._slurm is not None else None
        job = Job(JobKind.SLURM, job_id)
        if process is not None:
            job = Job(
                JobKind.SLURM,
                job_id,
                name=process.variable("SLURM_JOB_NAME"),
                user=process.variable("SLURM_JOB_USER") or self._users.name(process.uid or None),  # root's: the daemon
                account=process.variable("SLURM_JOB_ACCOUNT"),
                team=_variable(process, self._naming.team),
                project=_variable(process, self._naming.project),
                queue=process.variable("SLURM_JOB_PARTITION"),
                array=array_task_of(process),
            )
        if names is None:
            return job
        return Job(
            JobKind.SLURM,
            job_id,
            name=names.name,
            user=names.user,
            account=names.account,
            team=job.team,
            project=job.project,
            queue=names.queue,
            array=names.array,
        )

    def of_pod(self, namespace: str, name: str) -> Job:
        """The pod as a job, with what the API told of it."""
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

    def _pod_named(self, process: Process, uid: str) -> tuple[str, str] | None:
        told = self._pods.pod_of_uid(uid) if self._pods is not None else None
        if told is not None:
            return told.namespace, told.name
        return self.pods_by_uid.get(uid) or self._pods_by_host.get(process.variable("HOSTNAME"))


def _variable(process: Process, names: tuple[str, ...]) -> str:
    return next((process.variable(name) for name in names if process.variable(name)), "")
