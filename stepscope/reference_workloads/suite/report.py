"""Report of a suite: confusion.json for programs, confusion.md for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from stepscope import __version__
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.suite import score as scoring
from stepscope.reference_workloads.suite.results import SuiteFolder
from stepscope.store.files import write_whole

SCHEMA = "stepscope.suite/1"
JSON_FILE = "confusion.json"
TEXT_FILE = "confusion.md"

_MISSED = (scoring.CaseOutcome.WRONG_CAUSE, scoring.CaseOutcome.WRONG_REASON, scoring.CaseOutcome.FAILED)


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Report of a suite: scores of the verdicts on labelled runs.

    Attributes:
        device: the GPU's name, or "cpu".
        accuracy: share of scored cases whose cause was called right; None when none was scored.
        matrix: number of cases by expected cause, then by the cause that was called.
        predictions_right, predictions_known: what-if's predictions within a tenth, of those that are not bounds; one
            that is missing where the cause was called is not right.
    """

    preset: str
    command: str
    device: str | None
    version: str
    accuracy: float | None
    num_scored: int
    matrix: dict[str, dict[str, int]]
    predictions_right: int
    predictions_known: int
    is_complete: bool
    cases: list[scoring.CaseScore]
    warnings: list[dict[str, str]]
    schema: str = SCHEMA


def make_suite_report(
    scores: Sequence[scoring.CaseScore], *, preset: str, command: str, device: str | None, is_complete: bool
) -> SuiteReport:
    """Make the report of a suite from its cases' scores."""
    judged = [row.prediction.is_right for row in scores if row.prediction is not None]
    known = [is_right for is_right in judged if is_right is not None]
    warnings = [
        {"code": "missed", "message": f"{row.case}: {row.outcome}: {row.why}"}
        for row in scores
        if row.outcome in _MISSED
    ]
    warnings += [
        {"code": "no_prediction", "message": f"{row.case}: {row.prediction.why_none}"}
        for row in scores
        if row.prediction is not None and row.prediction.why_none is not None
    ]
    warnings += [
        {"code": "control_failed", "message": f"{row.case}: its control failed: {row.control_error}"}
        for row in scores
        if row.control_error is not None
    ]
    if not is_complete:
        warnings.append({"code": "incomplete", "message": "not all cases have been run; the same command goes on"})
    return SuiteReport(
        preset=preset,
        command=command,
        device=device,
        version=__version__,
        accuracy=scoring.accuracy(scores),
        num_scored=sum(row.outcome in scoring.SCORED for row in scores),
        matrix=scoring.confusion(scores),
        predictions_right=sum(known),
        predictions_known=len(known),
        is_complete=is_complete,
        cases=list(scores),
        warnings=warnings,
    )


def write_suite_report(report: SuiteReport, folder: SuiteFolder) -> None:
    """Write the suite's report as confusion.md and confusion.json.

    Raises:
        DataError: the folder cannot be written.
    """
    write_whole(folder.path / JSON_FILE, encode_suite_report(report))
    write_whole(folder.path / TEXT_FILE, suite_report_markdown(report).encode())


def encode_suite_report(report: SuiteReport) -> bytes:
    """Encode the suite's report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)


def suite_report_markdown(report: SuiteReport) -> str:
    """The suite's report as Markdown."""
    parts = [_head(report), _matrix(report), _case_table(report), _prediction_table(report), _misses(report)]
    cases: dict[str, list[str]] = {}
    for row in report.cases:
        if row.control_error is not None:
            cases.setdefault(row.control_error, []).append(row.case)
    lines = [f"- control of {', '.join(names)}: {error}" for error, names in cases.items()]
    parts.append("## Controls that failed\n\n" + "\n".join(lines) if lines else "")
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(report: SuiteReport) -> str:
    overheads = [row.overhead for row in report.cases if row.overhead is not None]
    lines = [
        f"# Suite `{report.preset}` on {report.device or 'unknown device'}",
        "",
        f"Made by `{report.command}`, stepscope {report.version}.",
        "",
        f"- cause called right: {_percent(report.accuracy)} of {counted(report.num_scored, 'labelled run')}",
        f"- what-if's step within {scoring.GOOD_PREDICTION:.0%} of the control's: "
        + (f"{report.predictions_right} of {report.predictions_known}" if report.predictions_known else "none was due"),
    ]
    if overheads:
        lines.append(f"- profiling slows a captured step by {median(overheads):+.1%} (median of the runs)")
    if not report.is_complete:
        lines.append("- not all cases have been run yet")
    return "\n".join(lines)


def _matrix(report: SuiteReport) -> str:
    columns = sorted({called for line in report.matrix.values() for called in line})
    if not columns:
        return ""
    rows = [
        [wanted, *(str(line.get(called, "")) for called in columns)] for wanted, line in sorted(report.matrix.items())
    ]
    return "## Expected against called\n\n" + _table(["expected \\ called", *columns], rows)


def _case_table(report: SuiteReport) -> str:
    rows = [
        [
            row.case,
            " or ".join(_with_reasons(cause, row.expected_reasons.get(cause, [])) for cause in row.expected),
            "" if row.verdict is None else _with_reasons(row.verdict, row.reasons),
            row.outcome,
            _milliseconds(row.step_ms),
            "" if row.severity is None else f"{row.severity:.2f}x",
            "" if row.overhead is None else f"{row.overhead:+.1%}",
        ]
        for row in report.cases
    ]
    header = ["case", "expected", "verdict", "outcome", "step", "severity", "profiling"]
    note = "Step: without the profiler. Severity: that step / the control's. Profiling: captured / that step - 1."
    return f"## Cases\n\n{_table(header, rows)}\n\n{note}"


def _prediction_table(report: SuiteReport) -> str:
    rows = [_prediction_row(row.case, row.prediction) for row in report.cases if row.prediction is not None]
    if not rows:
        return ""
    header = ["case", "removed", "predicted", "control, captured", "error", "calibrated", "control", "error", ""]
    note = "Judged is the calibrated error, and the captured one where there is none; a missing prediction is wrong."
    return f"## What-if against the control\n\n{_table(header, rows)}\n\n{note}"


def _prediction_row(case: str, prediction: scoring.SuitePrediction) -> list[str]:
    judged = "bound" if prediction.is_bound else {True: "right", False: "wrong", None: ""}[prediction.is_right]
    return [
        case,
        prediction.fix,
        _milliseconds(prediction.step_ms) or "none",
        _milliseconds(prediction.control_ms),
        "" if prediction.error is None else f"{prediction.error:+.1%}",
        _milliseconds(prediction.calibrated_ms),
        _milliseconds(prediction.unprofiled_control_ms),
        "" if prediction.calibrated_error is None else f"{prediction.calibrated_error:+.1%}",
        judged,
    ]


def _misses(report: SuiteReport) -> str:
    parts = []
    for title, outcomes in (
        ("Misses", _MISSED),
        ("Runs that their fault ended", (scoring.CaseOutcome.ENDED_AS_EXPECTED,)),
        ("Refused", (scoring.CaseOutcome.REFUSED,)),
    ):
        rows = [row for row in report.cases if row.outcome in outcomes]
        if rows:
            lines = [f"- {row.case}: {row.outcome}: {row.why}{_left(row)}" for row in rows]
            parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _left(row: scoring.CaseScore) -> str:
    return f" (left {', '.join(row.artefacts)})" if row.artefacts else ""


def _with_reasons(cause: str, reasons: Sequence[str]) -> str:
    return f"{cause} ({', '.join(reasons)})" if reasons else cause


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
