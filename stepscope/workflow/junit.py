"""How do gates read to a CI server? JUnit XML: one test case a gate; undecided and unmeasured ones are skipped."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from stepscope.core.comparison import Comparison, Gate, GateOutcome

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gates_as_junit(comparison: Comparison) -> bytes:
    """The gates as one JUnit document; without gates it holds none."""
    gates = comparison.gates
    undecided = (GateOutcome.INCONCLUSIVE, GateOutcome.NOT_MEASURED)
    suite = Xml.Element(
        "testsuite",
        name="stepscope compare",
        tests=str(len(gates)),
        failures=str(sum(gate.outcome is GateOutcome.FAILED for gate in gates)),
        errors="0",
        skipped=str(sum(gate.outcome in undecided for gate in gates)),
    )
    for gate in gates:
        suite.append(_test_case(gate))
    Xml.SubElement(suite, "system-out").text = _legal("\n".join([comparison.summary, *_notes(comparison)]))
    suites = Xml.Element("testsuites")
    suites.append(suite)
    Xml.indent(suites)
    content: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _test_case(gate: Gate) -> Xml.Element:
    case = Xml.Element("testcase", classname="stepscope.compare", name=_legal(gate.text), time="0")
    if gate.outcome is GateOutcome.FAILED:
        Xml.SubElement(case, "failure", message=_legal(gate.summary), type="regression").text = _legal(gate.summary)
    elif gate.outcome is not GateOutcome.PASSED:
        Xml.SubElement(case, "skipped", message=_legal(gate.summary))
    return case


def _notes(comparison: Comparison) -> list[str]:
    return [notice.message for notice in (*comparison.findings, *comparison.warnings)]


def _legal(text: str) -> str:
    """XML 1.0 has no way to write most control characters; names from traces may hold them."""
    return _NOT_IN_XML.sub("\ufffd", text)
