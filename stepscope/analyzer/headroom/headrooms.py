"""Headrooms of a job: the step after each known change, and after the changes one after the other, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyzer.headroom.changes import Changed, JobFacts, KnownChange
from stepscope.analyzer.headroom.communication import COMMUNICATION_CHANGES
from stepscope.analyzer.headroom.knobs import TORCH_KNOBS, Knobs
from stepscope.analyzer.headroom.step_model import StepModel, step_model
from stepscope.core.documents.analysis import Analysis, Headroom
from stepscope.core.vocabulary import Cause

KNOWN_CHANGES: tuple[KnownChange, ...] = COMMUNICATION_CHANGES
"""All changes that are modelled. To add one, write a module with its `ChangeModel`, and a row here."""

MIN_GAIN = 0.05
"""Least share of the step that a change has to save to be listed."""


def with_headroom(
    analysis: Analysis,
    facts: JobFacts,
    *,
    knobs: Knobs = TORCH_KNOBS,
    known: Sequence[KnownChange] = KNOWN_CHANGES,
) -> Analysis:
    """The analysis with the headrooms of its job, which change nothing else of the verdict.

    Args:
        facts: of the judged job.
    """
    step = _present_step(facts)
    if step is None or analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        return analysis
    return replace(analysis, verdict=replace(analysis.verdict, headroom=headrooms(step, facts, known, knobs)))


def headrooms(
    step: StepModel, facts: JobFacts, known: Sequence[KnownChange], knobs: Knobs = TORCH_KNOBS
) -> list[Headroom]:
    """The headrooms of a step in the order in which to make the changes: each time the one that gains most."""
    alone = {one: changed for one in known if (changed := one.model(step, facts)) is not None}
    left = {one: changed for one, changed in alone.items() if _gain(step, changed.step) >= MIN_GAIN}
    rows: list[Headroom] = []
    done: list[KnownChange] = []
    now = step
    while left:
        after = {one: changed for one in left if (changed := one.model(now, facts)) is not None}
        best = max(left, key=lambda one: _gain(now, after[one].step) if one in after else -1.0)
        gains = best in after and _gain(now, after[best].step) > 0.0
        is_instead = any(other.change in best.instead_of for other in done)
        now = after[best].step if gains else now
        rows.append(_row(best, left.pop(best), step, now if gains and not is_instead else None, knobs))
        done.append(best)
    return rows


def _gain(before: StepModel, after: StepModel) -> float:
    """Share of the first step that a change saves, by the middle of what is known."""
    return 1.0 - after.step_ms.middle / before.step_ms.middle if before.step_ms.middle > 0 else 0.0


def _row(one: KnownChange, alone: Changed, step: StepModel, together: StepModel | None, knobs: Knobs) -> Headroom:
    after = alone.step.step_ms
    return Headroom(
        action=knobs[one.change],
        step_ms=after.middle,
        speedup=step.base_ms / after.middle,
        error=alone.error,
        interval_ms=None if after.is_known else (after.least, after.most),
        change=one.change,
        why=alone.why,
        together_ms=None if together is None else together.step_ms.middle,
    )


def _present_step(facts: JobFacts) -> StepModel | None:
    """The step as it is; None without a device or a known step."""
    time = facts.analysis.job_time
    with_work = [view for view in facts.views.values() if view.floor is not None]
    if time is None or time.mean_step_ms <= 0:
        return None
    exposed = sum(cost.wait + cost.transfer + cost.unsplit for cost in facts.analysis.communication_by_dimension)
    if not with_work:  # ranks on CPUs, of whose operators no change is known
        exposed_ms, lost_ms = exposed * time.mean_step_ms, _lost_ms(facts.analysis)
        return step_model(None, base_ms=time.mean_step_ms, compute_ms=0.0, lost_ms=lost_ms, exposed_ms=exposed_ms)
    busiest = max(with_work, key=lambda view: 0 if view.floor is None else view.floor.kernels_ns)
    compute_ms = 0.0 if busiest.floor is None else busiest.floor.kernels_ns / 1e6
    hidden_ms = busiest.hidden_communication_ns / 1e6 / max(len(busiest.window.boundary_ns), 1)
    return step_model(
        busiest.step_kernels,
        base_ms=time.mean_step_ms,
        compute_ms=compute_ms,
        lost_ms=_lost_ms(facts.analysis),
        exposed_ms=exposed * time.mean_step_ms,
        hidden_ms=hidden_ms,
    )


_RECORDED = (
    Cause.DATA_LOADING,
    Cause.CHECKPOINT,
    Cause.EVALUATION,
    Cause.WASTED_STEPS,
    Cause.STRAGGLER,
    Cause.PIPELINE_BUBBLE,
    Cause.CONTENTION,
    "garbage_collection",
    "compilation",
)
"""Categories of losses that stay whatever changes in kernels and communication."""


def _lost_ms(analysis: Analysis) -> float:
    time = analysis.job_time
    return 0.0 if time is None else time.mean_step_ms * sum(time.breakdown.get(name, 0.0) for name in _RECORDED)
