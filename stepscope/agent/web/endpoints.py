"""HTTP routes of the agent: metrics, landing page, health and readiness, the node's document, `/sd`, and captures.

The node's document is made of what the sources reported last; `/sd` is Prometheus' service discovery over HTTP.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from stepscope import __version__
from stepscope.agent.captures.capture import CaptureRefusedError
from stepscope.agent.captures.coordinator import AgentCaptureCoordinator
from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.metrics_page import SAMPLED, MetricsPage
from stepscope.agent.polling import STALE_SECONDS, SourceState
from stepscope.agent.web.routes import Reply, Request, Route, json_reply, text_reply
from stepscope.core.documents.jobs import Assignment, FleetClass, FleetReport
from stepscope.core.documents.node import (
    NODE_PATH,
    Node,
    NodeDevice,
    NodeFinding,
    NodeSource,
    NodeView,
    TrainingRank,
    node_document,
    node_view,
    run_verdicts,
)
from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.hardware.health import Health, HealthReport
from stepscope.core.metrics.readings import GPU, GPU_LABELS, Collection, Labels, MissingReason, Reading
from stepscope.core.protocol.captures import CAPTURES_PATH, read_order, report_document
from stepscope.core.protocol.fields import FieldError

_INFO = GPU + "info"
_UP = GPU + "up"
_MAX_ENDED_EVENTS = 32
"""Newest ended events in the node's document, which many commands request; the health document has all."""


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
    """The node for the agent's HTTP API: its GPUs, jobs, health and training.

    Args:
        states: the sources; of what two of them report, the first counts. Values of one that is silent for a minute are
            left out.
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
        (*health.open_events, *health.ended_events[:_MAX_ENDED_EVENTS]) if health else (),
        fleet.jobs if fleet else (),
        tuple(ranks),
        run_verdicts(ranks),
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

    def finished(self, now_ns: int) -> NodeDevice:
        is_up, reason = self.up or (None, "")
        if reason == MissingReason.NOT_ON_PAGE:
            is_up = None  # it may do its work
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
            if missing.metric:
                into.missing.setdefault(missing.metric.removeprefix(GPU), missing.reason.value)
            elif into.up is None:
                into.up = False, missing.reason.value


def _order(device: Device) -> tuple[int, str, str]:
    number = int(device.index) if device.index.isascii() and device.index.isdecimal() else 1 << 30
    return number, device.instance.zfill(4), device.compute_instance.zfill(4)


def _source(state: SourceState) -> NodeSource:
    reason = state.reason.value if state.reason else ""
    return NodeSource(state.name, not reason, reason, state.detail, state.age_seconds, len(state.collection.readings))


_HOST = re.compile(r"[A-Za-z0-9._:\[\]%-]{1,255}")
DISCOVERY_PATH = "/sd"
_VIEWS = frozenset(NodeView)


def api_routes(
    node: Callable[[str], Node],
    *,
    scheme: str,
    host: str = "",
    targets: Callable[[], list[dict[str, Any]] | None] | None = None,
) -> tuple[Route, ...]:
    """HTTP routes of the node's document and of the service discovery.

    Args:
        node: this machine now, by its name; must not block.
        scheme: http or https, under which the agent is reached.
        targets: groups of the configured target sources, or None before the first are known; must not block. None: no
            sources are configured.
    """
    host = node_name(host)

    def whole_node(request: Request) -> Reply:
        view = parse_qs(request.query).get("view", [""])[-1]
        found = node(host)
        document = node_view(found, NodeView(view)) if view in _VIEWS else node_document(found)
        return json_reply(HTTPStatus.OK, document)

    def discovery(request: Request) -> Reply:
        """The configured targets, else this agent under the address of the request, which is known to reach it."""
        if targets is not None:
            known = targets()
            if known is None:  # Prometheus keeps those that it has
                return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, "the targets are not known yet", Retry_After="10")
            return json_reply(HTTPStatus.OK, known)
        asked = request.headers.get("Host") or ""
        labels = {"__scheme__": scheme, "__meta_stepscope_host": host, "__meta_stepscope_version": __version__}
        itself = [{"targets": [asked], "labels": labels}] if _HOST.fullmatch(asked) else []
        return json_reply(HTTPStatus.OK, itself)

    return Route("GET", NODE_PATH, whole_node), Route("GET", DISCOVERY_PATH, discovery)


def page_routes(page: MetricsPage, states: Callable[[], Sequence[SourceState]]) -> tuple[Route, ...]:
    """HTTP routes of the agent's pages; `states` gives the current state of the sources and must not block."""

    def metrics(request: Request) -> Reply:
        accepts = request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", "")
        body, headers = page.encoded(accept=accepts[0], accept_encoding=accepts[1])
        return Reply(HTTPStatus.OK, body, headers)

    def landing(_: Request) -> Reply:
        body = landing_page(states()).encode(errors="replace")
        return Reply(HTTPStatus.OK, body, {"Content-Type": "text/html; charset=utf-8"})

    def readiness(_: Request) -> Reply:
        """Ready once each source has answered or has been given up."""
        waiting = [state.name for state in states() if state.reason is MissingReason.NOT_YET]
        if waiting:
            return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, f"waiting for {', '.join(waiting)}")
        return text_reply(HTTPStatus.OK, "ready")

    return (
        Route("GET", "/", landing),
        Route("GET", "/metrics", metrics),
        Route("GET", "/healthz", _health, is_open=True),  # probes have no password: kubelet, systemd
        Route("GET", "/readyz", readiness, is_open=True),
    )


