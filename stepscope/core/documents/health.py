"""Document of a machine's health as its agent keeps it (`stepscope.health/1`), of several: `stepscope.health-list/1`.

Operators acknowledge events and set GPUs healthy by the same HTTP API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from stepscope.core.hardware.health import Health, HealthEvent, HealthReport
from stepscope.core.vocabulary import Notice

HEALTH_SCHEMA = "stepscope.health/1"
HEALTH_LIST_SCHEMA = "stepscope.health-list/1"
HEALTH_PATH = "/api/v1/health"
ACKNOWLEDGE_PATH = f"{HEALTH_PATH}/ack"
SET_HEALTHY_PATH = f"{HEALTH_PATH}/set-healthy"
NODE = "node"
"""Stands for the machine and all in it where an operator sets something healthy."""


_MAX_WORD, _MAX_REASON = 200, 1000


def note_problem(note: Mapping[str, Any]) -> str:
    """What is wrong with an operator's note: with the event or GPU, who, or why; empty if it can be taken."""
    for name, value in note.items():
        most = _MAX_REASON if name == "why" else _MAX_WORD
        text = value.strip() if isinstance(value, str) else ""
        if not text or len(text) > most or not text.isprintable():
            return f'"{name}" must be 1 to {most} printable characters'
    return ""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health document: one GPU.

    Attributes:
        labels: `gpu` and `uuid`.
    """

    labels: Mapping[str, str]
    health: Health


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Health document: GPUs, events and the rest of a machine at one moment.

    Attributes:
        host: name of the machine.
        time_ns: of the last check, ns since the epoch; None before the first.
        is_kept: whether it outlives a restart of the agent.
        machine: without its GPUs.
        gpus: by index.
        events: open events, the worst first, then ended events, the newest first.
    """

    host: str
    time_ns: int | None
    is_kept: bool
    machine: Health
    gpus: tuple[DeviceHealth, ...]
    events: tuple[HealthEvent, ...]
    schema: str = HEALTH_SCHEMA


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """Health list: the health that one agent reports.

    Attributes:
        agent: its address.
        error: why it does not answer; empty if it does.
        health: None if it does not.
    """

    agent: str
    error: str
    health: NodeHealth | None


@dataclass(frozen=True, slots=True)
class HealthList:
    """Health list: the health of several machines, in the order of the agents' addresses given."""

    nodes: tuple[AgentHealth, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = HEALTH_LIST_SCHEMA


def node_health_of(report: HealthReport, *, host: str, is_kept: bool) -> NodeHealth:
    """The health document of a machine from its agent's report."""
    gpus = tuple(DeviceHealth(dict(device.labels()), health) for device, health in report.gpus.items())
    return NodeHealth(host, report.time_ns, is_kept, report.machine, gpus, (*report.open_events, *report.ended_events))


def event_document(event: HealthEvent) -> dict[str, Any]:
    """The JSON of a health event in a document: its labels as an object, and the action in words."""
    return {**asdict(event), "labels": dict(event.labels), "action_line": event.action.line}


def health_document(health: NodeHealth) -> dict[str, Any]:
    """The JSON document of a machine's health."""
    return {**asdict(replace(health, events=())), "events": [event_document(event) for event in health.events]}


def health_list_document(listed: HealthList) -> dict[str, Any]:
    """The JSON document of the health of several machines."""
    return {
        **asdict(replace(listed, nodes=())),
        "nodes": [
            {"agent": one.agent, "error": one.error, "health": one.health and health_document(one.health)}
            for one in listed.nodes
        ],
    }
