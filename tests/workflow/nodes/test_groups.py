"""Many machines: findings of one kind are one line; groups by job, node and rack; outliers within a job."""

from __future__ import annotations

import re
from dataclasses import replace

from stepscope.core.documents.jobs import Assignment, Job, JobKind
from stepscope.core.documents.node import Node, NodeDevice
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import OperatorNote, Severity
from stepscope.workflow.nodes.answers import NodeAnswer
from stepscope.workflow.nodes.groups import GroupBy, groups_of, problems_of, rack_names
from stepscope.workflow.nodes.status import status_of
from tests.workflow.nodes.made_nodes import VALUES, device, event, node


def _gpu(index: int, job: str, **values: float) -> NodeDevice:
    jobs = (Assignment(Job(JobKind.SLURM, job, f"job{job}", "al"), Device(f"GPU-{index}", str(index))),) if job else ()
    return device(index, jobs=jobs, values={**VALUES, **values})


def _answer(host: str, *devices: NodeDevice, **fields: object) -> NodeAnswer:
    made: Node = node(*devices, host=host, **fields)
    return NodeAnswer(f"http://{host}:9455", made)


def _fleet() -> list[NodeAnswer]:
    lost = replace(event(uuid="GPU-0", gpu="0"), message="12 rows are left")
    other = replace(event(uuid="GPU-1", gpu="1"), message="3 rows are left")
    return [
        _answer("r1n1", _gpu(0, "7"), _gpu(1, "7"), events=(lost,)),
        _answer("r1n2", _gpu(0, "7"), _gpu(1, "8"), events=(other,)),
        _answer("r2n1", _gpu(0, "8"), _gpu(1, "8")),
        NodeAnswer("http://r2n2:9455", None, "timed out"),
        NodeAnswer("http://r2n3:9455", None, "timed out"),
    ]


_RACKS = rack_names(re.compile(r"r\d+"))


def test_findings_of_one_kind_are_one_problem() -> None:
    first, second = problems_of(status_of(_fleet()))
    assert (first.finding.code, first.num_machines, first.num_gpus) == ("row_remap_failed", 2, 2)
    assert first.places == (("r1n1", "0"), ("r1n2", "1"))
    assert not first.is_same
    assert (second.finding.code, second.num_machines, second.num_gpus, second.is_same) == (
        "agent_unreachable",
        2,
        0,
        True,
    )


def test_problems_of_each_group() -> None:
    report = status_of(_fleet(), _RACKS)
    by_rack = [(one.group, one.finding.code, len(one.places)) for one in problems_of(report, GroupBy.RACK)]
    assert by_rack == [("r1", "row_remap_failed", 2), ("r2", "agent_unreachable", 2)]
    by_node = [(one.group, len(one.places)) for one in problems_of(report, GroupBy.NODE)]
    assert by_node == [("r1n1", 1), ("r1n2", 1), ("r2n2:9455", 1), ("r2n3:9455", 1)]
    by_job = [(one.group, one.finding.code) for one in problems_of(report, GroupBy.JOB)]
    assert by_job == [
        ("", "agent_unreachable"),  # of a machine that never answered no job is known
        ("job7 (7, al)", "row_remap_failed"),
        ("job8 (8, al)", "row_remap_failed"),
    ]


def test_a_problem_of_the_machine_is_one_of_all_its_jobs() -> None:
    answer = _answer("n1", _gpu(0, "7"), _gpu(1, "8"), events=(event(),))
    assert [one.group for one in problems_of(status_of([answer]), GroupBy.JOB)] == ["job7 (7, al)", "job8 (8, al)"]


def test_racks_by_label_before_the_hosts_name() -> None:
    labelled = replace(_answer("r1n1", _gpu(0, "")), labels=(("rack", "A7"),))
    assert _RACKS(labelled) == "A7"
    assert _RACKS(NodeAnswer("http://r9n1:9455")) == "r9"
    assert rack_names(re.compile(r"^(.)n"))(_answer("xn1")) == "x"
    assert rack_names(re.compile("z"))(_answer("xn1")) == ""
    assert rack_names()(_answer("r1n1")) == ""


def test_acknowledged_problems_of_one_kind_are_one_line_and_come_last() -> None:
    answers = [_answer("n0", _gpu(0, "7"), events=(replace(event(Severity.WARNING, uuid="GPU-0", gpu="0"), id="w"),))]
    for number in range(1, 4):
        known = replace(event(uuid="GPU-0", gpu="0"), acknowledged=OperatorNote("ann", "ticket 7", number))
        answers.append(_answer(f"n{number}", _gpu(0, "7"), events=(known,)))
    problems = problems_of(status_of(answers))
    assert [(one.finding.severity, one.num_machines) for one in problems] == [("warning", 1), ("critical", 3)]
    worst, *quiet = groups_of(answers, GroupBy.NODE)
    assert (worst.name, [one.is_quiet for one in quiet]) == ("n0", [True] * 3)


def test_groups_know_their_machines_jobs_and_gpus() -> None:
    worst, second, quiet = groups_of(_fleet()[:3], GroupBy.NODE, _RACKS)
    assert (worst.name, second.name, quiet.name) == ("r1n1", "r1n2", "r2n1")
    assert (worst.num_gpus, worst.is_quiet, quiet.is_quiet) == (2, False, True)
    assert second.jobs.keys() == {"job7 (7, al)", "job8 (8, al)"}
    first, other = groups_of(_fleet(), GroupBy.RACK, _RACKS)
    assert {(one.name, len(one.agents), one.num_gpus) for one in (first, other)} == {("r1", 2, 4), ("r2", 3, 2)}
    jobs = {one.name: (len(one.agents), one.num_gpus) for one in groups_of(_fleet(), GroupBy.JOB)}
    assert jobs == {"job7 (7, al)": (2, 3), "job8 (8, al)": (2, 3), "": (2, 0)}
    assert quiet.total("power_watts") == 2 * 650.4
    assert quiet.middle("tensor_active_ratio") is None


def test_an_outlier_is_one_within_its_job_alone() -> None:
    slow = _answer(
        "n1", *(_gpu(index, "7", utilization_ratio=0.9) for index in range(5)), _gpu(5, "7", utilization_ratio=0.1)
    )
    idle = _answer("n2", *(_gpu(index, "8", utilization_ratio=0.05) for index in range(6)))
    first, second = groups_of([slow, idle], GroupBy.NODE)
    assert (first.name, second.is_quiet) == ("n1", True)
    ((machine, outlier),) = first.outliers
    assert (machine, outlier.gpu, outlier.metric, outlier.value, outlier.usual) == (
        "n1",
        "5",
        "utilization_ratio",
        0.1,
        0.9,
    )


def test_a_silent_agents_last_values_count_no_more() -> None:
    silent = replace(_answer("n1", _gpu(0, "7")), error="timed out")
    (only,) = groups_of([silent], GroupBy.NODE)
    assert (only.num_gpus, only.is_quiet, only.name) == (0, False, "n1")
