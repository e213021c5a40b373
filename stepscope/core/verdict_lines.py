"""How does a verdict read as text? The same lines in a terminal and at the end of a training script."""

from __future__ import annotations

from stepscope.core.analysis import Evidence, Job, Verdict
from stepscope.core.counting import counted, form
from stepscope.core.digits import significant
from stepscope.core.words import MAX_NUMBER, UNKNOWN, cause_phrase, device_words, mesh_words, metric_words

_ONE = {"calls": "call", "batches": "batch", "times": "time"}
"""What a unit that counts things is called when it is one."""
_SMALLEST = 0.001
"""What is smaller but there is said to be."""


def headline(job: Job) -> str:
    """What was analysed, in a line: ranks, layout, GPU, steps, step time, MFU."""
    parts = [f"{len(job.ranks)} of {counted(job.world_size, 'rank')}"]
    layout = mesh_words(job.mesh)
    parts += [layout] if layout else []
    parts += [device_words(job)]
    parts += [counted(job.num_steps, "step")]
    if job.step_ms is not None:
        step = f"{job.step_ms:,.1f} ms a step"
        if job.unprofiled_step_ms is not None:
            step += f" ({job.unprofiled_step_ms:,.1f} ms unprofiled)"
        parts.append(step)
    if job.mfu is not None:
        parts.append(f"MFU {job.mfu:.1%}" + (f" (HFU {job.hfu:.1%})" if job.hfu is not None else ""))
    return ", ".join(parts)


def verdict_lines(verdict: Verdict) -> list[str]:
    """Cause and confidence; then what happened, its evidence, what to do, and what else was found."""
    lines = [f"VERDICT  {cause_phrase(verdict.cause)}  (confidence {verdict.confidence:.0%})", f"  {verdict.summary}"]
    for evidence in verdict.evidence:
        where = f"{form(len(evidence.ranks), 'rank')} {', '.join(map(str, evidence.ranks))}"
        ranks = f" on {where}" if evidence.ranks else ""
        lines.append(f"  - {metric_words(evidence.metric)}: {_value(evidence)}{ranks}")
    lines += [f"  > {action}" for action in verdict.actions]
    lines += [f"  also: {other.summary}" for other in verdict.secondary]
    return lines


def _value(evidence: Evidence) -> str:
    """The value in its unit, shares as percent, with the threshold it is judged by."""
    if evidence.unit == "ratio":
        threshold = "" if evidence.threshold is None else f" (named from {evidence.threshold:.0%})"
        return f"{evidence.value:.1%}{threshold}"
    threshold = "" if evidence.threshold is None else f" (threshold {_number(evidence.threshold, evidence.unit)})"
    number = _number(evidence.value, evidence.unit)
    unit = _ONE.get(evidence.unit, evidence.unit) if number == "1" else evidence.unit
    return f"{number} {unit}".rstrip() + threshold


_TENTHS_FROM = 1.0
"""Milliseconds below show digits that a tenth does not have."""


def _number(value: float, unit: str) -> str:
    """Milliseconds as in all other lines, to a tenth; else three significant digits, and never an exponent."""
    if not abs(value) <= MAX_NUMBER:
        return UNKNOWN
    if unit == "ms" and abs(value) >= _TENTHS_FROM:
        return f"{value:,.1f}"
    return f"<{_SMALLEST:g}" if 0 < value < _SMALLEST else significant(value)
