"""Gates of `--fail-on`: parsing of conditions, and their verdicts.

METRIC:+N%   fails if the metric rises by more than N % of its value in a
METRIC:-N%   fails if it falls by more
METRIC:+Nms  the same in milliseconds per step
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analyzer.compare import parts, statistics
from stepscope.analyzer.compare.recorded import recorded_effect
from stepscope.analyzer.compare.run_record import bandwidth_figure, mfu_figure
from stepscope.core.documents.comparison import Change, Difference, Gate, GateOutcome
from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import counted, nearest, significant, unknown_name
from stepscope.core.vocabulary import Cause, TimeCategory

_GATE = re.compile(r"\s*(?P<metric>.+?):(?P<sign>[+-])(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>%|ms)\s*(?:,|$)")
_SEE_METRICS = "see Gate metrics (documentation)"
_PREFIXES = ("kernel:", "collective:", "heading:", "cause:")
_RATES = frozenset({"mfu", "busbw"})
_RECORDED = frozenset({Cause.CHECKPOINT.value, Cause.EVALUATION.value, Cause.DATA_LOADING.value})
"""Causes that the records of all steps show, where the profiled ones may hold none."""
COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")

METRICS = (
    "step_time",
    "step_time_mean",
    "mfu",
    "busbw",
    *(cause.value for cause in Cause),
    *(category.value for category in TimeCategory if category.value not in set(Cause)),
    "cause:NAME",
    "heading:NAME",
    "kernel:REGEX",
    "collective:KIND",
)
"""A name that is both a cause and a category means the cause: time after waits are attributed to their causes."""

_NAMES: dict[str | None, tuple[Sequence[str], str]] = {
    "heading:": (tuple(TimeCategory), "time category"),
    "cause:": (tuple(Cause), "cause"),
    None: (METRICS, "metric"),
}
"""Names that may follow each prefix, and what they are."""


@dataclass(frozen=True, slots=True)
class GateCondition:
    """One parsed gate; a positive limit limits a rise, a negative one a fall; `unit` is "%" or "ms"."""

    text: str
    metric: str
    limit: float
    unit: str


def parse_gate_conditions(text: str, *, option: str = "--fail-on") -> list[GateCondition]:
    """Parse the comma-separated gates of one option; a regular expression may contain commas.

    Raises:
        UsageError: a condition is malformed or names an unknown metric.
    """
    conditions, place = [], 0
    while place < len(text):
        match = _GATE.match(text, place)
        if match is None:
            rest = text[place:].strip() or text
            raise _usage_error(rest, "is not METRIC:+N%, METRIC:-N% or METRIC:+Nms", _SEE_METRICS, option=option)
        metric, unit = match["metric"], match["unit"]
        _check_metric(metric, unit, option)
        limit = float(match["sign"] + match["number"])  # "-0" stays negative: the sign is the direction
        conditions.append(GateCondition(match[0].strip().rstrip(","), metric, limit, unit))
        place = match.end()
    if not conditions:
        raise _usage_error(text, "names no condition", _SEE_METRICS, option=option)
    return conditions


def judge_gate(
    condition: GateCondition,
    sides: parts.Sides,
    basis: parts.ComparisonBasis,
    step: statistics.Effect,
    mean: statistics.Effect,
) -> Gate:
    """Judge a gate: the confidence interval of a metric's difference between two runs against the limit."""
    found, unit = _measure(condition.metric, sides, basis, step, mean)
    if found is None:
        return Gate(
            text=condition.text,
            metric=condition.metric,
            difference=Difference(None, None),
            threshold=None,
            unit=unit,
            outcome=GateOutcome.NOT_MEASURED,
            needed_runs=None,
            summary=f"{condition.metric}: not measured in these runs",
        )
    limit = condition.limit
    if condition.unit == "%":
        # of the metric in a, or of the step for a part that a hardly has
        is_small = condition.metric not in _RATES and abs(found.a) < statistics.MIN_EFFECT * basis.step_ms
        limit *= (basis.step_ms if is_small else abs(found.a)) / 100
    change, half = found.b - found.a, found.half_width()
    toward_limit = math.copysign(1.0, condition.limit) * change
    outcome = GateOutcome.INCONCLUSIVE
    if toward_limit - half > abs(limit):
        outcome = GateOutcome.FAILED
    elif toward_limit + half <= abs(limit):
        outcome = GateOutcome.PASSED
    needed = statistics.needed_runs(found, change - limit) if outcome is GateOutcome.INCONCLUSIVE else None
    is_rate = unit != "ms"
    rose, fell = (Change.HIGHER, Change.LOWER) if is_rate else (Change.SLOWER, Change.FASTER)
    smallest = statistics.MIN_EFFECT * (found.a if is_rate else basis.step_ms)
    return Gate(
        text=condition.text,
        metric=condition.metric,
        difference=statistics.judge_difference(found, smallest=smallest, rose=rose, fell=fell),
        threshold=limit,
        unit=unit,
        outcome=outcome,
        needed_runs=needed,
        summary=_summary(condition, found, unit, limit, outcome, needed),
    )


