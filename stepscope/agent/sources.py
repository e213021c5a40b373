"""All sources of this machine in the order of their trust, the interval of each, and `stepscope agent check`.

The check reports the state of each source, and the metrics collected or missing of each GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from stepscope.agent.config.settings import HealthThresholds, JobSettings
from stepscope.agent.fleet.fleet_source import FleetSource
from stepscope.agent.gpus.gpu_source import GpuSource, KernelLogSource, RenumberedSource
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.hangs.hang_detection import HangSource, NcclRasSource
from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.health.health_store import HealthStore
from stepscope.agent.health.memory import HealthMemory
from stepscope.agent.jobs.job_collector import job_sources
from stepscope.agent.polling import ScheduledSource, SharedThread, SourceState
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.training_source import DEFAULT_SERIES_OF_USER, TrainingSource
from stepscope.collectors.host.collector import HostCollector, InfinibandCollector
from stepscope.collectors.host.processes import GpuUsers, gpu_users_of
from stepscope.collectors.kernel_log import KernelLog
from stepscope.collectors.kineto_daemon.backend import KinetoBackend, KinetoSource
from stepscope.core.documents.jobs import Assignment
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import GPU, Collection, Labels, Missing, MissingReason
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice

if TYPE_CHECKING:
    from stepscope.agent.kubernetes.reporter import NodeReporter
    from stepscope.collectors.dcgm_exporter.page import Endpoint

GPUS = "nvml"
"""Name of the source that reads the GPUs' driver."""
_NEW_PROCESS_SECONDS = 3.0
"""Time after a GPU hung until a new process finds the others."""
_GPU_PATIENCE_SECONDS = 85.0
"""With GPUs that have not answered; `FirstGpuRound` gives them up one by one. systemd waits 90 s for the agent."""
_HOST_SECONDS = 5.0
_DCGM_SECONDS = 10.0
_HEALTH_SECONDS = 5.0
_HANG_SECONDS = 1.0
_RAS_SECONDS = 5.0


