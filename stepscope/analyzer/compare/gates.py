"""Gates of `--fail-on`: the conditions it may name, and whether they are met.

METRIC:+N%   fails when the metric rises by more than N % of what it is in a
METRIC:-N%   fails when it falls by more
METRIC:+Nms  the same in milliseconds a step
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.analyzer.compare.parts import (
    COLLECTIVE_SPREAD,
    KERNEL_SPREAD,
    ComparisonBasis,
    Sides,
    cause_figures,
    estimate_rates,
    have_steps,
    heading_figures,
    kernel_figures,
)
from stepscope.analyzer.compare.run_record import RunRecord, bandwidth_figure, mfu_figure
from stepscope.analyzer.compare.statistics import (
    MIN_EFFECT,
    Estimate,
    Figures,
    RunFigure,
    estimate,
    judge,
    needed_runs,
    unknown,
)
from stepscope.core.documents.comparison import Change, Gate, GateOutcome
from stepscope.core.errors import UsageError
from stepscope.core.text.names import nearest
from stepscope.core.text.numbers import counted, significant
from stepscope.core.vocabulary.categories import TimeCategory
from stepscope.core.vocabulary.causes import Cause

_GATE = re.compile(r"\s*(?P<metric>.+?):(?P<sign>[+-])(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>%|ms)\s*(?:,|$)")
_THE_LIST = "docs/guides/compare.md lists the metrics"
_PREFIXES = ("kernel:", "collective:", "heading:", "cause:")
_RATES = frozenset({"mfu", "busbw"})
COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")

METRICS = (
    "step_time",
    "step_time_mean",
    "mfu",
    "busbw",
    *(cause.value for cause in Cause),
    *(heading.value for heading in TimeCategory if heading.value not in set(Cause)),
    "cause:NAME",
    "heading:NAME",
    "kernel:REGEX",
    "collective:KIND",
)
"""A name that is a cause and a heading means the cause: the time after blame."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed gate; `limit` is signed: positive limits a rise, negative a fall. `unit` is "%" or "ms"."""

    text: str
    metric: str
    limit: float
    unit: str


def parse_conditions(text: str, *, option: str = "--fail-on") -> list[Condition]:
    """The conditions of one option, separated by commas; a regular expression may hold commas itself.

    Raises:
        UsageError: a condition is malformed or names no metric.
    """
    conditions, place = [], 0
    while place < len(text):
        match = _GATE.match(text, place)
        if match is None:
            wrong = text[place:].strip() or text
            raise _wrong(wrong, "is no METRIC:+N%, METRIC:-N% or METRIC:+Nms", _THE_LIST, option=option)
        metric, unit = match["metric"], match["unit"]
        _check_metric(metric, unit, option)
        limit = float(match["sign"] + match["number"])  # "-0" stays negative: its sign says what is forbidden
        conditions.append(Condition(match[0].strip().rstrip(","), metric, limit, unit))
        place = match.end()
    if not conditions:
        raise _wrong(text, "names no condition", _THE_LIST, option=option)
    return conditions


