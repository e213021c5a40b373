"""Documents and status of many nodes, requested in parallel so that a silent one delays no other; selection of GPUs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from stepscope.core.documents import node as node_documents
from stepscope.core.errors import StepscopeError, UnreachableError
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.hardware.health import NOTES, HealthState, Severity
from stepscope.core.metrics.readings import MissingReason
from stepscope.core.vocabulary import Notice
from stepscope.workflow.nodes.agent_client import AgentClient

_MAX_THREADS = 64


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Last answer of one node's agent.

    Attributes:
        node: its last document; None before the first.
        error: why the agent did not answer the last request; empty if it did.
        at: when the document came, monotonic seconds; None without one.
    """

    agent: str
    node: node_documents.Node | None = None
    error: str = ""
    at: float | None = None


def silent_agents(answers: Iterable[NodeAnswer]) -> tuple[Notice, ...]:
    """Agents of nodes that did not answer, as warnings of a document."""
    return tuple(Notice("agent_silent", f"{answer.agent}: {answer.error}") for answer in answers if answer.error)


def answers_of(clients: Sequence[AgentClient]) -> tuple[NodeAnswer, ...]:
    """Ask the agents of all nodes once, in parallel."""
    with NodeWatch(clients) as watch:
        watch.ask()
        watch.wait()
        return watch.answers()


def check_answers(answers: Sequence[NodeAnswer]) -> None:
    """Check that an agent of the nodes answered.

    Raises:
        UnreachableError: none did.
    """
    if all(answer.error for answer in answers):
        raise UnreachableError(answers[0].error, where=answers[0].agent)


def ask_node(client: AgentClient) -> node_documents.Node:
    """Ask one node's agent for its document.

    Raises:
        UnreachableError: no answer, or not such a document.
    """
    reply = client.ask("GET", node_documents.NODE_PATH)
    if reply.error:
        raise UnreachableError(reply.error, where=str(client))
    schema = reply.document.get("schema")
    if schema != node_documents.NODE_SCHEMA:
        raise UnreachableError(
            f"answers {schema!r}, this version reads {node_documents.NODE_SCHEMA!r}", where=str(client)
        )
    try:
        return read_node(reply.document)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise UnreachableError(
            f"its answer is not a {node_documents.NODE_SCHEMA} document ({error})", where=str(client)
        ) from None


def read_node(document: Mapping[str, Any]) -> node_documents.Node:
    """Answers of nodes: decode a node's document, which its agent encoded with `node_document`.

    Raises:
        msgspec.ValidationError, KeyError, TypeError, AttributeError: it is not such a document.
    """
    devices = [device_in(one["labels"]) for one in document["devices"]]
    by_uuid = {one.uuid: one for one in devices}
    shaped = {
        **document,
        "devices": [
            {
                **raw,
                "device": asdict(device),
                "jobs": [{**job, "job": job, "device": asdict(device)} for job in raw["jobs"]],
                "spent": _class_shape(raw["spent"]),
            }
            for device, raw in zip(devices, document["devices"], strict=True)
        ],
        "events": [{**raw, "labels": sorted(raw["labels"].items())} for raw in document["events"]],
        "job_classes": [
            {
                "job": {"kind": raw["job_kind"], "id": raw["job_id"]},
                "devices": [asdict(by_uuid.get(uuid) or Device(uuid)) for uuid in raw["devices"]],
                "fleet_class": _class_shape(raw["told"]),
            }
            for raw in document["job_classes"]
        ],
        "ranks": [
            {
                **raw,
                "hello": {**raw, "pid": raw["pid"] or 0},
                "heartbeat": {**raw, "index": raw["step"], "ms": raw["step_ms"], "age_ms": raw["step_age_ms"]}
                if raw["state"]
                else None,
            }
            for raw in document["ranks"]
        ],
    }
    return msgspec.convert(shaped, node_documents.Node)


def _class_shape(raw: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if raw is None:
        return None
    shares = {"computing": None, "waiting": None, **raw["shares"]} if raw["shares"] else None
    evidence = [{**one, "ranks": one["devices"]} for one in raw["evidence"]]
    return {**raw, "shares": shares, "evidence": evidence}


class NodeWatch:
    """Asks the agents of nodes repeatedly, never one twice at a time. A context manager; threads are daemons."""

    def __init__(self, clients: Sequence[AgentClient]) -> None:
        self._clients = {str(client): client for client in clients}
        self._answers = {agent: NodeAnswer(agent) for agent in self._clients}
        self._lock = threading.Condition()
        self._asked: set[str] = set()
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        count = min(_MAX_THREADS, len(self._clients))
        self._threads = [threading.Thread(target=self._run, name="stepscope-ask", daemon=True) for _ in range(count)]

    def __enter__(self) -> NodeWatch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)

    def ask(self) -> None:
        """Send a request to each agent whose last one was answered."""
        with self._lock:
            for agent in self._clients.keys() - self._asked:
                self._asked.add(agent)
                self._queue.put(agent)

    def wait(self) -> None:
        """Wait until all have answered or were given up."""
        with self._lock:
            self._lock.wait_for(lambda: not self._asked)

    def answers(self) -> tuple[NodeAnswer, ...]:
        """The last answer of each, in the order of the clients."""
        with self._lock:
            return tuple(self._answers.values())

    def _run(self) -> None:
        while (agent := self._queue.get()) is not None:
            try:
                node, error = ask_node(self._clients[agent]), ""
            except StepscopeError as failed:
                node, error = None, failed.what
            except Exception as failed:  # the thread's edge: one agent's answer stops no requests to others
                node, error = None, f"its answer cannot be read ({type(failed).__name__})"
            with self._lock:
                before = self._answers[agent]
                now = NodeAnswer(agent, node, "", time.monotonic()) if node else replace(before, error=error)
                self._answers[agent] = now
                self._asked.discard(agent)
                self._lock.notify_all()