class AgentSources:
    """All sources that the agent reads, in the order of their trust. A context manager: reads while it is open.

    Args:
        dcgm_exporter: a page of dcgm-exporter to read as well.
        training: server of training processes; opened and closed by the caller.
        kineto: server of processes without stepscope; opened and closed by the caller.
        nccl_ras: host and port of NCCL's RAS service; None: it is not asked.
        kubernetes: reporter of health to Kubernetes; opened and closed by the caller.
        health_store: keeps health over a restart; None: it is not kept.

    Attributes:
        health, fleet: sources derived from the others.
        after_round: called after each round of the sources that never block, in their thread; must not block either.
    """

    def __init__(
        self,
        timing: ProbeTiming | None = None,
        *,
        dcgm_exporter: Endpoint | None = None,
        jobs: JobSettings | None = None,
        environment: Mapping[str, str] | None = None,
        training: TrainingServer | None = None,
        training_series_of_user: int = DEFAULT_SERIES_OF_USER,
        kineto: KinetoBackend | None = None,
        nccl_ras: tuple[str, int] | None = None,
        kubernetes: NodeReporter | None = None,
        thresholds: HealthThresholds | None = None,
        health_store: HealthStore | None = None,
    ) -> None:
        timing = timing or ProbeTiming()
        self._probes = GpuProbes(timing, environment=environment)
        self._kernel_log = KernelLog()
        gpus = GpuSource(self._probes, quiet_seconds=timing.deadline + _NEW_PROCESS_SECONDS)
        self._gpus = ScheduledSource(GPUS, gpus, interval=timing.interval, patience=_GPU_PATIENCE_SECONDS)
        kernel_errors = KernelLogSource(self._kernel_log, self._probes)
        kernel_log = ScheduledSource("kernel_log", kernel_errors, interval=timing.interval)
        together = [self._gpus, kernel_log]
        host_interval = max(timing.interval, _HOST_SECONDS)
        self._sources = [
            self._gpus,
            kernel_log,
            ScheduledSource("host", HostCollector(gpu_users=self._gpu_users), interval=host_interval),
            ScheduledSource("infiniband", InfinibandCollector(), interval=host_interval),
        ]
        of_gpus: list[ScheduledSource | RenumberedSource] = [self._gpus]
        self._renumbered: dict[ScheduledSource, RenumberedSource] = {}
        if dcgm_exporter is not None:
            from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector  # memory that few need

            exporter = DcgmExporterCollector(dcgm_exporter)
            page = ScheduledSource("dcgm_exporter", exporter, interval=_DCGM_SECONDS)
            self._sources.append(page)
            self._renumbered[page] = RenumberedSource(page.state, self._gpus.state)
            of_gpus.append(self._renumbered[page])
        if training is not None:
            of_training = TrainingSource(training, series_of_user=training_series_of_user)
            ranks = ScheduledSource("training", of_training, interval=timing.interval)
            hangs = ScheduledSource("hangs", HangSource(training.ranks), interval=_HANG_SECONDS)
            self._sources += [ranks, hangs]
            together += [ranks, hangs]
        if nccl_ras is not None:
            ras = NcclRasSource(nccl_ras, training.ranks if training is not None else tuple)
            self._sources.append(ScheduledSource("nccl_ras", ras, interval=_RAS_SECONDS))
        if kineto is not None:
            self._sources.append(ScheduledSource("kineto", KinetoSource(kineto), interval=host_interval))
        self._jobs, self._of_jobs = job_sources(lambda: [source.state() for source in of_gpus], jobs or JobSettings())
        self._sources += self._of_jobs
        self._memory = HealthMemory(health_store, kernel_errors) if health_store is not None else None
        self.health = HealthSource(self._read_states, GPUS, thresholds=thresholds, memory=self._memory)
        health_interval = max(timing.interval, _HEALTH_SECONDS)
        self.fleet = FleetSource(self._read_states, self.assignments)
        classes = ScheduledSource("fleet_class", self.fleet, interval=timing.interval)
        self._derived = [ScheduledSource("health", self.health, interval=health_interval), classes]
        if kubernetes is not None:
            kubernetes.report = self.health.report
            to_kubernetes = ScheduledSource("kubernetes_node", kubernetes, interval=health_interval)
            self._derived.append(to_kubernetes)
            together.append(to_kubernetes)
        together.append(classes)
        apart = [source for source in (*self._sources, *self._derived) if source not in together]
        self.after_round: Callable[[], object] = lambda: None
        shared = SharedThread(together, after_round=lambda: self.after_round())
        self._threads: list[SharedThread | ScheduledSource] = [shared, *apart]
        self._open = ExitStack()

    def __enter__(self) -> AgentSources:
        with ExitStack() as opening:
            opening.enter_context(self._kernel_log)
            if self._memory is not None:
                opening.enter_context(self._memory)
                self.health.resume()
                opening.callback(self.health.leave)  # once nothing is read any more
            opening.enter_context(self._probes)
            for thread in self._threads:
                opening.enter_context(thread)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.end()
        self._open.close()

    def states(self) -> tuple[SourceState, ...]:
        return self._read_states() + tuple(source.state() for source in self._derived)

    def _read_states(self) -> tuple[SourceState, ...]:
        """States of the sources that read, without those derived from them."""
        return tuple(self._renumbered.get(source, source).state() for source in self._sources)

    def assignments(self, *, max_age_seconds: float = inf) -> tuple[Assignment, ...]:
        """The jobs and their devices, as last collected; none where that was so long ago."""
        return () if self._of_jobs[0].state().is_older_than(max_age_seconds) else self._jobs.assignments()

    def pids_of_job(self, name: str) -> frozenset[int]:
        """Processes that hold a GPU for a job of this name; see `Job.is_called`."""
        return frozenset(pid for one in self.assignments() if one.job.is_called(name) for pid in one.pids)

    def _gpu_users(self) -> GpuUsers:
        return gpu_users_of(self._gpus.state().collection)


_LOOK_SECONDS = 0.2


def wait_for_sources(sources: AgentSources, stop: threading.Event, *, seconds: float | None = None) -> bool:
    """Wait until each source of the agent has answered or was given up; False if stopped, or after so many seconds.

    The GPUs' source has answered once each GPU has, see `FirstGpuRound`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while any(state.reason is MissingReason.NOT_YET for state in sources.states()):
        if stop.wait(_LOOK_SECONDS) or (end is not None and time.monotonic() > end):
            return False
    return True


def _silent_gpus(states: Sequence[SourceState]) -> list[str]:
    """Agent's sources: one line on each GPU whose driver does not answer."""
    return [
        f"GPU {dict(absent.labels)['gpu']} ({absent.reason}: {absent.detail})"
        for state in states
        if state.name == GPUS
        for absent in state.collection.missing
        if not absent.metric and absent.labels
    ]


