"""Status: problems of machines are found, and normal states are ignored."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.documents.node import NodeState, RunVerdict
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import Action, Health, HealthState, OperatorNote, Severity
from stepscope.core.protocol.verdicts import LiveVerdict
from stepscope.workflow.nodes.answers import NodeAnswer
from stepscope.workflow.nodes.status import is_nothing_known, is_wrong, status_of
from tests.workflow.nodes.made_nodes import device, event, finding, node, source

_URL = "http://n1:9455"


def _codes(answer: NodeAnswer) -> list[tuple[str, str, str]]:
    return [(one.gpu, one.code, one.severity) for one in status_of([answer]).findings]


def test_nothing_is_wrong() -> None:
    quiet = {"infiniband": "not_installed", "jobs": "not_yet", "kernel_log": "no_permission", "kineto": "taken"}
    quiet["kubelet"] = "no_permission"
    fine = node(device(0), device(1), sources=tuple(source(name, reason) for name, reason in quiet.items()))
    report = status_of([NodeAnswer(_URL, fine)])
    assert report.findings == ()
    (told,) = report.nodes
    assert (told.host, told.num_gpus, told.is_reachable) == ("n1", 2, True)


def test_a_machine_without_a_driver_is_not_known_to_be_well() -> None:
    without = node(sources=(source("nvml", "not_installed"), source("kubelet", "no_permission")))
    report = status_of([NodeAnswer(_URL, without)])
    (unknown,) = report.findings
    assert (unknown.code, unknown.severity, unknown.gpu) == ("health_unknown", "warning", "")
    assert unknown.message == "whether its GPUs are well is not known: no GPU driver answers (not_installed: why)"
    assert unknown.action.startswith("stepscope doctor ")
    assert is_nothing_known(report)
    silent = NodeAnswer("http://n2:9455", error="connection refused")
    assert is_nothing_known(status_of([NodeAnswer(_URL, without), silent]))
    well = NodeAnswer("http://n3:9455", node(device(0)))
    mixed = status_of([NodeAnswer(_URL, without), well])
    assert [one.code for one in mixed.findings] == ["health_unknown"]
    assert not is_nothing_known(mixed)
    assert not is_nothing_known(status_of([well]))


def test_what_is_known_without_a_driver() -> None:
    no_driver = (source("nvml", "not_installed"),)
    assert _codes(NodeAnswer(_URL, node(device(0), sources=no_driver))) == []  # dcgm-exporter reads it
    unchecked = device(0, health=Health(HealthState.UNKNOWN, "nothing was looked at yet"))
    assert _codes(NodeAnswer(_URL, node(unchecked))) == [("", "health_unknown", "warning")]
    assert _codes(NodeAnswer(_URL, node())) == [("", "health_unknown", "warning")]  # a driver that knows no GPU
    broken = node(sources=no_driver, events=(event(),))
    assert not is_nothing_known(status_of([NodeAnswer(_URL, broken)]))
    hangs = node(sources=(source("nvml", "timed_out"),))
    assert _codes(NodeAnswer(_URL, hangs)) == [("", "source_down", "critical")]


def test_open_events_and_no_others() -> None:
    events = (
        event(uuid="GPU-1", gpu="1"),
        event(Severity.WARNING),
        event(Severity.INFO, uuid="GPU-0"),
        event(ended_ns=5),
    )
    (first, second) = status_of([NodeAnswer(_URL, node(device(0), device(1), events=events))]).findings
    assert (first.gpu, first.uuid, first.code, first.severity) == ("1", "GPU-1", "row_remap_failed", "critical")
    assert (first.message, first.action) == ("no spare rows are left", Action.REPLACE.line)
    assert (second.gpu, second.severity) == ("", "warning")


def test_notes_come_last_and_hide_nothing() -> None:
    note = replace(event(Severity.INFO, uuid="GPU-1", gpu="1"), code="xid_earlier")
    silent = device(1, is_up=False, reason="timed_out")
    told = node(device(0), silent, events=(note, event(Severity.WARNING, uuid="GPU-0", gpu="0")))
    assert _codes(NodeAnswer(_URL, told)) == [
        ("1", "gpu_down", "critical"),
        ("0", "row_remap_failed", "warning"),
        ("1", "xid_earlier", "info"),
    ]


def test_a_gpu_that_does_not_answer_is_told_once() -> None:
    silent = device(1, is_up=False, reason="timed_out")
    assert _codes(NodeAnswer(_URL, node(device(0), silent))) == [("1", "gpu_down", "critical")]
    told = node(silent, events=(event(uuid="GPU-1"),))
    assert _codes(NodeAnswer(_URL, told)) == [("1", "row_remap_failed", "critical")]


def test_the_instances_of_a_gpu_that_does_not_answer_are_no_further_findings() -> None:
    instance = Device("MIG-1", "1", "7")
    silent = [device(1, is_up=False, reason="timed_out"), device(1, device=instance, is_up=False, reason="timed_out")]
    assert _codes(NodeAnswer(_URL, node(*silent))) == [("1", "gpu_down", "critical")]


def test_a_gpu_that_has_hung_since_before_it_told_its_uuid() -> None:
    silent = [device(index, device=Device(index=str(index)), is_up=False, reason="timed_out") for index in (1, 2)]
    told = node(device(0), *silent, events=(event(gpu="1"), event()))
    assert _codes(NodeAnswer(_URL, told)) == [
        ("1", "row_remap_failed", "critical"),
        ("", "row_remap_failed", "critical"),
        ("2", "gpu_down", "critical"),
    ]


def test_sources_that_fail_and_gpus_that_hang() -> None:
    sources = (source("host", "failed"), source("nvml", "timed_out"))
    told = node(device(0), sources=sources, findings=(finding("hang", uuid="GPU-0"), finding("clamped")))
    assert _codes(NodeAnswer(_URL, told)) == [
        ("", "source_down", "critical"),
        ("", "source_down", "warning"),
        ("0", "hang", "warning"),
    ]


def test_what_else_may_not_be_read_is_told() -> None:
    told = node(sources=(source("nvml", "no_permission"), source("training", "no_permission")))
    assert _codes(NodeAnswer(_URL, told)) == [("", "source_down", "critical"), ("", "source_down", "warning")]


def test_a_driver_that_hangs_is_not_told_again_for_each_gpu() -> None:
    silent, lost = device(0, is_up=False, reason="timed_out"), device(1, is_up=False, reason="gone")
    told = node(silent, lost, sources=(source("nvml", "timed_out"),))
    assert _codes(NodeAnswer(_URL, told)) == [("", "source_down", "critical"), ("1", "gpu_down", "critical")]


def test_who_does_not_answer() -> None:
    never, before = NodeAnswer(_URL, None, "refused"), NodeAnswer("http://n2:9455", node(device(0)), "timed out", 1.0)
    report = status_of([before, never])
    assert [(one.agent, one.host, one.code) for one in report.findings] == [
        ("http://n2:9455", "n1", "agent_unreachable"),
        (_URL, "", "agent_unreachable"),
    ]
    assert not any(one.is_reachable for one in report.nodes)


def test_instances_are_no_gpus() -> None:
    instance = device(0, device=Device("MIG-1", "0", "7"))
    assert status_of([NodeAnswer(_URL, node(device(0), instance))]).nodes[0].num_gpus == 1


def test_the_state_of_each_node() -> None:
    states = [
        status_of([answer]).nodes[0].state
        for answer in (
            NodeAnswer(_URL, node(device(0))),
            NodeAnswer(_URL, node(device(0), events=(event(Severity.INFO),))),
            NodeAnswer(_URL, node(device(0), events=(event(Severity.WARNING),))),
            NodeAnswer(_URL, node(device(0)), "timed out"),
            NodeAnswer(_URL, node(sources=(source("nvml", "not_installed"),))),
            NodeAnswer(_URL, node(sources=(source("nvml", "not_installed"),), events=(event(),))),
        )
    ]
    assert states[:3] == [NodeState.OK, NodeState.OK, NodeState.PROBLEM]
    assert states[3:] == [NodeState.UNKNOWN, NodeState.UNKNOWN, NodeState.PROBLEM]


def test_findings_know_their_jobs_and_racks() -> None:
    told = node(device(0), device(1, jobs=()), events=(event(uuid="GPU-0", gpu="0"), event(uuid="GPU-1", gpu="1")))
    first, second = status_of([NodeAnswer(_URL, told)], lambda _: "r1").findings
    assert [job.id for job in first.jobs] == ["42"]
    assert (second.jobs, second.rack) == ((), "r1")


def test_an_acknowledged_event_is_shown_and_does_not_count() -> None:
    note = OperatorNote("ann", "ticket 7", 3)
    known = replace(event(gpu="0", uuid="GPU-0"), id="row_remap_failed-1", acknowledged=note)
    report = status_of([NodeAnswer(_URL, node(device(0), events=(known,)))])
    (found,) = report.findings
    assert (found.event, found.acknowledged, found.severity) == ("row_remap_failed-1", note, "critical")
    assert report.nodes[0].state is NodeState.OK
    another = event(gpu="1", uuid="GPU-1")
    report = status_of([NodeAnswer(_URL, node(device(0), device(1), events=(known, another)))])
    assert [finding.gpu for finding in report.findings] == ["1", "0"]
    assert report.nodes[0].state is NodeState.PROBLEM


def test_the_bottleneck_of_a_running_job_is_a_note() -> None:
    verdicts = [
        RunVerdict(LiveVerdict(str(found), 1, "copy", 0.9, "Copies: 20%", (), (), found), 7, ())
        for found in (True, False, None)
    ]
    (finding,) = status_of([NodeAnswer("a", node(device(), verdicts=tuple(verdicts)))]).findings
    assert (finding.code, finding.severity, finding.message) == ("bottleneck", "info", "run True: Copies: 20%")
    assert not is_wrong(finding)
