"""Collector of jobs: joins all sources of assignments into readings of jobs, assignments and GPU time.

Also chooses the sources that this node has (kubelet, Kubernetes API, squeue). Labels are bounded in length, series in
number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from stepscope.agent.config.settings import JobSettings, node_name
from stepscope.agent.jobs import job_assignments
from stepscope.agent.jobs.gpu_time import GpuTimeCounter, GpuUseClassifier, JobKey
from stepscope.agent.polling import ScheduledSource, SourceState
from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.devices import DeviceUsage, device_usages_of
from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from stepscope.collectors.jobs.kubernetes.pod_resources import PodDevice
from stepscope.collectors.jobs.kubernetes.pods import PodDirectory, pod_uid_of, pods_with_logs
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.collectors.jobs.slurm import (
    SlurmNamesCollector,
    SlurmNodeJob,
    has_slurm_cgroups,
    read_hpc_job_files,
    slurm_jobs_on_node,
)
from stepscope.core.documents.jobs import Assignment, Job, JobKind, job_facts, job_labels
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, Missing, MissingReason, Reading, labels_of
from stepscope.core.text.numbers import MAX_ID_LENGTH, label_text

_SLOW_POLL_SECONDS = 15.0
"""Between two reads of what changes only with jobs: trees of cgroups, folders."""
_MAX_NAMES = 4


class JobCollector:
    """Collector of jobs' GPUs, and of the state and time of each device. Reads /proc and files, asks no server.

    Args:
        gpu_states: the sources that read GPUs, in the order of their trust.
        kubelet_devices: devices that the kubelet gave to pods, as far as is known.
        pods, slurm: what else is known; each is collected by a source of its own.
    """

    def __init__(
        self,
        gpu_states: Callable[[], Sequence[SourceState]],
        settings: JobSettings | None = None,
        *,
        kubelet_devices: Callable[[], Sequence[PodDevice]] = tuple,
        pods: PodDirectory | None = None,
        slurm: SlurmNamesCollector | None = None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._gpu_states = gpu_states
        self._settings = settings or JobSettings()
        self._kubelet_devices, self._pods, self._slurm = kubelet_devices, pods, slurm
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._files = Files(root)
        naming = self._settings.naming
        self._processes = Processes(self._files, (*naming.team, *naming.project))
        self._finder = job_assignments.JobFinder(self._files, self._processes, naming, pods, slurm)
        self._running = job_assignments.RunningProcesses(self._processes)
        self._activity = GpuUseClassifier()
        self._ledger = GpuTimeCounter(self._settings.idle_seconds)
        self._devices: list[DeviceUsage] = []
        self._assignments: tuple[Assignment, ...] = ()
        self._jobs: dict[JobKey, Job] = {}
        self._slow_poll_due = 0.0
        self._slurm_jobs: dict[str, SlurmNodeJob] = {}

    def collect(self) -> Collection:
        """Assignments, states and times as readings; raises nothing."""
        now, time_ns = self._clock(), self._wall_clock_ns()
        self._slow_poll(now)
        self._devices = devices = self._devices_now()
        running = self._running.on(devices)
        missing = job_assignments.hidden_processes(devices, running)
        found = self._source_assignments(devices, running, missing)
        assignments = [self._with_known_facts(one) for one in job_assignments.merged_assignments(found)]
        self._want(assignments, running.values())
        self._processes.end_round()
        self._ledger.observe(self._activity.seen(devices, assignments), now)
        self._jobs |= {one.job.key: one.job for one in assignments}
        self._jobs = {key: job for key, job in self._jobs.items() if key in self._ledger.jobs()}
        findings = []
        if len(assignments) > MAX_ASSIGNMENTS:
            message = f"{len(assignments)} jobs have GPUs here; {MAX_ASSIGNMENTS} are reported"
            findings.append(Finding("jobs_left_out", message, (), time_ns))
        self._assignments = tuple(assignments[:MAX_ASSIGNMENTS])
        readings = job_readings(self._assignments, self._jobs.values(), devices, self._ledger, time_ns)
        return Collection(tuple(readings), tuple(missing), tuple(findings))

    def assignments(self) -> tuple[Assignment, ...]:
        """Assignments of the last collection. May be called from any thread."""
        return self._assignments

    def _with_known_facts(self, one: Assignment) -> Assignment:
        """The assignment with the facts of its job that were known before: the process that had them may have ended."""
        job = job_with_bounded_labels(one.job)
        return replace(one, job=job_assignments.job_with_facts_of(job, self._jobs.get(job.key, job)))

    def _slow_poll(self, now: float) -> None:
        if now < self._slow_poll_due:
            return
        self._slow_poll_due = now + _SLOW_POLL_SECONDS
        self._slurm_jobs = slurm_jobs_on_node(self._files)
        self._finder.has_slurm_cgroups = has_slurm_cgroups(self._files)
        self._finder.pods_by_uid = pods_with_logs(self._files)

    def _devices_now(self) -> list[DeviceUsage]:
        """All devices; the last known ones if their source does not answer."""
        states = self._gpu_states()
        devices = device_usages_of(state.collection for state in states if not state.reason)
        if not devices and any(state.reason for state in states):
            devices = self._devices
            for device in devices:
                device.answers = False
        return devices

    def _source_assignments(
        self, devices: Sequence[DeviceUsage], running: dict[int, Process], missing: list[Missing]
    ) -> Iterable[job_assignments.SourceAssignment]:
        unknown: list[str] = []
        first = job_assignments.first_slurm_processes(self._slurm_jobs, self._processes)
        self._finder.know_slurm(first)
        by_kubelet = list(
            job_assignments.assignments_from_kubelet(self._kubelet_devices(), devices, self._finder, unknown)
        )
        yield from job_assignments.assignments_from_processes(devices, running, by_kubelet, self._finder)
        yield from job_assignments.assignments_from_slurm(self._slurm_jobs, first, devices, self._finder, unknown)
        yield from by_kubelet
        if self._settings.hpc_job_folder:
            folder = self._settings.hpc_job_folder.strip("/")
            job_files, ambiguous = read_hpc_job_files(self._files, folder, devices)
            yield from job_assignments.assignments_from_job_files(job_files, self._slurm_jobs, self._finder)
            unknown += [f"file /{folder}/{name}" for name in ambiguous]
        yield from job_assignments.assignments_from_dcgm_exporter(devices, self._finder)
        if unknown and devices:
            more = f" and {len(unknown) - _MAX_NAMES} more" if len(unknown) > _MAX_NAMES else ""
            detail = f"no GPU or MIG instance is known by these names alone: {', '.join(unknown[:_MAX_NAMES])}{more}"
            missing.append(Missing(GPU + "job_info", (), MissingReason.UNREADABLE, detail))

    def _want(self, assignments: Sequence[Assignment], running: Iterable[Process]) -> None:
        """Request the names of jobs that are not completely known from the other collectors."""
        if self._pods is not None:
            names = [tuple(one.job.id.split("/")) for one in assignments if one.job.kind is JobKind.KUBERNETES]
            uids = {uid for process in running if (uid := pod_uid_of(process))}
            self._pods.want([(name[0], name[1]) for name in names if len(name) == 2], uids)
        if self._slurm is not None:
            jobs = {one.job.id: one.job for one in assignments if one.job.kind is JobKind.SLURM}
            known = {job_id for job_id in jobs if self._slurm.names(job_id) is not None}
            self._slurm.want(known | {job_id for job_id, job in jobs.items() if not job.name or not job.account})


MAX_ASSIGNMENTS = 512
"""16 GPUs of 7 instances with 4 jobs each are 448."""
_MAX_STEPS = 8


def job_with_bounded_labels(job: Job) -> Job:
    """The job with texts that can be labels: printable and bounded in length."""
    facts = {one.name: label_text(getattr(job, one.name)) for one in fields(Job) if one.name not in ("kind", "id")}
    return Job(job.kind, label_text(job.id, MAX_ID_LENGTH), **facts)


def job_readings(
    assignments: Sequence[Assignment],
    jobs: Iterable[Job],
    devices: Iterable[DeviceUsage],
    ledger: GpuTimeCounter,
    time_ns: int,
) -> list[Reading]:
    """Readings of jobs, assignments, states and times.

    Args:
        assignments: with bounded jobs, at most `MAX_ASSIGNMENTS`.
        jobs: all that have time, also those that have ended: their series must join.
    """
    usages = {one.device: one for one in devices}
    found: list[Reading] = []

    def add(metric: str, value: float, labels: Labels) -> None:
        found.append(Reading(metric, value, tuple(sorted(labels)), time_ns))

    for job in jobs:
        add(JOB + "info", 1.0, (*job_labels(job), *job_facts(job)))
    for one in assignments:
        key = (*one.device.labels(), *job_labels(one.job))
        how = labels_of(share=one.share, source="+".join(one.sources))
        steps = "+".join(map(label_text, one.steps[:_MAX_STEPS]))
        how += labels_of(step=steps) if steps else ()
        add(GPU + "job_info", 1.0, (*key, *how))
        for pid in one.pids:
            add(JOB + "process_info", 1.0, (*key, ("pid", str(pid))))
        usage = usages.get(one.device)
        if usage is not None:
            for metric, value in _use_of(one, usage).items():
                add(metric, value, key)
    for device, state in ledger.states().items():
        add(GPU + "use_state", 1.0, (*device.labels(), ("state", state.value)))
    for (device, state), seconds in ledger.device_seconds().items():
        add(GPU + "use_seconds_total", seconds, (*device.labels(), ("state", state.value)))
    for ((kind, job_id), profile, state), seconds in ledger.job_seconds().items():
        further = labels_of(mig_profile=profile, state=state) if profile else labels_of(state=state)
        add(JOB + "gpu_seconds_total", seconds, (*job_labels(Job(kind, job_id)), *further))
    return found


def _use_of(one: Assignment, device: DeviceUsage) -> Mapping[str, float]:
    """Memory and SM utilization of a job's own processes; of values of the whole device each job would count all."""
    held = [device.holders[pid] for pid in one.pids if pid in device.holders]
    values = {}
    memory = [holder.memory_bytes for holder in held if holder.memory_bytes is not None]
    if held and len(memory) == len(held):
        values[JOB + "gpu_memory_bytes"] = float(sum(memory))
    if held and any(holder.sm_ratio is not None for holder in device.holders.values()):  # none of those that rest
        values[JOB + "sm_utilization_ratio"] = min(1.0, sum(holder.sm_ratio or 0.0 for holder in held))
    return values


