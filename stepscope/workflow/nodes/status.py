"""Findings on many nodes: what their agents report, and which agents do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.core.documents.node import Node, NodeDevice, StatusFinding, StatusNode, StatusReport
from stepscope.core.hardware.devices import device_key
from stepscope.core.hardware.health import NOTES, Severity
from stepscope.core.metrics.readings import MissingReason
from stepscope.workflow.nodes.answers import NodeAnswer, silent_agents

_GPUS = "nvml"
_NORMAL = frozenset({MissingReason.NOT_INSTALLED.value, MissingReason.NOT_SUPPORTED.value, MissingReason.NOT_YET.value})
"""A machine without GPUs or InfiniBand has nothing wrong with it."""
_NORMAL_OF = {
    "kernel_log": MissingReason.NO_PERMISSION.value,  # an agent without the right
    "kubelet": MissingReason.NO_PERMISSION.value,  # its socket is root's
    "kineto": MissingReason.TAKEN.value,  # where dynolog runs; who asks for it by a setting has no agent without
}
_COUNTED = (Severity.CRITICAL.value, Severity.WARNING.value)
_ORDER = (*_COUNTED, Severity.INFO.value)
_TOLD = frozenset({"hang"})
"""Findings of the sources that are no health event and yet say that something is wrong."""


def status_of(answers: Iterable[NodeAnswer]) -> StatusReport:
    """What is wrong with each."""
    answers = tuple(answers)
    findings = [finding for answer in answers for finding in _findings(answer)]
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))  # stable: by node within
    return StatusReport(tuple(_node(answer) for answer in answers), tuple(findings), silent_agents(answers))


def _node(answer: NodeAnswer) -> StatusNode:
    node = answer.node
    if node is None or answer.error:
        return StatusNode(answer.agent, node.host if node else "", "", 0, is_reachable=False)
    num_gpus = sum(1 for device in node.devices if "gpu_instance" not in device.labels)
    return StatusNode(answer.agent, node.host, node.version, num_gpus, is_reachable=True)


def _findings(answer: NodeAnswer) -> Iterator[StatusFinding]:
    node = answer.node
    if answer.error or node is None:
        host, message = node.host if node else "", answer.error or "it has not answered yet"
        next_step = "is the machine up? systemctl status stepscope-agent"
        yield StatusFinding(answer.agent, host, "", "", "agent_unreachable", "critical", message, next_step)
        return
    names = {device.key: device.name for device in node.devices}
    told = set()
    for event in node.events:
        is_counted = event.severity in _COUNTED
        if event.ended_ns is None and (is_counted or event.code in NOTES):
            key, uuid = device_key(event.labels), event.labels.get("uuid", "")
            if is_counted:
                told.add(key)
            gpu = names.get(key, event.labels.get("gpu", ""))
            yield StatusFinding(
                answer.agent, node.host, gpu, uuid, event.code, event.severity, event.message, event.action_line
            )
    yield from _sources_down(answer.agent, node)
    of_driver = {source.reason for source in node.sources if source.name == "nvml" and not source.is_up}
    for device in node.devices:  # where the driver answers for none of them, that is said above, once
        is_told = device.key in told or device.reason in of_driver or "gpu_instance" in device.labels
        if device.is_up is False and not is_told:
            yield _of(answer.agent, node, device, "gpu_down", f"it does not answer ({device.reason})")
    for finding in node.findings:
        if finding.code in _TOLD:
            gpu, uuid = names.get(device_key(finding.labels), ""), finding.labels.get("uuid", "")
            yield StatusFinding(answer.agent, node.host, gpu, uuid, finding.code, "warning", finding.message)


def _sources_down(agent: str, node: Node) -> Iterator[StatusFinding]:
    for source in node.sources:
        is_normal = source.reason in _NORMAL or source.reason == _NORMAL_OF.get(source.name)
        if not source.is_up and not is_normal:
            message = f"{source.name} gives nothing ({source.reason}: {source.detail})"
            severity = "critical" if source.name == _GPUS else "warning"
            yield StatusFinding(agent, node.host, "", "", "source_down", severity, message)


def _of(agent: str, node: Node, device: NodeDevice, code: str, message: str) -> StatusFinding:
    return StatusFinding(agent, node.host, device.name, device.labels.get("uuid", ""), code, "critical", message)
