"""Made-up nodes as agents report them, served as agents serve them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.agent.web.endpoints import api_routes
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.core.documents.jobs import Assignment, Counters, FleetClass, Job, JobKind
from stepscope.core.documents.node import Node, NodeDevice, NodeFinding, NodeSource
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import Action, Health, HealthEvent, HealthState, Severity
from stepscope.core.metrics.readings import labels_of
from stepscope.core.vocabulary import Cause
from stepscope.workflow.nodes.agent_client import AgentClient
from stepscope.workflow.nodes.answers import NodeAnswer, NodeWatch

VALUES = {
    "utilization_ratio": 0.97,
    "dram_active_ratio": 0.5,
    "power_watts": 650.4,
    "power_limit_watts": 700.0,
    "memory_used_bytes": 64.0 * 2**30,
    "memory_total_bytes": 80.0 * 2**30,
    "temperature_celsius": 61.0,
    "sm_clock_hertz": 1.41e9,
}


def device(index: int = 0, **values: Any) -> NodeDevice:
    """A GPU that works for alice's job, throttled by its power limit; its tensor activity is not known."""
    named = Device(f"GPU-{index}", str(index))
    fields: dict[str, Any] = {
        "device": named,
        "info": {"name": "NVIDIA H100"},
        "is_up": True,
        "reason": "",
        "age_seconds": 1.0,
        "values": VALUES,
        "by_label": {
            "throttle_reason": {"idle": 0.0, "software_power_cap": 1.0},
            "use_state": {"busy": 1.0, "free": 0.0},
        },
        "missing": {"tensor_active_ratio": "not_supported"},
        "jobs": (Assignment(Job(JobKind.SLURM, "42", "llama", "alice"), named),),
        "health": Health(HealthState.HEALTHY, ""),
        "spent": FleetClass(Cause.MEMORY_BOUND, (), 0.8, "", (), None, Counters.SM, 1, 2),
    }
    return NodeDevice(**{**fields, **values})


def event(severity: Severity = Severity.CRITICAL, *, ended_ns: int | None = None, **labels: str) -> HealthEvent:
    """Something wrong with a GPU, or the machine."""
    return HealthEvent(
        "row_remap_failed", labels_of(**labels), severity, Action.REPLACE, "no spare rows are left", 1.0, 0.0, "",
        1, 2, ended_ns, 1, False,
    )  # fmt: skip


def node(*devices: NodeDevice, **values: Any) -> Node:
    """A machine."""
    told: dict[str, Any] = {
        "host": "n1",
        "version": "1.0",
        "time_ns": time.time_ns(),
        "sources": (NodeSource("nvml", True, "", "", 0.5, 100),),
        "devices": devices,
    }
    return Node(**{**told, **values})


def source(name: str, reason: str) -> NodeSource:
    """One that gives nothing."""
    return NodeSource(name, False, reason, "why", None, 0)


def finding(code: str, **labels: str) -> NodeFinding:
    """What a source noticed."""
    return NodeFinding("fleet_class", code, "kernels run and nothing moves", labels)


@contextmanager
def served(told: Node) -> Iterator[str]:
    """An agent that tells it; its URL."""
    with AgentServer(ListenAddress("127.0.0.1", 0), api_routes(lambda _: told, scheme="http")) as server:
        yield server.url


def asked(client: AgentClient) -> NodeAnswer:
    """The answer of an agent that is asked once."""
    with NodeWatch([client]) as watch:
        watch.ask()
        watch.wait()
        (answer,) = watch.answers()
    return answer
