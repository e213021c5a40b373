"""Status of many nodes: what is wrong with each, and of which nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from stepscope.core.documents.jobs import Job
from stepscope.core.documents.node import Node, NodeState, StatusFinding, StatusNode, StatusReport
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.hardware.health import NOTES, HealthState, Severity
from stepscope.core.metrics.readings import MissingReason
from stepscope.workflow.nodes.answers import NodeAnswer, silent_agents

_GPUS = "nvml"
_NORMAL = frozenset({MissingReason.NOT_INSTALLED.value, MissingReason.NOT_SUPPORTED.value, MissingReason.NOT_YET.value})
"""Reasons that are not findings: a machine may have no InfiniBand."""
_NORMAL_OF = {
    "kernel_log": MissingReason.NO_PERMISSION.value,  # an agent without that permission
    "kubelet": MissingReason.NO_PERMISSION.value,  # its socket is root's
    "kineto": MissingReason.TAKEN.value,  # dynolog runs; an agent whose setting requires it does not start
}
_COUNTED = (Severity.CRITICAL, Severity.WARNING)
_ORDER = (*_COUNTED, Severity.INFO)
_PROBLEMS = frozenset({"hang"})
"""Findings of the sources that are not health events but problems."""
_UNREACHABLE, _UNKNOWN = "agent_unreachable", "health_unknown"


def status_of(answers: Iterable[NodeAnswer], rack: Callable[[NodeAnswer], str] = lambda _: "") -> StatusReport:
    """Commands on nodes: join the answers of all nodes to one status, the worst findings first, acknowledged ones last.

    Args:
        rack: where a node stands.
    """
    answers = tuple(answers)
    nodes, findings = [], list[StatusFinding]()
    for answer in answers:
        place = rack(answer)
        of_node = [replace(finding, rack=place) for finding in _findings(answer)]
        nodes.append(_status_node(answer, of_node, place))
        findings += of_node
    findings.sort(key=rank_of)  # stable: by node within
    return StatusReport(tuple(nodes), tuple(findings), silent_agents(answers))


def rank_of(finding: StatusFinding) -> tuple[bool, int]:
    """Order of a finding of nodes among others: the worst first, acknowledged ones last."""
    return finding.acknowledged is not None, _ORDER.index(Severity(finding.severity))


def is_wrong(finding: StatusFinding) -> bool:
    """Whether a finding of a node is a problem that no operator has acknowledged."""
    return finding.severity in _COUNTED and finding.acknowledged is None


def next_step_of(finding: StatusFinding) -> str:
    """What to do about a finding of a node, or who has acknowledged it; empty if not known."""
    note = finding.acknowledged
    return finding.action if note is None else f"acknowledged by {note.by}: {note.why}"


def is_nothing_known(report: StatusReport) -> bool:
    """Whether the state of no node is known."""
    return all(node.state is NodeState.UNKNOWN for node in report.nodes)


def _status_node(answer: NodeAnswer, findings: list[StatusFinding], rack: str) -> StatusNode:
    node = answer.node
    if node is None or answer.error:
        host = node.host if node else ""
        return StatusNode(answer.agent, host, "", 0, is_reachable=False, state=NodeState.UNKNOWN, rack=rack)
    num_gpus = sum(1 for one in node.devices if not one.device.instance)
    codes = {finding.code for finding in findings if is_wrong(finding)}
    state = NodeState.PROBLEM if codes - {_UNKNOWN} else NodeState.UNKNOWN if codes else NodeState.OK
    return StatusNode(answer.agent, node.host, node.version, num_gpus, is_reachable=True, state=state, rack=rack)


def _findings(answer: NodeAnswer) -> Iterator[StatusFinding]:
    node = answer.node
    if answer.error or node is None:
        host, message = node.host if node else "", answer.error or "it has not answered yet"
        next_step = "is the machine up? systemctl status stepscope-agent"
        yield StatusFinding(answer.agent, host, "", "", _UNREACHABLE, Severity.CRITICAL.value, message, next_step)
        return
    of_device = {one.device.key: tuple(job.job for job in one.jobs) for one in node.devices}
    of_machine = tuple({job.key: job for jobs in of_device.values() for job in jobs}.values())
    names = {one.device.key: one.device.name for one in node.devices}

    def finding(device: Device, code: str, severity: str, message: str, action: str = "") -> StatusFinding:
        gpu = names.get(device.key, device.index)
        jobs = of_device.get(device.key, ()) if gpu else of_machine
        return StatusFinding(answer.agent, node.host, gpu, device.uuid, code, severity, message, action, jobs=jobs)

    reported = set()
    for event in node.events:
        is_counted = event.severity in _COUNTED
        if event.ended_ns is None and (is_counted or event.code in NOTES):
            device = device_in(dict(event.labels))
            if is_counted:
                reported.add(device.key)
            found = finding(device, event.code, event.severity.value, event.message, event.action.line)
            yield replace(found, event=event.id, acknowledged=event.acknowledged)
    yield from _sources_down(node, of_machine, answer.agent)
    if why := why_unknown(node):
        next_step = "stepscope doctor on that machine says what is missing; leave out machines without GPUs"
        message = f"whether its GPUs are well is not known: {why}"
        yield StatusFinding(answer.agent, node.host, "", "", _UNKNOWN, Severity.WARNING.value, message, next_step)
    for verdict in (running.verdict for running in node.verdicts):
        if verdict.bottleneck:
            message = f"run {verdict.run}: {verdict.summary or verdict.cause}"
            action = "stepscope analyze of its run directory has the evidence and the fix"
            severity = Severity.INFO.value
            yield StatusFinding(answer.agent, node.host, "", "", "bottleneck", severity, message, action)
    of_driver = {source.reason for source in node.sources if source.name == _GPUS and not source.is_up}
    for one in node.devices:  # a driver that answers for no GPU is one finding above
        device = one.device
        is_reported = device.key in reported or one.reason in of_driver or device.instance
        if one.is_up is False and not is_reported:
            yield finding(device, "gpu_down", Severity.CRITICAL.value, f"it does not answer ({one.reason})")
    for noticed in node.findings:
        if noticed.code in _PROBLEMS:
            device = device_in(noticed.labels)
            name = names.get(device.key, "")
            jobs = of_device.get(device.key, of_machine)
            yield StatusFinding(
                answer.agent, node.host, name, device.uuid, noticed.code, "warning", noticed.message, jobs=jobs
            )


def why_unknown(node: Node) -> str:
    """Why nothing is known of the health of a node's GPUs; empty where something is, or a finding says why."""
    if any(one.is_up is False or (one.health and one.health.state is not HealthState.UNKNOWN) for one in node.devices):
        return ""
    driver = next((source for source in node.sources if source.name == _GPUS), None)
    if driver is None or driver.is_up:
        return "its GPUs were not checked yet" if node.devices else "no GPU is known there"
    is_finding = driver.reason not in _NORMAL
    return "" if is_finding else f"no GPU driver answers ({driver.reason}: {driver.detail})"


def _sources_down(node: Node, jobs: tuple[Job, ...], agent: str) -> Iterator[StatusFinding]:
    for source in node.sources:
        is_normal = source.reason in _NORMAL or source.reason == _NORMAL_OF.get(source.name)
        if not source.is_up and not is_normal:
            message = f"{source.name} gives nothing ({source.reason}: {source.detail})"
            severity = "critical" if source.name == _GPUS else "warning"
            yield StatusFinding(agent, node.host, "", "", "source_down", severity, message, jobs=jobs)