_SICK = (HealthState.DEGRADED, HealthState.FAILED)


def select_devices(answers: Iterable[NodeAnswer], *, job: str = "", sick: bool = False) -> tuple[NodeAnswer, ...]:
    """Answers of nodes with only the devices of one job, or sick ones; nodes without any are left out.

    Args:
        job: name or id of a job that has the device; empty: all devices.
        sick: only devices that do not answer or are not healthy, and agents that do not answer.
    """
    answers = tuple(answers)
    if not job and not sick:
        return answers
    found = []
    for answer in answers:
        devices = answer.node.devices if answer.node else ()
        wanted = tuple(one for one in devices if (not job or _has(one, job)) and (not sick or _is_sick(one)))
        if wanted or (sick and answer.error and not job):
            found.append(replace(answer, node=replace(answer.node, devices=wanted) if answer.node else None))
    return tuple(found)


def unknown_job(answers: Iterable[NodeAnswer], job: str) -> tuple[Notice, ...]:
    """A warning if no device of the nodes that answer has the job."""
    answers = tuple(answers)
    answering = any(answer.node for answer in answers)
    if not job or not answering or any(answer.node for answer in select_devices(answers, job=job)):
        return ()
    return (
        Notice("job_unknown", f"no GPU of a job called {job!r} is known to these agents; --job takes a name or id"),
    )


def _has(device: node_documents.NodeDevice, text: str) -> bool:
    return any(one.job.is_called(text) for one in device.jobs)


def _is_sick(device: node_documents.NodeDevice) -> bool:
    return device.is_up is False or (device.health is not None and device.health.state in _SICK)


_GPUS = "nvml"
_NORMAL = frozenset({MissingReason.NOT_INSTALLED.value, MissingReason.NOT_SUPPORTED.value, MissingReason.NOT_YET.value})
"""Reasons that are not findings: a machine may have no GPUs or InfiniBand."""
_NORMAL_OF = {
    "kernel_log": MissingReason.NO_PERMISSION.value,  # an agent without that permission
    "kubelet": MissingReason.NO_PERMISSION.value,  # its socket is root's
    "kineto": MissingReason.TAKEN.value,  # dynolog runs; an agent whose setting requires it does not start
}
_COUNTED = (Severity.CRITICAL, Severity.WARNING)
_ORDER = (*_COUNTED, Severity.INFO)
_PROBLEMS = frozenset({"hang"})
"""Findings of the sources that are not health events but problems."""


def status_of(answers: Iterable[NodeAnswer]) -> node_documents.StatusReport:
    """Commands on nodes: join the answers of all nodes to one status, the worst findings first."""
    answers = tuple(answers)
    findings = [finding for answer in answers for finding in _findings(answer)]
    findings.sort(key=lambda finding: _ORDER.index(Severity(finding.severity)))  # stable: by node within
    return node_documents.StatusReport(
        tuple(_status_node(answer) for answer in answers), tuple(findings), silent_agents(answers)
    )


def _status_node(answer: NodeAnswer) -> node_documents.StatusNode:
    node = answer.node
    if node is None or answer.error:
        return node_documents.StatusNode(answer.agent, node.host if node else "", "", 0, is_reachable=False)
    num_gpus = sum(1 for one in node.devices if not one.device.instance)
    return node_documents.StatusNode(answer.agent, node.host, node.version, num_gpus, is_reachable=True)


def _findings(answer: NodeAnswer) -> Iterator[node_documents.StatusFinding]:
    node = answer.node
    if answer.error or node is None:
        host, message = node.host if node else "", answer.error or "it has not answered yet"
        next_step = "is the machine up? systemctl status stepscope-agent"
        yield node_documents.StatusFinding(
            answer.agent, host, "", "", "agent_unreachable", "critical", message, next_step
        )
        return
    names = {one.device.key: one.device.name for one in node.devices}
    reported = set()
    for event in node.events:
        is_counted = event.severity in _COUNTED
        if event.ended_ns is None and (is_counted or event.code in NOTES):
            device = device_in(dict(event.labels))
            if is_counted:
                reported.add(device.key)
            gpu = names.get(device.key, device.index)
            yield node_documents.StatusFinding(
                answer.agent,
                node.host,
                gpu,
                device.uuid,
                event.code,
                event.severity.value,
                event.message,
                event.action.line,
            )
    yield from _sources_down(answer.agent, node)
    of_driver = {source.reason for source in node.sources if source.name == "nvml" and not source.is_up}
    for one in node.devices:  # a driver that answers for no GPU is one finding above
        device = one.device
        is_reported = device.key in reported or one.reason in of_driver or device.instance
        if one.is_up is False and not is_reported:
            what = f"it does not answer ({one.reason})"
            yield node_documents.StatusFinding(
                answer.agent, node.host, device.name, device.uuid, "gpu_down", Severity.CRITICAL.value, what
            )
    for finding in node.findings:
        if finding.code in _PROBLEMS:
            device = device_in(finding.labels)
            gpu = names.get(device.key, "")
            yield node_documents.StatusFinding(
                answer.agent, node.host, gpu, device.uuid, finding.code, "warning", finding.message
            )


def _sources_down(agent: str, node: node_documents.Node) -> Iterator[node_documents.StatusFinding]:
    for source in node.sources:
        is_normal = source.reason in _NORMAL or source.reason == _NORMAL_OF.get(source.name)
        if not source.is_up and not is_normal:
            message = f"{source.name} gives nothing ({source.reason}: {source.detail})"
            severity = "critical" if source.name == _GPUS else "warning"
            yield node_documents.StatusFinding(agent, node.host, "", "", "source_down", severity, message)
