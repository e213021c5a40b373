"""A preflight in a terminal: a line per check over all GPUs, then the faults, then the result."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.documents.machine_checks import CheckResult, Outcome, Preflight, worst
from stepscope.core.text.numbers import listed, number_runs
from stepscope.workflow.junit import who_of

Line = tuple[str, str | None]
"""Text, and its colour where it has one."""

_COLOURS = {Outcome.FAIL: "red", Outcome.WARN: "yellow", Outcome.PASS: "green", Outcome.SKIPPED: None}
MAX_NAMES = 4
_SCALES = {"bytes/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}


def report_lines(preflight: Preflight) -> list[Line]:
    """Lines of the whole report."""
    lines: list[Line] = [(_head(preflight), None), ("", None)]
    lines += _table(preflight.checks)
    bad = [check for check in preflight.checks if check.outcome in (Outcome.WARN, Outcome.FAIL)]
    skipped = _skipped(preflight.checks)
    if bad:
        lines.append(("", None))
        lines += [(_sentence(check), _COLOURS[check.outcome]) for check in sorted(bad, key=_worst_first)]
    if skipped:
        lines += [("", None), *((line, None) for line in skipped)]
    return [*lines, ("", None), (_answer(preflight), _COLOURS[preflight.outcome])]


def _head(preflight: Preflight) -> str:
    names = sorted({gpu.name for gpu in preflight.gpus if gpu.name}) or ["GPU of unknown name"]
    what = f"{len(preflight.gpus)} x {' and '.join(names)}" if preflight.gpus else "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in preflight.versions.items())
    return f"{preflight.host}: {what}" + (f" ({versions})" if versions else "")


def _table(checks: Sequence[CheckResult]) -> list[Line]:
    rows: list[tuple[tuple[str, ...], str | None]] = [(("check", "result", "measured", "expected"), None)]
    for name in dict.fromkeys(check.check for check in checks):
        of_it = [check for check in checks if check.check == name]
        outcome = worst(check.outcome for check in of_it)
        if outcome is Outcome.SKIPPED:
            continue
        rows.append(((name, outcome.value, _range(of_it), _expected(of_it)), _COLOURS[outcome]))
    widths = [max(len(row[column]) for row, _ in rows) for column in range(4)]
    return [
        ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), colour)
        for row, colour in rows
    ]


def _range(checks: Sequence[CheckResult]) -> str:
    values = [check.value for check in checks if check.value is not None and check.unit]
    if not values:
        return ""
    unit = next(check.unit for check in checks if check.unit)
    low, high = _number(min(values), unit), _number(max(values), unit)
    return f"{low if low == high else f'{low} to {high}'} {_SCALES[unit][1]}"


def _expected(checks: Sequence[CheckResult]) -> str:
    check = next((check for check in checks if check.unit and check.expected is not None), None)
    if check is None or check.expected is None or check.fail_below is None:
        return ""
    return f"{_number(check.expected, check.unit)} (fails below {_number(check.fail_below, check.unit)})"


def _number(value: float, unit: str) -> str:
    scaled = value / _SCALES[unit][0]
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.3g}"


def _sentence(check: CheckResult) -> str:
    measured = f" {_number(check.value, check.unit)} {_SCALES[check.unit][1]}," if check.value and check.unit else ""
    who = f"{who_of(check)}  " if check.gpus else ""
    return f"{check.outcome.value.upper()}  {who}{check.check}:{measured} {check.detail}"


def _worst_first(check: CheckResult) -> bool:
    return check.outcome is not Outcome.FAIL


def _skipped(checks: Sequence[CheckResult]) -> list[str]:
    """Skipped checks, one line per reason."""
    reasons: dict[str, list[CheckResult]] = {}
    for check in checks:
        if check.outcome is Outcome.SKIPPED:
            reasons.setdefault(check.detail, []).append(check)
    lines = []
    for why, skipped in reasons.items():
        names = listed(dict.fromkeys(check.check for check in skipped), MAX_NAMES)
        lines.append("  ".join(filter(None, ("skipped", _gpus(skipped), names))) + f": {why}")
    return lines


def _gpus(checks: Sequence[CheckResult]) -> str:
    """GPUs of the checks, such as "gpu 0-1, 3"; empty where none has an index."""
    indices = sorted({index for check in checks for index in check.gpus})
    return f"gpu {number_runs(indices, dash='-')}" if indices else ""


def _answer(preflight: Preflight) -> str:
    total, seconds = len(preflight.gpus), f"{preflight.seconds:.0f} s"
    if preflight.outcome is Outcome.FAIL:
        failed = [check for check in preflight.checks if check.outcome is Outcome.FAIL]
        absent = "" if all(check.gpus for check in failed) else "a GPU that is not here"
        return f"preflight failed: {' and '.join(filter(None, (_gpus(failed), absent)))} ({seconds})"
    if preflight.outcome is Outcome.WARN:
        warned = [gpu.index for gpu in preflight.gpus if gpu.outcome is Outcome.WARN]
        return f"preflight passed with warnings: gpu {number_runs(warned, dash='-')} ({seconds})"
    return f"preflight passed: {total} of {total} ({seconds})"
