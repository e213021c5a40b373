"""Who uses which GPU now? A collector that joins what all others know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.agent.jobs import sayings
from stepscope.agent.jobs.activity import Activity
from stepscope.agent.jobs.claims import Claim, assignments, filled
from stepscope.agent.jobs.finder import JobFinder
from stepscope.agent.jobs.ledger import JobKey, UseLedger
from stepscope.agent.jobs.running import RunningProcesses, what_is_hidden
from stepscope.agent.jobs.told import MOST_ASSIGNMENTS, bounded, readings_of
from stepscope.agent.source_state import SourceState
from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.devices import Device, devices_of
from stepscope.collectors.jobs.hpc_job_files import read_hpc_job_files
from stepscope.collectors.jobs.kubernetes.pod_directory import PodDirectory
from stepscope.collectors.jobs.kubernetes.pod_processes import pod_uid_of, pods_with_logs
from stepscope.collectors.jobs.kubernetes.pod_resources import GivenDevice
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.collectors.jobs.settings import JobSettings
from stepscope.collectors.jobs.slurm_cgroups import SlurmJobHere, slurm_jobs_here
from stepscope.collectors.jobs.slurm_names import SlurmNamesCollector
from stepscope.core.gpu_metrics import GPU
from stepscope.core.jobs import Assignment, Job, JobKind
from stepscope.core.readings import Collection, Finding, Missing, MissingReason

_SELDOM_SECONDS = 15.0
"""Between two looks at what changes with jobs alone: trees of cgroups, folders."""
_MOST_TOLD = 4


class JobCollector:
    """Collects assignments, what each device is used for, and time. Reads /proc and files; waits for no server."""

    def __init__(
        self,
        gpu_states: Callable[[], Sequence[SourceState]],
        settings: JobSettings | None = None,
        *,
        given: Callable[[], Sequence[GivenDevice]] = tuple,
        pods: PodDirectory | None = None,
        slurm: SlurmNamesCollector | None = None,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            gpu_states: the sources that read GPUs, in the order of their trust.
            settings: of the operator.
            given: devices that the kubelet gave to pods, as far as is known.
            pods, slurm: what else is known; each is collected by somebody else.
            root: where /proc and /sys are.
            clock: seconds, only forward.
            wall_clock_ns: now, ns since the epoch.
        """
        self._gpu_states = gpu_states
        self._settings = settings or JobSettings()
        self._given, self._pods, self._slurm = given, pods, slurm
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._files = Files(root)
        naming = self._settings.naming
        self._processes = Processes(self._files, (*naming.team, *naming.project))
        self._finder = JobFinder(self._files, self._processes, naming, pods, slurm)
        self._running = RunningProcesses(self._processes)
        self._activity = Activity()
        self._ledger = UseLedger(self._settings.idle_seconds)
        self._devices: list[Device] = []
        self._jobs: dict[JobKey, Job] = {}
        self._seldom_due = 0.0
        self._slurm_jobs: dict[str, SlurmJobHere] = {}

    def collect(self) -> Collection:
        """Who has which device; nothing is raised."""
        now, time_ns = self._clock(), self._wall_clock_ns()
        self._look_seldom(now)
        self._devices = devices = self._devices_now()
        running = self._running.on(devices)
        missing = what_is_hidden(devices, running)
        told = [self._with_known_facts(one) for one in assignments(self._claims(devices, running, missing))]
        self._want(told, running.values())
        self._processes.end_round()
        self._ledger.observe(self._activity.seen(devices, told), now)
        self._jobs |= {one.job.key: one.job for one in told}
        self._jobs = {key: job for key, job in self._jobs.items() if key in self._ledger.jobs()}
        findings = []
        if len(told) > MOST_ASSIGNMENTS:
            message = f"{len(told)} jobs have GPUs here; {MOST_ASSIGNMENTS} are told"
            findings.append(Finding("jobs_left_out", message, (), time_ns))
        readings = readings_of(told[:MOST_ASSIGNMENTS], self._jobs.values(), devices, self._ledger, time_ns)
        return Collection(tuple(readings), tuple(missing), tuple(findings))

    def _with_known_facts(self, one: Assignment) -> Assignment:
        """What was known of its job stays: a process that told it may have ended."""
        job = bounded(one.job)
        return replace(one, job=filled(job, self._jobs.get(job.key, job)))

    def _look_seldom(self, now: float) -> None:
        if now < self._seldom_due:
            return
        self._seldom_due = now + _SELDOM_SECONDS
        self._slurm_jobs = slurm_jobs_here(self._files)
        self._finder.pods_by_uid = pods_with_logs(self._files)

    def _devices_now(self) -> list[Device]:
        """All devices; those that were known where their source does not answer."""
        states = self._gpu_states()
        devices = devices_of(state.collection for state in states if not state.reason)
        if not devices and any(state.reason for state in states):
            devices = self._devices
            for device in devices:
                device.answers = False
        return devices

    def _claims(
        self, devices: Sequence[Device], running: dict[int, Process], missing: list[Missing]
    ) -> Iterable[Claim]:
        unknown: list[str] = []
        first = sayings.first_of_slurm(self._slurm_jobs, self._processes)
        self._finder.know_slurm(first)
        by_kubelet = list(sayings.of_kubelet(self._given(), devices, self._finder, unknown))
        yield from sayings.of_processes(devices, running, by_kubelet, self._finder)
        yield from sayings.of_slurm(self._slurm_jobs, first, devices, self._finder, unknown)
        yield from by_kubelet
        if self._settings.hpc_job_folder:
            folder = self._settings.hpc_job_folder.strip("/")
            told, ambiguous = read_hpc_job_files(self._files, folder, devices)
            yield from sayings.of_files(told, self._slurm_jobs, self._finder)
            unknown += [f"file /{folder}/{name}" for name in ambiguous]
        yield from sayings.of_page(devices, self._finder)
        if unknown and devices:
            more = f" and {len(unknown) - _MOST_TOLD} more" if len(unknown) > _MOST_TOLD else ""
            detail = f"no GPU or MIG instance is known by these names alone: {', '.join(unknown[:_MOST_TOLD])}{more}"
            missing.append(Missing(GPU + "job_info", (), MissingReason.UNREADABLE, detail))

    def _want(self, told: Sequence[Assignment], running: Iterable[Process]) -> None:
        """Say of which jobs more would be good to know."""
        if self._pods is not None:
            names = [tuple(one.job.id.split("/")) for one in told if one.job.kind is JobKind.KUBERNETES]
            uids = {uid for process in running if (uid := pod_uid_of(process))}
            self._pods.want([(name[0], name[1]) for name in names if len(name) == 2], uids)
        if self._slurm is not None:
            jobs = {one.job.id: one.job for one in told if one.job.kind is JobKind.SLURM}
            known = {job_id for job_id in jobs if self._slurm.names(job_id) is not None}
            self._slurm.want(known | {job_id for job_id, job in jobs.items() if not job.name or not job.account})
