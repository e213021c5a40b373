"""HTTP API of the node: `/api/v1/node` with its GPUs, jobs, health and training, `/sd` for Prometheus.

`/sd` is Prometheus' service discovery over HTTP. The node's document is made of what the sources reported last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus

from stepscope import __version__
from stepscope.agent.exporter.metrics_page import SAMPLED, STALE_SECONDS
from stepscope.agent.node_name import node_name
from stepscope.agent.polling import SourceState
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.core.documents.jobs import Assignment, FleetClass, FleetReport, assignments_of
from stepscope.core.documents.node import (
    NODE_PATH,
    Node,
    NodeClass,
    NodeDevice,
    NodeEvent,
    NodeEvidence,
    NodeFinding,
    NodeHealth,
    NodeJob,
    NodeJobClass,
    NodeSource,
    TrainingRank,
)
from stepscope.core.hardware.devices import DevicePlace, GpuPlaces, device_of
from stepscope.core.hardware.health import Health, HealthEvent, HealthReport
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import GPU_LABELS, Collection, Labels, Missing, Reading

_INFO = GPU + "info"
_UP = GPU + "up"


def node_of(
    states: Sequence[SourceState],
    now_ns: int,
    *,
    host: str,
    health: HealthReport | None = None,
    fleet: FleetReport | None = None,
    ranks: Sequence[TrainingRank] = (),
) -> Node:
    """The document.

    Args:
        states: the sources; of what two of them tell, the first counts. Values of one that is silent for a minute are
            left out.
        now_ns: ns since the epoch.
        host: name of the machine.
        health: of it.
        fleet: what its GPUs and jobs spent the last minute on.
        ranks: training processes that speak to the agent.
    """
    devices: dict[DevicePlace, _Device] = {}
    fresh = [one for one in states if not one.is_older_than(STALE_SECONDS)]
    for state in fresh:
        _gather(devices, state.collection)
    _answer_as_their_gpu(devices)
    for one in health.gpus if health else ():
        whose = dict(one.labels)
        if (device := devices.get((whose.get("uuid") or whose.get("gpu", ""), ""))) is not None:
            device.health = _health(one)
    by_labels = _by_labels(devices)
    for labels, told in fleet.devices.items() if fleet else ():
        if (device := by_labels.get(labels)) is not None:
            device.spent = spent_of(told)
    return Node(
        host,
        __version__,
        now_ns,
        tuple(_source(state) for state in states),
        tuple(device.finished(now_ns) for device in sorted(devices.values(), key=_Device.order)),
        tuple(
            NodeFinding(state.name, finding.code, finding.message, dict(finding.labels))
            for state in fresh
            for finding in state.collection.findings
        ),
        _health(health.machine) if health else None,
        tuple(_event(event) for event in (*health.open_events, *health.ended_events)) if health else (),
        job_classes_of(fleet) if fleet else (),
        tuple(ranks),
    )


@dataclass(slots=True)
class _Device:
    labels: dict[str, str]
    info: dict[str, str] = field(default_factory=dict)
    up: tuple[bool, str] | None = None
    newest_ns: int = 0
    values: dict[str, float] = field(default_factory=dict)
    by_label: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    jobs: list[NodeJob] = field(default_factory=list)
    health: NodeHealth | None = None
    spent: NodeClass | None = None

    def order(self) -> tuple[int, str, str]:
        """By GPU, then by instance."""
        index = self.labels.get("gpu", "")
        number = int(index) if index.isascii() and index.isdecimal() else 1 << 30
        return number, self.labels.get("gpu_instance", "").zfill(4), self.labels.get("compute_instance", "").zfill(4)

    def add(self, reading: Reading) -> None:
        """A value of it."""
        metric, further = reading.metric, [pair for pair in reading.labels if pair[0] not in GPU_LABELS]
        if metric == _INFO:
            self.info = self.info or dict(further)
        elif metric == _UP:
            self.up = self.up or (reading.value == 1.0, dict(further).get("reason", ""))
        elif not further:
            self.values.setdefault(metric.removeprefix(GPU), reading.value)
        elif len(further) == 1:
            self.by_label.setdefault(metric.removeprefix(GPU), {}).setdefault(further[0][1], reading.value)
        if metric in SAMPLED:
            self.newest_ns = max(self.newest_ns, reading.time_ns)

    def lacks(self, missing: Missing) -> None:
        """A value that is not there."""
        if missing.metric:
            self.missing.setdefault(missing.metric.removeprefix(GPU), missing.reason.value)
        elif self.up is None:
            self.up = False, missing.reason.value

    def finished(self, now_ns: int) -> NodeDevice:
        """As the document has it."""
        is_up, reason = self.up or (None, "")
        known = self.values.keys() | self.by_label.keys()
        return NodeDevice(
            self.labels,
            self.info,
            is_up,
            reason,
            max(0.0, (now_ns - self.newest_ns) / 1e9) if self.newest_ns else None,
            self.values,
            self.by_label,
            {metric: reason for metric, reason in self.missing.items() if metric not in known},
            tuple(self.jobs),
            self.health,
            self.spent,
        )


def _gather(devices: dict[DevicePlace, _Device], collection: Collection) -> None:
    places = GpuPlaces(reading for reading in collection.readings if reading.metric == _UP)
    by_labels, found = _by_labels(devices), dict[Labels, _Device | None]()

    def device(labels: Labels) -> _Device | None:
        if labels not in found:
            own, place = device_of(labels), places.place(dict(labels))
            of = by_labels.get(own)  # also of sources that know nothing of GPUs but what others told
            found[labels] = of or (devices.setdefault(place, _Device(dict(own))) if place else None)
        return found[labels]

    for reading in collection.readings:
        if reading.metric.startswith(GPU) and (of := device(reading.labels)) is not None:
            of.add(reading)
    for missing in collection.missing:
        if (of := device(missing.labels)) is not None:
            of.lacks(missing)
    _add_jobs(devices, assignments_of(collection))


def _answer_as_their_gpu(devices: Mapping[DevicePlace, _Device]) -> None:
    """The driver is asked of instances through their GPU."""
    for (gpu, instance), device in devices.items():
        whole = devices.get((gpu, ""))
        if instance and device.up is None and whole is not None:
            device.up = whole.up


def _add_jobs(devices: Mapping[DevicePlace, _Device], assignments: Sequence[Assignment]) -> None:
    by_labels = _by_labels(devices) if assignments else {}
    for one in assignments:
        job, device = one.job, by_labels.get(one.device)
        if device is not None:
            facts = (job.name, job.user, job.account, job.team, job.project, job.queue, job.workload)
            device.jobs.append(NodeJob(job.kind.value, job.id, *facts, one.share.value, one.pids))


def _by_labels(devices: Mapping[DevicePlace, _Device]) -> dict[Labels, _Device]:
    return {tuple(device.labels.items()): device for device in devices.values()}


def _source(state: SourceState) -> NodeSource:
    reason = state.reason.value if state.reason else ""
    return NodeSource(state.name, not reason, reason, state.detail, state.age_seconds, len(state.collection.readings))


def _health(health: Health) -> NodeHealth:
    return NodeHealth(health.state.value, health.reason, health.codes, health.unchecked)


def _event(event: HealthEvent) -> NodeEvent:
    return NodeEvent(
        event.code,
        dict(event.labels),
        event.severity.value,
        event.action.value,
        event.action.line,
        event.message,
        event.value,
        event.threshold,
        event.unit,
        event.first_ns,
        event.last_ns,
        event.ended_ns,
        event.count,
        event.since_start,
    )


def spent_of(told: FleetClass) -> NodeClass:
    """One class; shares that are not known are left out."""
    return NodeClass(
        told.cause.value,
        tuple(reason.value for reason in told.reasons),
        told.confidence,
        told.summary,
        told.counters.value,
        {name: round(share, 4) for name, share in told.spent().items()},
        tuple(NodeEvidence(one.metric, one.value, one.unit, one.threshold, tuple(one.ranks)) for one in told.evidence),
        told.begin_ns,
        told.end_ns,
    )


def job_classes_of(report: FleetReport) -> tuple[NodeJobClass, ...]:
    """Those of jobs."""
    return tuple(
        NodeJobClass(
            one.job.kind.value,
            one.job.id,
            tuple(dict(labels).get("uuid", "") for labels in one.devices),
            spent_of(one.told),
        )
        for one in report.jobs
    )


_HOST = re.compile(r"[A-Za-z0-9._:\[\]%-]{1,255}")
DISCOVERY_PATH = "/sd"


def api_routes(node: Callable[[str], Node], *, scheme: str, host: str = "") -> tuple[Route, ...]:
    """Their routes.

    Args:
        node: this machine now, by its name; must wait for nothing.
        scheme: http or https, as the agent is asked.
        host: this machine's name as a setting has it.
    """
    host = node_name(host)

    def all_of_it(_: Request) -> Reply:
        return json_reply(HTTPStatus.OK, asdict(node(host)))

    def discovery(request: Request) -> Reply:
        """This agent, under the name by which it was asked: that one is known to reach it."""
        asked = request.headers.get("Host") or ""
        labels = {"__scheme__": scheme, "__meta_stepscope_host": host, "__meta_stepscope_version": __version__}
        targets = [{"targets": [asked], "labels": labels}] if _HOST.fullmatch(asked) else []
        return json_reply(HTTPStatus.OK, targets)

    return Route("GET", NODE_PATH, all_of_it), Route("GET", DISCOVERY_PATH, discovery)
