"""HTTP API of the node: `/api/v1/node` with its GPUs, jobs, health and training, `/sd` for Prometheus.

`/sd` is Prometheus' service discovery over HTTP. The node's document is made of what the sources reported last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from stepscope import __version__
from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.metrics_page import SAMPLED
from stepscope.agent.polling import STALE_SECONDS, SourceState
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.core.documents.jobs import Assignment, FleetClass, FleetReport
from stepscope.core.documents.node import (
    NODE_PATH,
    Node,
    NodeDevice,
    NodeFinding,
    NodeSource,
    TrainingRank,
    node_document,
)
from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.hardware.health import Health, HealthReport
from stepscope.core.metrics.readings import GPU, GPU_LABELS, Collection, Labels, Missing, Reading

_INFO = GPU + "info"
_UP = GPU + "up"


def node_of(
    states: Sequence[SourceState],
    now_ns: int,
    *,
    host: str,
    assignments: Iterable[Assignment] = (),
    health: HealthReport | None = None,
    fleet: FleetReport | None = None,
    ranks: Sequence[TrainingRank] = (),
) -> Node:
    """The node's document.

    Args:
        states: the sources; of what two of them report, the first counts. Values of one that is silent for a minute are
            left out.
        now_ns: ns since the epoch.
        host: name of the machine.
        assignments: the jobs and their devices.
        health: of the GPUs and the machine.
        fleet: what its GPUs and jobs spent the last minute on.
        ranks: training processes that are connected to the agent.
    """
    fresh = [one for one in states if not one.is_older_than(STALE_SECONDS)]
    found = _devices([state.collection for state in fresh], health)
    for one in assignments:
        if one.device in found:
            found[one.device].jobs += (one,)
    for device, spent in fleet.devices.items() if fleet else ():
        if device in found:
            found[device].spent = spent
    return Node(
        host,
        __version__,
        now_ns,
        tuple(_source(state) for state in states),
        tuple(found[device].finished(now_ns) for device in sorted(found, key=_order)),
        tuple(
            NodeFinding(state.name, finding.code, finding.message, dict(finding.labels))
            for state in fresh
            for finding in state.collection.findings
        ),
        health.machine if health else None,
        (*health.open_events, *health.ended_events) if health else (),
        fleet.jobs if fleet else (),
        tuple(ranks),
    )


@dataclass(slots=True)
class _DeviceBuilder:
    device: Device
    info: dict[str, str] = field(default_factory=dict)
    up: tuple[bool, str] | None = None
    newest_ns: int = 0
    values: dict[str, float] = field(default_factory=dict)
    by_label: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    jobs: tuple[Assignment, ...] = ()
    health: Health | None = None
    spent: FleetClass | None = None

    def add(self, reading: Reading) -> None:
        """Add a value, unless an earlier source reported it."""
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

    def add_missing(self, missing: Missing) -> None:
        """Add why a value, or the whole device, is missing."""
        if missing.metric:
            self.missing.setdefault(missing.metric.removeprefix(GPU), missing.reason.value)
        elif self.up is None:
            self.up = False, missing.reason.value

    def finished(self, now_ns: int) -> NodeDevice:
        is_up, reason = self.up or (None, "")
        known = self.values.keys() | self.by_label.keys()
        return NodeDevice(
            self.device,
            self.info,
            is_up,
            reason,
            max(0.0, (now_ns - self.newest_ns) / 1e9) if self.newest_ns else None,
            self.values,
            self.by_label,
            {metric: reason for metric, reason in self.missing.items() if metric not in known},
            self.jobs,
            self.health,
            self.spent,
        )


def _devices(collections: Sequence[Collection], health: HealthReport | None) -> dict[Device, _DeviceBuilder]:
    join, found = DeviceJoin(), dict[Device, _DeviceBuilder]()
    for collection in collections:
        _add_source(found, collection, join.source(collection))
    for device, made in found.items():  # the driver is asked of instances through their GPU
        whole = join.whole(device)
        if made.up is None and whole is not None and whole in found:
            made.up = found[whole].up
    first = join.source(Collection())
    for device, one in health.gpus.items() if health else ():
        if (known := found.get(first(device))) is not None:
            known.health = one
    return found


def _add_source(found: dict[Device, _DeviceBuilder], collection: Collection, first: Callable[[Device], Device]) -> None:
    by_labels: dict[Labels, _DeviceBuilder | None] = {}

    def builder(labels: Labels) -> _DeviceBuilder | None:
        if labels not in by_labels:
            named = device_of(labels)
            device = None if named is None else first(named)
            by_labels[labels] = None if device is None else found.setdefault(device, _DeviceBuilder(device))
        return by_labels[labels]

    for reading in collection.readings:
        if reading.metric.startswith(GPU) and (into := builder(reading.labels)) is not None:
            into.add(reading)
    for missing in collection.missing:
        if (into := builder(missing.labels)) is not None:
            into.add_missing(missing)


def _order(device: Device) -> tuple[int, str, str]:
    number = int(device.index) if device.index.isascii() and device.index.isdecimal() else 1 << 30
    return number, device.instance.zfill(4), device.compute_instance.zfill(4)


def _source(state: SourceState) -> NodeSource:
    reason = state.reason.value if state.reason else ""
    return NodeSource(state.name, not reason, reason, state.detail, state.age_seconds, len(state.collection.readings))


_HOST = re.compile(r"[A-Za-z0-9._:\[\]%-]{1,255}")
DISCOVERY_PATH = "/sd"


def api_routes(node: Callable[[str], Node], *, scheme: str, host: str = "") -> tuple[Route, ...]:
    """Routes of the node's document and of the service discovery.

    Args:
        node: this machine now, by its name; must not block.
        scheme: http or https, under which the agent is reached.
        host: this machine's name in the configuration.
    """
    host = node_name(host)

    def whole_node(_: Request) -> Reply:
        return json_reply(HTTPStatus.OK, node_document(node(host)))

    def discovery(request: Request) -> Reply:
        """This agent under the address of the request, which is known to reach it."""
        asked = request.headers.get("Host") or ""
        labels = {"__scheme__": scheme, "__meta_stepscope_host": host, "__meta_stepscope_version": __version__}
        targets = [{"targets": [asked], "labels": labels}] if _HOST.fullmatch(asked) else []
        return json_reply(HTTPStatus.OK, targets)

    return Route("GET", NODE_PATH, whole_node), Route("GET", DISCOVERY_PATH, discovery)