def summary_of_sources(states: Sequence[SourceState]) -> str:
    """One line of the agent: number of GPUs read, and the sources and GPUs that give nothing, with the reason."""
    gpus = {
        dict(reading.labels).get("uuid", "")
        for state in states
        for reading in state.collection.readings
        if reading.metric == GPU + "up" and reading.value
    }
    down = [f"{state.name} ({state.reason}: {state.detail})" for state in states if state.reason]
    down += _silent_gpus(states)
    up = [state.name for state in states if not state.reason and state.name != GPUS]
    read = " and ".join(filter(None, [counted(len(gpus), "GPU"), ", ".join(up)]))
    return f"reads {read}" + (f"; missing: {', '.join(down)}" if down else "")


_ANSWER_SECONDS = 40.0
"""Longer than a driver's library may take to load."""
_SAMPLES_SECONDS = 2.5
"""For values that need two samples."""

_LATE = (MissingReason.NOT_YET, MissingReason.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Report of `stepscope agent check` on one source.

    Attributes:
        reason, detail: why it gives nothing; None and empty where it does.
        seconds: how long that took; None before the first.
        findings: lines on what it noticed.
    """

    name: str
    reason: MissingReason | None
    detail: str
    num_readings: int
    seconds: float | None
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentCheck:
    """Report of `stepscope agent check`: all sources, and what is had of each GPU.

    Attributes:
        warnings: sources and GPUs that have not answered before the check was over.
    """

    sources: tuple[SourceReport, ...]
    capabilities: tuple[GpuCapabilities, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = "stepscope.agent-check/1"


def check_agent_sources(sources: AgentSources, *, samples_seconds: float = _SAMPLES_SECONDS) -> AgentCheck:
    """Read all sources of the agent for some seconds, and report what they give.

    Args:
        sources: opened and closed here.
        samples_seconds: time to read after all have answered.
    """
    with sources:
        never = threading.Event()
        wait_for_sources(sources, never, seconds=_ANSWER_SECONDS)
        never.wait(samples_seconds)
        states = sources.states()
    silent = _silent_gpus(states)
    reports = tuple(
        SourceReport(
            state.name,
            state.reason,
            state.detail or (f"without {', '.join(silent)}" if state.name == GPUS and silent else ""),
            len(state.collection.readings),
            state.seconds,
            tuple(finding.message for finding in state.collection.findings),
        )
        for state in states
    )
    late = [Notice("source_late", f"{one.name}: {one.detail}") for one in reports if one.reason in _LATE]
    late += [Notice("gpu_silent", line) for line in silent]
    capabilities = gpu_capabilities_of(Collection.joined(state.collection for state in states))
    return AgentCheck(reports, tuple(capabilities), tuple(late))


@dataclass(frozen=True, slots=True)
class MetricGap:
    """Metrics that the agent cannot read of a GPU, for one reason.

    Attributes:
        metrics: their names, sorted; empty where the whole GPU is missing.
    """

    reason: MissingReason
    detail: str
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuCapabilities:
    """What the agent can read of one GPU or MIG instance.

    Attributes:
        labels: which it is; empty for what concerns the whole machine.
        collected: names of metrics with a value, sorted.
        gaps: what has none.
    """

    labels: Labels
    collected: tuple[str, ...]
    gaps: tuple[MetricGap, ...]


def gpu_capabilities_of(collection: Collection) -> list[GpuCapabilities]:
    """Agent: what all its sources together can read, GPU by GPU, in the order of their labels.

    Args:
        collection: of at least two rounds of collecting, as some values need two samples. A metric that has values
            with some further labels (a link, a process) is collected.
    """
    collected: dict[Labels, set[str]] = {}
    missing: dict[Labels, list[Missing]] = {}
    for reading in collection.readings:
        collected.setdefault(_device_labels(reading.labels), set()).add(reading.metric)
    for absent in collection.missing:
        missing.setdefault(_device_labels(absent.labels), []).append(absent)
    return [
        GpuCapabilities(
            labels,
            tuple(sorted(collected.get(labels, ()))),
            _gaps(absent for absent in missing.get(labels, ()) if absent.metric not in collected.get(labels, ())),
        )
        for labels in sorted(collected.keys() | missing.keys(), key=_order)
    ]


def _device_labels(labels: Labels) -> Labels:
    device = device_in(dict(labels))
    return device.labels() if device.uuid or device.index else ()


def _order(labels: Labels) -> tuple[int, Labels]:
    index = dict(labels).get("gpu", "")
    return int(index) if index.isdecimal() else -1, labels


def _gaps(missing: Iterable[Missing]) -> tuple[MetricGap, ...]:
    groups: dict[tuple[MissingReason, str], set[str]] = {}
    for absent in missing:
        groups.setdefault((absent.reason, absent.detail), set()).add(absent.metric)
    return tuple(MetricGap(reason, detail, tuple(sorted(names - {""}))) for (reason, detail), names in groups.items())
