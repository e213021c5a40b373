"""Status of many nodes: what is wrong with each, and of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.core.documents import node as node_documents
from stepscope.core.hardware.devices import device_in
from stepscope.core.hardware.health import NOTES, HealthState, Severity
from stepscope.core.metrics.readings import MissingReason
from stepscope.workflow.nodes.answers import NodeAnswer, silent_agents

_GPUS = "nvml"
_NORMAL = frozenset({MissingReason.NOT_INSTALLED.value, MissingReason.NOT_SUPPORTED.value, MissingReason.NOT_YET.value})
"""Reasons that are not findings: a machine may have no GPUs or InfiniBand."""
_NORMAL_OF = {
    "kernel_log": MissingReason.NO_PERMISSION.value,  # an agent without that permission
    "kubelet": MissingReason.NO_PERMISSION.value,  # its socket is root's
    "kineto": MissingReason.TAKEN.value,  # dynolog runs; an agent whose setting requires it does not start
}
_UNREACHABLE, _UNKNOWN = "agent_unreachable", "health_unknown"
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
        yield node_documents.StatusFinding(answer.agent, host, "", "", _UNREACHABLE, "critical", message, next_step)
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
    if why := why_unknown(node):
        next_step = "stepscope doctor on that machine says what is missing; leave out machines without GPUs"
        message = f"whether its GPUs are well is not known: {why}"
        yield node_documents.StatusFinding(answer.agent, node.host, "", "", _UNKNOWN, "warning", message, next_step)
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


def is_nothing_known(report: node_documents.StatusReport) -> bool:
    """Whether the status of the nodes says no more than that nothing can be known of any of them."""
    codes = {finding.code for finding in report.findings if finding.severity != Severity.INFO}
    unknown = {finding.agent for finding in report.findings if finding.code in (_UNKNOWN, _UNREACHABLE)}
    return codes <= {_UNKNOWN, _UNREACHABLE} and unknown >= {node.agent for node in report.nodes}


def why_unknown(node: node_documents.Node) -> str:
    """Why nothing is known of the health of a node's GPUs; empty where something is, or a finding says why."""
    if any(one.is_up is False or (one.health and one.health.state is not HealthState.UNKNOWN) for one in node.devices):
        return ""
    driver = next((source for source in node.sources if source.name == _GPUS), None)
    if driver is None or driver.is_up:
        return "its GPUs were not checked yet" if node.devices else "no GPU is known there"
    is_finding = driver.reason not in _NORMAL
    return "" if is_finding else f"no GPU driver answers ({driver.reason}: {driver.detail})"


def _sources_down(agent: str, node: node_documents.Node) -> Iterator[node_documents.StatusFinding]:
    for source in node.sources:
        is_normal = source.reason in _NORMAL or source.reason == _NORMAL_OF.get(source.name)
        if not source.is_up and not is_normal:
            message = f"{source.name} gives nothing ({source.reason}: {source.detail})"
            severity = "critical" if source.name == _GPUS else "warning"
            yield node_documents.StatusFinding(agent, node.host, "", "", "source_down", severity, message)