def judge_gate(condition: Condition, sides: Sides, ground: ComparisonBasis, step: Estimate, mean: Estimate) -> Gate:
    """Hold the interval of the metric's difference against the limit."""
    found, unit = _measure(condition.metric, sides, ground, step, mean)
    if found is None:
        return Gate(
            text=condition.text,
            metric=condition.metric,
            difference=unknown(None, None),
            threshold=None,
            unit=unit,
            outcome=GateOutcome.NOT_MEASURED,
            needed_runs=None,
            summary=f"{condition.metric}: not measured in these runs",
        )
    limit = condition.limit
    if condition.unit == "%":
        limit *= _base(condition.metric, found, ground) / 100
    change, half = found.b - found.a, found.half_width()
    toward_limit = math.copysign(1.0, condition.limit) * change
    outcome = GateOutcome.INCONCLUSIVE
    if toward_limit - half > abs(limit):
        outcome = GateOutcome.FAILED
    elif toward_limit + half <= abs(limit):
        outcome = GateOutcome.PASSED
    needed = needed_runs(found, change - limit) if outcome is GateOutcome.INCONCLUSIVE else None
    is_rate = unit != "ms"
    rose, fell = (Change.HIGHER, Change.LOWER) if is_rate else (Change.SLOWER, Change.FASTER)
    smallest = MIN_EFFECT * (found.a if is_rate else ground.step_ms)
    return Gate(
        text=condition.text,
        metric=condition.metric,
        difference=judge(found, smallest=smallest, rose=rose, fell=fell),
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
        raise _wrong(f"{metric}:...ms", "is a rate", "give its limit in %", option=option)
    if prefix == "kernel:":
        try:
            re.compile(name)
        except re.error as error:
            raise _wrong(metric, f"is no regular expression ({error})", "mend the expression", option=option) from error
    elif prefix == "collective:":
        if name not in COLLECTIVE_KINDS:
            kinds = ", ".join(COLLECTIVE_KINDS)
            raise _wrong(metric, "is no kind of collective", f"give one of {kinds}", option=option)
    elif prefix == "heading:":
        if name not in set(TimeCategory):
            raise _wrong(metric, "is no heading", _meant(name, TimeCategory, prefix), option=option)
    elif prefix == "cause:":
        if name not in set(Cause):
            raise _wrong(metric, "is no cause", _meant(name, Cause, prefix), option=option)
    elif metric not in METRICS:
        raise _wrong(metric, "is no metric", _meant(metric, METRICS, ""), option=option)


def _meant(name: str, known: Iterable[str], prefix: str) -> str:
    near = nearest(name, known)
    return _THE_LIST if near is None else f"is {prefix}{near} meant? {_THE_LIST}"


def _wrong(text: str, why: str, what_next: str, *, option: str) -> UsageError:
    return UsageError(f"{text!r} {why}", where=option, what_next=what_next)


def _measure(
    metric: str, sides: Sides, ground: ComparisonBasis, step: Estimate, mean: Estimate
) -> tuple[Estimate | None, str]:
    """The metric's estimate (None where a side does not have it) and its unit."""
    if metric in ("step_time", "step_time_mean"):
        return step if metric == "step_time" else mean, "ms"
    if metric == "mfu":
        return estimate_rates(sides, mfu_figure, ground.assumed_spread), "fraction"
    if metric == "busbw":
        return estimate_rates(sides, bandwidth_figure, COLLECTIVE_SPREAD), "GB/s"
    prefix, _, name = metric.rpartition(":") if not metric.startswith("kernel:") else ("kernel", ":", metric[7:])
    if prefix == "kernel":
        return _estimate_kernels(sides, re.compile(name)), "ms"
    if prefix == "collective":
        return _estimate_transfers(sides, name), "ms"
    spread = ground.assumed_spread * ground.step_ms
    return estimate(*_part_figures(sides, prefix, name), assumed_spread=spread), "ms"


def _part_figures(sides: Sides, prefix: str, name: str) -> Figures:
    if prefix != "heading" and name in set(Cause):
        return cause_figures(sides, Cause(name))
    return heading_figures(sides, TimeCategory(name))


def _estimate_kernels(sides: Sides, pattern: re.Pattern[str]) -> Estimate | None:
    chosen = [[[k for k in run.analysis.roofline.kernels if pattern.search(k.name)] for run in side] for side in sides]
    if not any(kernels for side in chosen for kernels in side):
        return None
    by_step = have_steps(kernel for side in chosen for kernels in side for kernel in kernels)
    a, b = (kernel_figures(side, own, by_step=by_step) for side, own in zip(sides, chosen, strict=True))
    scale = max(sum(run.value for run in side) / len(side) for side in (a, b))
    return estimate(a, b, assumed_spread=KERNEL_SPREAD * scale)


def _estimate_transfers(sides: Sides, kind: str) -> Estimate | None:
    def total(run: RunRecord) -> float:
        rows = [c.transfer_ms or 0.0 for c in run.analysis.collectives if c.kind == kind]
        return sum(rows) / run.num_steps

    return _estimate_times([[total(run) for run in side] for side in sides], COLLECTIVE_SPREAD)


def _estimate_times(values: Sequence[Sequence[float]], spread: float) -> Estimate | None:
    if not any(v for side in values for v in side):
        return None
    a, b = ([RunFigure(v) for v in side] for side in values)
    return estimate(a, b, assumed_spread=spread * max(v for side in values for v in side))


def _base(metric: str, found: Estimate, ground: ComparisonBasis) -> float:
    """What a percentage is of: the metric in a; of a part that a hardly has, the step."""
    if metric in _RATES or abs(found.a) >= MIN_EFFECT * ground.step_ms:
        return abs(found.a)
    return ground.step_ms


def _summary(
    condition: Condition, found: Estimate, unit: str, limit: float, outcome: GateOutcome, needed: int | None
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