JOBS = "jobs"
"""Name of the source of assignments."""
_JOBS_SECONDS, _OTHERS_SECONDS = 5.0, 10.0


def job_sources(
    gpu_states: Callable[[], Sequence[SourceState]],
    settings: JobSettings,
    *,
    environment: Mapping[str, str] | None = None,
) -> tuple[JobCollector, list[ScheduledSource]]:
    """The collector of jobs, and the sources to start: its own first, then those that it reads.

    Args:
        gpu_states: the sources that read GPUs, in the order of their trust.
        environment: variables that name a pod's API server; the process's own by default.
    """
    environment = os.environ if environment is None else environment
    found: list[ScheduledSource] = []
    kubelet_devices: Callable[[], Sequence[PodDevice]] = tuple
    pods: PodDirectory | None = None
    slurm: SlurmNamesCollector | None = None
    if Path(settings.kubelet_socket).parent.is_dir():
        from stepscope.collectors.jobs.kubernetes.kubelet import KubeletCollector  # takes memory that few need

        kubelet = KubeletCollector(settings.kubelet_socket)
        kubelet_devices = kubelet.pod_devices
        found.append(ScheduledSource("kubelet", kubelet, interval=_OTHERS_SECONDS))
    server = KubernetesApi.of_pod(environment)
    if server is not None:
        node = node_name(settings.node, environment)
        pods = PodDirectory(server, node, settings.naming)
        found.append(ScheduledSource("kubernetes_api", pods, interval=_OTHERS_SECONDS))
    names = SlurmNamesCollector()
    if names.is_possible:
        slurm = names
        found.append(ScheduledSource("squeue", slurm, interval=_OTHERS_SECONDS))
    jobs = JobCollector(gpu_states, settings, kubelet_devices=kubelet_devices, pods=pods, slurm=slurm)
    return jobs, [ScheduledSource(JOBS, jobs, interval=_JOBS_SECONDS), *found]