def _health(_: Request) -> Reply:
    """The agent answers, so it is alive: a hanging driver is not a reason to restart it."""
    return text_reply(HTTPStatus.OK, "ok")


_STYLE = "body{font:15px system-ui;margin:2em}td,th{text-align:left;padding:.2em 1.5em .2em 0;vertical-align:top}"


def landing_page(states: Sequence[SourceState]) -> str:
    """HTML landing page of the agent with the state of the sources."""
    from html import escape

    rows = "".join(_row(state) for state in states)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>stepscope agent</title><style>{_STYLE}</style>"
        f"<h1>stepscope agent {escape(__version__)}</h1>"
        '<p><a href="metrics">Metrics</a> · <a href="api/v1/node">Node</a> · '
        '<a href="healthz">Health</a> · <a href="readyz">Readiness</a></p>'
        "<table><tr><th>source<th>state<th>values<th>missing<th>age<th></tr>"
        f"{rows}</table></html>\n"
    )


def _row(state: SourceState) -> str:
    from html import escape

    age = "" if state.age_seconds is None else f"{state.age_seconds:.1f} s"
    cells = (
        state.name,
        state.reason.value if state.reason else "up",
        str(len(state.collection.readings)),
        str(len(state.collection.missing)),
        age,
        state.detail,
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


_MAX_BYTES = 64 << 10
_SCHEMA_OF_ALL = "stepscope.node-captures/1"
_SCHEMA_OF_ERRORS = "stepscope.error/1"
_ASK_AGAIN_SECONDS = "60"


def capture_routes(coordinator: AgentCaptureCoordinator) -> tuple[Route, ...]:
    """Agent's web server: HTTP routes to list, start, show and cancel captures; all need its token."""

    def create(request: Request) -> Reply:
        kind = str(request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which no form of a foreign page can send
            raise CaptureRefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an order needs Content-Type: application/json"
            )
        try:
            document = json.loads(request.body)
            if isinstance(document, dict):
                document.setdefault("id", f"c-{os.urandom(6).hex()}")
            order = read_order(document)
        except FieldError as error:
            raise CaptureRefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (ValueError, RecursionError) as error:
            raise CaptureRefusedError(HTTPStatus.BAD_REQUEST, f"not JSON: {type(error).__name__}") from None
        report = coordinator.request(order, client=request.client)
        return json_reply(HTTPStatus.ACCEPTED, report_document(report))

    def show_all(_: Request) -> Reply:
        documents = [report_document(report) for report in coordinator.reports()]
        return json_reply(HTTPStatus.OK, {"schema": _SCHEMA_OF_ALL, "captures": documents})

    def show(request: Request) -> Reply:
        return json_reply(HTTPStatus.OK, report_document(coordinator.report(request.parts["id"])))

    def cancel(request: Request) -> Reply:
        report = coordinator.cancel(request.parts["id"], client=request.client)
        return json_reply(HTTPStatus.ACCEPTED, report_document(report))

    one = f"{CAPTURES_PATH}/{{id}}"
    return (
        Route("POST", CAPTURES_PATH, _with_refusals(create), _MAX_BYTES, needs_token=True),
        Route("GET", CAPTURES_PATH, _with_refusals(show_all), needs_token=True),
        Route("GET", one, _with_refusals(show), needs_token=True),
        Route("DELETE", one, _with_refusals(cancel), needs_token=True),
    )


def _with_refusals(answer: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    """The same, with a refused request as a reply."""

    def call(request: Request) -> Reply:
        try:
            return answer(request)
        except CaptureRefusedError as refused:
            document = {"schema": _SCHEMA_OF_ERRORS, "error": str(refused)}
            reply = json_reply(refused.status, document)
            if refused.status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
                return reply
            return Reply(reply.status, reply.body, {**reply.headers, "Retry-After": _ASK_AGAIN_SECONDS})

    return call
