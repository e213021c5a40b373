"""Gates and checks as JUnit XML for a CI server: one test case each; undecided ones are skipped."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from stepscope.core.documents.comparison import UNDECIDED, Comparison, GateOutcome
from stepscope.core.documents.machine_checks import CheckResult, Outcome, Preflight
from stepscope.core.text.numbers import number_runs

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class _Case:
    """One test case, with the reason of its failure or why it was skipped."""

    name: str
    failure: str | None = None
    skipped: str | None = None


def gates_as_junit(comparison: Comparison, failing: Collection[GateOutcome] = frozenset({GateOutcome.FAILED})) -> bytes:
    """Workflow: JUnit document of a comparison's gates.

    Args:
        failing: outcomes that are failures; other undecided gates are skipped tests.
    """
    cases = [
        _Case(
            gate.text,
            failure=gate.summary if gate.outcome in failing else None,
            skipped=gate.summary if gate.outcome in UNDECIDED - set(failing) else None,
        )
        for gate in comparison.gates
    ]
    notes = [notice.message for notice in (*comparison.findings, *comparison.warnings)]
    return _document("compare", "regression", cases, "\n".join([comparison.summary, *notes]))


def checks_as_junit(preflight: Preflight) -> bytes:
    """Workflow: JUnit document of a preflight's checks; warnings pass and are listed in its output."""
    cases = [
        _Case(
            f"{check.check} {gpus_of_check(check)}".rstrip(),
            failure=check.detail if check.outcome is Outcome.FAIL else None,
            skipped=check.detail if check.outcome is Outcome.SKIPPED else None,
        )
        for check in preflight.checks
    ]
    warned = [
        f"{check.check} {gpus_of_check(check)}: {check.detail}"
        for check in preflight.checks
        if check.outcome is Outcome.WARN
    ]
    return _document(
        "preflight", "unfit", cases, "\n".join([*warned, *(notice.message for notice in preflight.warnings)])
    )


def gpus_of_check(check: CheckResult) -> str:
    """Workflow: GPUs of a preflight's check as text in its output: "gpu 3", "gpu 0 to 1", "gpu 0-7"."""
    if check.check == "peer_copy" and len(check.gpus) == 2:
        return f"gpu {check.gpus[0]} to {check.gpus[1]}"
    return f"gpu {number_runs(sorted(check.gpus), dash='-')}" if check.gpus else ""


def _document(name: str, kind: str, cases: Sequence[_Case], output: str) -> bytes:
    suite = Xml.Element(
        "testsuite",
        name=f"stepscope {name}",
        tests=str(len(cases)),
        failures=str(sum(case.failure is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.skipped is not None for case in cases)),
    )
    for case in cases:
        element = Xml.SubElement(suite, "testcase", classname=f"stepscope.{name}", name=_legal(case.name), time="0")
        if case.failure is not None:
            text = _legal(case.failure)
            Xml.SubElement(element, "failure", message=text, type=kind).text = text
        elif case.skipped is not None:
            Xml.SubElement(element, "skipped", message=_legal(case.skipped))
    Xml.SubElement(suite, "system-out").text = _legal(output)
    suites = Xml.Element("testsuites")
    suites.append(suite)
    Xml.indent(suites)
    content: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _legal(text: str) -> str:
    """The text without characters that XML 1.0 cannot express; names from traces may hold them."""
    return _NOT_IN_XML.sub("\ufffd", text)
