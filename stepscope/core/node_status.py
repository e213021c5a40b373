"""Is anything wrong with these machines? The typed form of `stepscope status --json`, schema stepscope.status/1."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.analysis import Notice

STATUS_SCHEMA = "stepscope.status/1"


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """One thing that is wrong.

    Attributes:
        agent: address of the agent that says so, or does not answer.
        host: name of the machine; empty where nobody told it.
        gpu, uuid: of the device; empty where it is the machine's.
        code: what: "agent_unreachable", "source_down", "gpu_down", or a health event's code.
        severity: critical or warning; info is a note, with which nothing may be wrong.
        message: one line for people.
        action: what is to be done, for people; empty where nobody knows.
    """

    agent: str
    host: str
    gpu: str
    uuid: str
    code: str
    severity: str
    message: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class StatusNode:
    """One machine.

    Attributes:
        agent: address of its agent.
        host, version: name of the machine and version of the agent; empty where it does not answer.
        num_gpus: GPUs that it knows of, without MIG instances.
        is_reachable: the agent answers.
    """

    agent: str
    host: str
    version: str
    num_gpus: int
    is_reachable: bool


@dataclass(frozen=True, slots=True)
class StatusReport:
    """All of them.

    Attributes:
        nodes: in the order in which they were asked.
        findings: the worst first, then by node.
        warnings: who did not answer.
        schema: of the document.
    """

    nodes: tuple[StatusNode, ...]
    findings: tuple[StatusFinding, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = field(default=STATUS_SCHEMA)
