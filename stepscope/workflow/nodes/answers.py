"""Documents of many nodes, requested in parallel so that a silent one delays no other; selection of GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stepscope.core.documents import node as node_documents
from stepscope.core.errors import UnreachableError
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.hardware.health import HealthState
from stepscope.core.vocabulary import Notice
from stepscope.workflow.nodes.agent_client import AgentClient
from stepscope.workflow.nodes.exchanges import AgentExchanges, Body

ANSWER_SECONDS = 2.0
"""After which a silent agent is given up; one that works waits for nothing itself, and answers within some 10 ms."""
_MAX_ERROR_LENGTH = 500
_MAX_SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Last answer of one node's agent.

    Attributes:
        agent: its address.
        node: its last document; None before the first.
        error: why the agent did not answer the last request; empty if it did.
        at: when the document came, monotonic seconds; None without one.
        labels: of the target, as "rack", from where its address was read.
    """

    agent: str
    node: node_documents.Node | None = None
    error: str = ""
    at: float | None = None
    labels: tuple[tuple[str, str], ...] = ()


def silent_agents(answers: Iterable[NodeAnswer]) -> tuple[Notice, ...]:
    """Agents of nodes that did not answer, as warnings of a document."""
    return tuple(Notice("agent_silent", f"{answer.agent}: {answer.error}") for answer in answers if answer.error)


def answers_of(
    clients: Sequence[AgentClient], *, seconds: float = ANSWER_SECONDS, view: node_documents.NodeView | None = None
) -> tuple[NodeAnswer, ...]:
    """Ask the agents of all nodes once, in parallel; see `NodeWatch`."""
    with NodeWatch(clients, seconds=seconds, view=view) as watch:
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


def _node_of(body: Body) -> node_documents.Node:
    return _checked_node(json_of(body))


def json_of(body: Body) -> dict[str, Any]:
    """Answers of nodes: the JSON object that an agent answered with.

    Raises:
        UnreachableError: it is an error, or something else.
    """
    status, content = body
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    if status >= 400:
        error = document.get("error") if isinstance(document, dict) else content.decode(errors="replace").strip()
        raise UnreachableError(str(error or f"status {status}")[:_MAX_ERROR_LENGTH])
    if status != 200:
        raise UnreachableError(f"answers with HTTP status {status}: is that an agent?")
    if not isinstance(document, dict):
        begin = content[:_MAX_SHOWN_BYTES].decode(errors="replace").strip()
        raise UnreachableError(f"its answer is not a JSON object: is that an agent? ({begin or 'empty'})")
    return document


def _checked_node(document: Mapping[str, Any]) -> node_documents.Node:
    schema = document.get("schema")
    if schema != node_documents.NODE_SCHEMA:
        raise UnreachableError(f"answers {schema!r}, this version reads {node_documents.NODE_SCHEMA!r}")
    try:
        return read_node(document)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreachableError(f"its answer is not a {node_documents.NODE_SCHEMA} document ({error})") from None


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
                "device": shape,
                "jobs": [{**job, "job": job, "device": shape} for job in raw["jobs"]],
                "spent": _class_shape(raw["spent"]),
            }
            for shape, raw in zip(map(msgspec.to_builtins, devices), document["devices"], strict=True)
        ],
        "events": [{**raw, "labels": sorted(raw["labels"].items())} for raw in document["events"]],
        "job_classes": [
            {
                "job": {"kind": raw["job_kind"], "id": raw["job_id"]},
                "devices": [msgspec.to_builtins(by_uuid.get(uuid) or Device(uuid)) for uuid in raw["devices"]],
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
    """Asks the agents of nodes repeatedly, never one twice at a time. A context manager.

    Args:
        seconds: an agent is given up when neither it nor another has answered for so long.
        view: the part of the document that suffices; None: all of it.
    """

    def __init__(
        self,
        clients: Sequence[AgentClient],
        *,
        seconds: float = ANSWER_SECONDS,
        view: node_documents.NodeView | None = None,
    ) -> None:
        self._answers = {str(client): NodeAnswer(str(client), labels=client.labels) for client in clients}
        self._exchanges = AgentExchanges(clients, seconds=seconds)
        self._path = f"{node_documents.NODE_PATH}?view={view}" if view else node_documents.NODE_PATH
        self._lock = threading.Condition()
        self._asked: set[str] = set()

    def __enter__(self) -> NodeWatch:
        self._exchanges.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._exchanges.__exit__()

    def ask(self) -> None:
        """Send a request to each agent whose last one was answered."""
        with self._lock:
            asked = self._answers.keys() - self._asked
            self._asked |= asked
        self._exchanges.get(asked, self._path, self._keep)

    def wait(self) -> None:
        """Wait until all have answered or were given up."""
        with self._lock:
            self._lock.wait_for(lambda: not self._asked)

    def answers(self) -> tuple[NodeAnswer, ...]:
        """The last answer of each, in the order of the clients."""
        with self._lock:
            return tuple(self._answers.values())

    def _keep(self, agent: str, answer: Body | UnreachableError) -> None:
        node, error = None, ""
        try:
            if isinstance(answer, UnreachableError):
                raise answer
            node = _node_of(answer)
        except UnreachableError as failed:
            error = failed.what
        except Exception as failed:  # the thread's edge: one agent's answer stops no requests to others
            error = f"its answer cannot be read ({type(failed).__name__})"
        with self._lock:
            before = self._answers[agent]
            now = replace(before, node=node, error="", at=time.monotonic()) if node else replace(before, error=error)
            self._answers[agent] = now
            self._asked.discard(agent)
            if not self._asked:
                self._lock.notify_all()


_SICK = (HealthState.DEGRADED, HealthState.FAILED)


def select_devices(answers: Iterable[NodeAnswer], *, job: str = "", sick: bool = False) -> tuple[NodeAnswer, ...]:
    """Answers of nodes with only the devices of one job, or sick ones; nodes without any are left out.

    Args:
        job: name or id of a job that has the device; empty: all devices.
        sick: only devices that do not answer or are not healthy, agents that do not answer or know no GPU.
    """
    answers = tuple(answers)
    if not job and not sick:
        return answers
    found = []
    for answer in answers:
        devices = answer.node.devices if answer.node else ()
        wanted = tuple(one for one in devices if (not job or _has(one, job)) and (not sick or _is_sick(one)))
        if wanted or (sick and not job and (answer.error or not devices)):
            pids = {pid for one in wanted for job_of in one.jobs if job_of.job.is_called(job) for pid in job_of.pids}
            verdicts = answer.node.verdicts if answer.node else ()
            verdicts = tuple(one for one in verdicts if not job or pids.intersection(one.pids))
            node = replace(answer.node, devices=wanted, verdicts=verdicts) if answer.node else None
            found.append(replace(answer, node=node))
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
