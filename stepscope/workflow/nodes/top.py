"""GPUs of machines as their agents see them at one moment: the document `stepscope.top/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.core.documents.node import node_document
from stepscope.core.vocabulary import Notice
from stepscope.workflow.nodes.answers import NodeAnswer, select_devices, silent_agents, unknown_job

TOP_SCHEMA = "stepscope.top/1"


@dataclass(frozen=True, slots=True)
class TopReport:
    """GPUs of machines.

    Attributes:
        nodes: answer of each agent, with the chosen devices.
        warnings: agents that do not answer, and a job that none of them knows.
    """

    nodes: tuple[NodeAnswer, ...]
    warnings: tuple[Notice, ...]


def top_of(answers: Sequence[NodeAnswer], *, job: str = "", sick: bool = False) -> TopReport:
    """Devices of nodes; arguments as of `select_devices`."""
    selected = select_devices(answers, job=job, sick=sick)
    return TopReport(selected, (*silent_agents(selected), *unknown_job(answers, job)))


def top_document(report: TopReport) -> dict[str, Any]:
    """The JSON document of the GPUs of machines."""
    nodes = [
        {"agent": one.agent, "error": one.error, "node": node_document(one.node) if one.node else None}
        for one in report.nodes
    ]
    return {"schema": TOP_SCHEMA, "nodes": nodes, "warnings": [asdict(warning) for warning in report.warnings]}