def _check_metric(metric: str, unit: str, option: str) -> None:
    prefix = next((p for p in _PREFIXES if metric.startswith(p)), None)
    name = metric.removeprefix(prefix or "")
    if metric in _RATES and unit == "ms":
        raise _usage_error(f"{metric}:...ms", "is a rate", "give its limit in %", option=option)
    if prefix == "kernel:":
        try:
            re.compile(name)
        except re.error as error:
            raise _usage_error(
                metric, f"is not a valid regular expression ({error})", "correct the expression", option=option
            ) from error
    elif prefix == "collective:":
        if name not in COLLECTIVE_KINDS:
            raise unknown_name("collective kind", name, COLLECTIVE_KINDS, where=option)
    else:
        known, what = _NAMES[prefix]
        if name not in known:
            near = nearest(name, known)
            near = None if near is None else f"{prefix or ''}{near}"
            raise unknown_name(what, metric, (), where=option, near=near, listing=_SEE_METRICS)


def _usage_error(text: str, why: str, what_next: str, *, option: str) -> UsageError:
    return UsageError(f"{text!r} {why}", where=option, what_next=what_next)


def _measure(
    metric: str, sides: parts.Sides, basis: parts.ComparisonBasis, step: statistics.Effect, mean: statistics.Effect
) -> tuple[statistics.Effect | None, str]:
    """The metric's estimate (None if a side does not have it) and its unit."""
    if metric in ("step_time", "step_time_mean"):
        return step if metric == "step_time" else mean, "ms"
    if metric == "mfu":
        return parts.estimate_rates(sides, mfu_figure, basis.assumed_spread), "fraction"
    if metric == "busbw":
        return parts.estimate_rates(sides, bandwidth_figure, parts.COLLECTIVE_SPREAD), "GB/s"
    is_traced = all(run.analysis.ranks for side in sides for run in side)
    prefix, _, name = metric.rpartition(":") if not metric.startswith("kernel:") else ("kernel", ":", metric[7:])
    if prefix == "kernel":
        return _estimate_kernels(sides, re.compile(name)), "ms"
    if prefix == "collective":
        return _estimate_transfers(sides, name), "ms"
    is_cause = prefix != "heading" and name in set(Cause)
    if is_cause and name in _RECORDED:
        spread = basis.assumed_spread * basis.step_ms
        if (effect := recorded_effect(sides, name, assumed_spread=spread)) is not None:
            return effect, "ms"
    if not is_traced:
        return None, "ms"
    figures = parts.cause_figures(sides, Cause(name)) if is_cause else parts.category_figures(sides, TimeCategory(name))
    return statistics.estimate_difference(*figures, assumed_spread=basis.assumed_spread * basis.step_ms), "ms"


def _estimate_kernels(sides: parts.Sides, pattern: re.Pattern[str]) -> statistics.Effect | None:
    chosen = [[[k for k in run.analysis.roofline.kernels if pattern.search(k.name)] for run in side] for side in sides]
    if not any(kernels for side in chosen for kernels in side):
        return None
    figures = parts.kernel_figures(sides, chosen)
    return statistics.estimate_difference(*figures, assumed_spread=parts.KERNEL_SPREAD * parts.larger_mean(figures))


def _estimate_transfers(sides: parts.Sides, kind: str) -> statistics.Effect | None:
    totals = [
        [sum(c.transfer_ms or 0.0 for c in run.analysis.collectives if c.kind == kind) / run.num_steps for run in side]
        for side in sides
    ]
    if not any(total for side in totals for total in side):
        return None
    a, b = ([statistics.RunFigure(total) for total in side] for side in totals)
    return statistics.estimate_difference(
        a, b, assumed_spread=parts.COLLECTIVE_SPREAD * max(total for side in totals for total in side)
    )


def _summary(
    condition: GateCondition,
    found: statistics.Effect,
    unit: str,
    limit: float,
    outcome: GateOutcome,
    needed: int | None,
) -> str:
    change, half = found.b - found.a, found.half_width()
    scale, shown = (100.0, "%") if unit == "fraction" else (1.0, unit)
    a, b = (significant(value * scale, 4) for value in (found.a, found.b))
    by, low, high, most = (significant(v * scale, sign="+") for v in (change, change - half, change + half, limit))
    figures = f"{condition.metric} {a} -> {b} {shown}, change {by} ({low} to {high}), limit {most} {shown}"
    if outcome is not GateOutcome.INCONCLUSIVE:
        return f"{figures}: {outcome}"
    more = f"{counted(needed, 'run')} a side" if needed else "more than 100 runs a side"
    return f"{figures}: inconclusive; it would take {more} at this spread"
