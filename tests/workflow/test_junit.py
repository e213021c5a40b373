"""The JUnit file is what a CI server reads: a test case per gate, failures with figures, valid XML."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as Xml

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.gates import parse_gate_conditions
from stepscope.workflow.junit import gates_as_junit
from tests.analyzer.compare.runs import make_run


def test_failed_passed_and_undecided_gates() -> None:
    conditions = parse_gate_conditions('step_time:+3%,data_loading:+5%,mfu:-5%,kernel:a<b&"c:+5%')
    found = compare_runs([make_run(100.0, 100.1)], [make_run(120.0, 120.1)], names=("a", "b"), conditions=conditions)
    (suite,) = Xml.fromstring(gates_as_junit(found))
    assert suite.attrib == {
        "name": "stepscope compare", "tests": "4", "failures": "1", "errors": "0", "skipped": "2"
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [gate.text for gate in found.gates]
    failure = cases[0].find("failure")
    assert failure is not None
    assert failure.get("message") == found.gates[0].summary
    assert len(cases[1]) == 0
    assert cases[2].find("skipped") is not None


def test_characters_that_xml_does_not_know_are_replaced() -> None:
    found = compare_runs(
        [make_run(100.0)], [make_run(100.0)], names=("a", "b"), conditions=parse_gate_conditions("mfu:+1%")
    )
    hostile = replace(found.gates[0], text="x\x00\x1b\ud800]]>", summary="\x07")
    document = Xml.fromstring(gates_as_junit(replace(found, gates=[hostile])))
    case = document.find(".//testcase")
    assert case is not None
    assert case.get("name") == "x\ufffd\ufffd\ufffd]]>"
