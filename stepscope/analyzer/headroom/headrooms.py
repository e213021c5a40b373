"""Headrooms of a job: the step after each known change, and after the changes one after the other, best first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.analyzer.headroom.attention import fused_attention
from stepscope.analyzer.headroom.changes import Changed, Effort, JobFacts, KnownChange
from stepscope.analyzer.headroom.communication import communication_changes, exposed_share, with_avoidable_communication
from stepscope.analyzer.headroom.fused_kernels import fused_kernels
from stepscope.analyzer.headroom.image_layout import channels_last
from stepscope.analyzer.headroom.knobs import TORCH_KNOBS, Knobs
from stepscope.analyzer.headroom.optimizer import fused_optimizer
from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.spare_memory import larger_batch, no_recomputation
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel, step_model
from stepscope.analyzer.headroom.tensor_core_sizes import aligned_sizes
from stepscope.analyzer.headroom.tensor_cores import autocast, tf32_convolutions, tf32_products
from stepscope.core.documents.analysis import Analysis, Headroom
from stepscope.core.hardware.gpu_catalogue import find_gpu
from stepscope.core.vocabulary import Cause, Change

KNOWN_CHANGES: tuple[KnownChange, ...] = (
    KnownChange(Change.TF32_PRODUCTS, tf32_products),
    KnownChange(Change.TF32_CONVOLUTIONS, tf32_convolutions),
    KnownChange(Change.AUTOCAST, autocast, contains=frozenset({Change.TF32_PRODUCTS, Change.TF32_CONVOLUTIONS})),
    KnownChange(Change.CHANNELS_LAST, channels_last),
    KnownChange(Change.ALIGNED_SIZES, aligned_sizes),
    KnownChange(Change.FUSED_ATTENTION, fused_attention),
    KnownChange(Change.FUSED_OPTIMIZER, fused_optimizer),
    KnownChange(Change.NO_RECOMPUTATION, no_recomputation),
    KnownChange(Change.FUSED_KERNELS, fused_kernels, Effort.A_COMPILER),
    KnownChange(Change.LARGER_BATCH, larger_batch, Effort.OTHER_TRAINING),
)
"""Changes of a rank's kernels that are modelled, in the order in which the model makes them, whatever the order in
which they gain most: element types before sizes and layouts, fusion of what is left at the end. To add one, write a
module with its `ChangeModel`, and a row here."""

MIN_GAIN = 0.05
"""Least share of the step that a change has to save to be listed."""


def with_headroom(
    analysis: Analysis,
    facts: JobFacts,
    *,
    knobs: Knobs = TORCH_KNOBS,
    known: Sequence[KnownChange] = KNOWN_CHANGES,
) -> Analysis:
    """The analysis with the headrooms of its job; of a job that communicates too much they may be its fix.

    Args:
        facts: of the judged job.
    """
    step = _present_step(facts)
    if step is None or analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        return analysis
    rows = headrooms(step, facts, [*communication_changes(facts), *known], knobs)
    is_modelled = bool(rows) or step.rates is not None
    verdict, rows = with_avoidable_communication(analysis.verdict, rows)
    verdict = replace(verdict, headroom=rows, headroom_threshold=MIN_GAIN if is_modelled else None)
    return replace(analysis, verdict=verdict)


def headrooms(
    step: StepModel, facts: JobFacts, known: Sequence[KnownChange], knobs: Knobs = TORCH_KNOBS
) -> list[Headroom]:
    """The headrooms of a step in the order in which to make the changes.

    Those that ask for least come first, of these each time the one that gains most; a change that contains others comes
    after them.
    """
    modelled = ((one, one.model(step, facts)) for one in known)
    alone = {one: changed for one, changed in modelled if changed is not None and (changed.knob or one.change in knobs)}
    left = [one for one, changed in alone.items() if _gain(step, changed.step) >= MIN_GAIN]
    done: list[KnownChange] = []
    now, rows = step, []
    while left:
        pending = {one.change for one in left}
        after = {one: _changed(step, facts, known, {*done, one}) for one in left if not one.contains & pending}
        best = max(after, key=lambda one: (-one.asks, _gain(now, after[one])))
        left.remove(best)
        gains = _gain(now, after[best]) > _NO_GAIN
        if gains:
            now = after[best]
            done.append(best)
        rows.append(_row(best, alone[best], step, now if gains else None, knobs))
    return rows


_NO_GAIN = 1e-6


def _changed(
    step: StepModel, facts: JobFacts, known: Sequence[KnownChange], chosen: Collection[KnownChange]
) -> StepModel:
    """The step after some changes, in the order of the model."""
    for one in known:
        changed = one.model(step, facts) if one in chosen else None
        step = step if changed is None else changed.step
    return step


def _gain(before: StepModel, after: StepModel) -> float:
    """Share of the step that a change saves, as is likely."""
    return 1.0 - after.likely_ms / before.likely_ms if before.likely_ms > 0 else 0.0


def _row(one: KnownChange, alone: Changed, step: StepModel, together: StepModel | None, knobs: Knobs) -> Headroom:
    after = alone.step.step_ms
    return Headroom(
        action=alone.knob or knobs[one.change],
        step_ms=alone.step.likely_ms,
        speedup=step.base_ms / alone.step.likely_ms,
        error=alone.error,
        interval_ms=None if after.is_known else (after.least, after.most),
        basis=alone.basis,
        change=one.change,
        why=alone.why,
        together_ms=None if together is None else together.likely_ms,
    )


def _present_step(facts: JobFacts) -> StepModel | None:
    """The step as it is; None without a device or a known step."""
    time = facts.analysis.job_time
    with_work = [view for view in facts.views.values() if view.floor is not None]
    if time is None or time.mean_step_ms <= 0:
        return None
    exposed = exposed_share(facts.analysis)
    if not with_work:  # ranks on CPUs, of whose operators no change is known
        exposed_ms, lost_ms = exposed * time.mean_step_ms, _lost_ms(facts.analysis)
        return step_model(
            None,
            None,
            base_ms=time.mean_step_ms,
            compute_ms=0.0,
            lost_ms=lost_ms,
            host_ms=NO_TIME,
            exposed_ms=exposed_ms,
        )
    busiest = max(with_work, key=lambda view: 0 if view.floor is None else view.floor.kernels_ns)
    compute_ms = 0.0 if busiest.floor is None else busiest.floor.kernels_ns / 1e6
    hidden_ms = busiest.hidden_communication_ns / 1e6 / max(len(busiest.window.boundary_ns), 1)
    gpu = find_gpu(facts.analysis.job.gpu)
    verdict = facts.analysis.verdict
    is_host_limit = bool(verdict.bottleneck) and verdict.cause is Cause.HOST_BOUND
    launches_late = bool(verdict.bottleneck) and verdict.cause in _HOST_CAUSES
    return step_model(
        busiest.step_kernels,
        None if gpu is None else KernelRates(gpu),
        base_ms=time.mean_step_ms,
        compute_ms=compute_ms,
        lost_ms=_lost_ms(facts.analysis),
        exposed_ms=exposed * time.mean_step_ms,
        hidden_ms=hidden_ms,
        host_ms=Span(time.mean_step_ms, time.mean_step_ms) if is_host_limit else _host_ms(facts),
        spares_host=not launches_late,
    )


UNRECORDED_HOST = (0.4, 0.65)
"""Host time of a step without a profiler / with one that records operators and shapes: 8 of 10 jobs on H200s lie in
between, by the time in which their host was through with a step on an empty launch queue."""


def _host_ms(facts: JobFacts) -> Span | None:
    """What the host of the slowest rank needs for a step without the profiler; None where unknown."""
    by_light = facts.host_ms
    captured = [view.host_pace_ns / 1e6 for view in facts.views.values() if view.host_pace_ns is not None]
    if not captured or (by_light is not None and by_light.is_known):
        return by_light
    by_full = Span(*(factor * max(captured) for factor in UNRECORDED_HOST))
    return by_full if by_light is None else Span(*(min(end, by_light.most) for end in by_full))


_HOST_CAUSES = frozenset({Cause.HOST_BOUND, Cause.SYNCHRONIZATION})

_RECORDED = (
    Cause.DATA_LOADING,
    Cause.CHECKPOINT,
    Cause.EVALUATION,
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
