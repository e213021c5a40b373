"""Verdict of an analysis: the root causes and one line with evidence, confidence and remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyzer.blame.reasons import BOTTLENECK_THRESHOLD, VerdictInputs
from stepscope.analyzer.blame.remedies import COSTS, COSTS_ON_CPU, actions_for, profiler_action
from stepscope.analyzer.blame.root_causes import Resampled
from stepscope.analyzer.blame.unnamed_ranks import look_at
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER
from stepscope.analyzer.ledger.unrecorded_work import Missing
from stepscope.analyzer.missing_evidence import NOTABLE_SHARE, MissingEvidence
from stepscope.core.documents.analysis import AnalysedJob, RootCause, SecondaryCause, Verdict
from stepscope.core.text.numbers import counted
from stepscope.core.text.trace_quality import NOTABLE_ACTIVITY
from stepscope.core.text.wording import (
    busy_on_cpu,
    cause_of_job,
    cause_phrase,
    is_on_cpu,
    reason_words,
)
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Evidence, Reason

SECONDARY_THRESHOLD = 0.05
OVERSUBSCRIBED_CONFIDENCE = 0.5
UNTRUSTED_EMPTY_STEPS = 0.25
"""Share of marked steps without device activity above which there is no verdict: the profiler lost whole steps
(TraceLens#972: activities in 2 of 32 steps, reported as 0.04 % idle)."""
UNTRUSTED_UNLINKED = 0.2
"""Share of device activities without launch above which idle time has no cause; caps the loss of confidence."""

UNEXPLAINED_THRESHOLD = BOTTLENECK_THRESHOLD
"""Least unexplained loss with which a job is not called healthy: it may be any cause."""
GUESSED_CONFIDENCE = 0.5
"""Highest confidence in a cause that the traces suggest and do not show."""

_NEVER_NAMED = HEALTHY_CAUSES | {Cause.UNEXPLAINED, Cause.BEFORE_WINDOW}

_LIMITS = {
    Cause.COMPUTE_BOUND: "arithmetic",
    Cause.MEMORY_BOUND: "memory bandwidth",
    Cause.LATENCY_BOUND: "kernels that leave most of the GPU empty",
}


def judge(rows: Sequence[RootCause], resampled: Resampled, inputs: VerdictInputs) -> Verdict:
    """The verdict: the largest loss if it is at least a tenth of the step, else what bounds the compute."""
    if (doubt := _doubt(inputs)) is not None:
        return doubt
    by_cause = {row.cause: row for row in rows}
    losses = [row for row in rows if row.cause not in _NEVER_NAMED]
    unexplained = by_cause[Cause.UNEXPLAINED].fraction if Cause.UNEXPLAINED in by_cause else 0.0
    named = losses[0] if losses and losses[0].fraction >= BOTTLENECK_THRESHOLD else None
    if unexplained > 0.5 and (named is None or named.fraction < unexplained):
        return _unexplained(unexplained, inputs)
    unrecorded = next((one for one in inputs.missing if one.kind is Missing.DEVICE), None)
    if unrecorded is not None and unrecorded.share >= UNEXPLAINED_THRESHOLD:
        evidence = Evidence("unexplained", unrecorded.share, "ratio", UNEXPLAINED_THRESHOLD)
        return _insufficient(inputs, f"{unrecorded.unknown}: {unrecorded.what}", evidence)
    if named is not None and named.fraction < inputs.unexplained_loss:
        return _neither(by_cause[Cause.UNEXPLAINED], losses, inputs)
    if named is None:
        healthy = [row for row in rows if row.cause in HEALTHY_CAUSES]
        if not healthy:
            return _unexplained(unexplained, inputs)
        if inputs.unexplained_loss >= UNEXPLAINED_THRESHOLD:
            return _neither(by_cause[Cause.UNEXPLAINED], losses, inputs)
        return _healthy(healthy[0], by_cause, losses, resampled, inputs)
    is_guess = inputs.is_guess(named)
    confidence = _confidence(named.cause, resampled, inputs)
    if inputs.unexplained_loss >= UNEXPLAINED_THRESHOLD:  # it may be larger than the cause that was found
        confidence = round(confidence * named.fraction / (named.fraction + inputs.unexplained_loss), 3)
    if is_guess or Reason.NOT_STARTED in named.reasons:
        confidence = min(confidence, GUESSED_CONFIDENCE)
    return Verdict(
        cause=named.cause,
        reasons=named.reasons,
        confidence=confidence,
        summary=_summary(named, inputs),
        ranks=[] if is_guess else named.ranks,
        evidence=named.evidence,
        actions=_actions(named, inputs),
        secondary=_secondary(losses[1:], inputs),
    )


def _actions(row: RootCause, inputs: VerdictInputs) -> list[str]:
    if row.cause is Cause.PROFILER:
        headers = [view.header for view in inputs.views.values()]
        return [
            profiler_action(
                is_unmarked=_is_unmarked(inputs),
                with_shapes=any(header.with_shapes for header in headers),
                with_stacks=any(header.with_stacks for header in headers),
            )
        ]
    return actions_for(row.cause, row.reasons, inputs.own_remedies(row), advice=inputs.advice, share=row.fraction)


def _is_unmarked(inputs: VerdictInputs) -> bool:
    """Whether the whole trace is one window, as no step is marked in it."""
    return not inputs.quality.steps_marked and inputs.job.num_steps == 1


def _neither(row: RootCause, losses: Sequence[RootCause], inputs: VerdictInputs) -> Verdict:
    """Verdict where no cause is large enough to be named, but the unexplained loss is too large for a healthy job."""
    waited = f"{inputs.unexplained_loss:.1%} of the time devices waited or idled, and these traces do not show for what"
    missing = _main_gap(inputs, inputs.unexplained_loss)
    if missing is not None:
        waited = f"{missing.unknown}: {missing.what}"
    summary = f"{waited}{_where(row, inputs)}"
    evidence = Evidence("unexplained_loss", inputs.unexplained_loss, "ratio", UNEXPLAINED_THRESHOLD, ranks=row.ranks)
    unknown = _insufficient(inputs, summary, evidence)
    return replace(unknown, ranks=row.ranks, secondary=_secondary(losses, inputs))


def _healthy(
    row: RootCause,
    by_cause: Mapping[Cause, RootCause],
    losses: Sequence[RootCause],
    resampled: Resampled,
    inputs: VerdictInputs,
) -> Verdict:
    mfu = "" if inputs.job.mfu is None else f" at {inputs.job.mfu:.0%} MFU"
    largest = f"; largest loss {losses[0].fraction:.1%} ({cause_of_job(losses[0].cause, inputs.job)})" if losses else ""
    faster = ", ".join(reason_words(reason) for reason in row.reasons)
    faster = f"; yet it could be faster ({faster})" if faster else ""
    evidence = list(row.evidence)
    if inputs.job.mfu is not None:
        evidence.append(Evidence("mfu", inputs.job.mfu, "ratio"))
    confidence = _confidence(row.cause, resampled, inputs)
    before = by_cause.get(Cause.BEFORE_WINDOW)
    if before is not None and before.fraction >= UNEXPLAINED_THRESHOLD:
        confidence = round(confidence * (1.0 - before.fraction), 3)
        largest += f"; {before.fraction:.1%} is waiting for what began before the trace{_where(before, inputs)}"
    head = f"no bottleneck: {row.fraction:.1%} of profiled time is bound by {_LIMITS[row.cause]}{mfu}"
    if is_on_cpu(inputs.job):
        head = busy_on_cpu(row.fraction)
    return Verdict(
        cause=row.cause,
        reasons=row.reasons,
        confidence=confidence,
        summary=f"{head}{faster}{largest}",
        ranks=[],
        evidence=evidence,
        actions=actions_for(row.cause, row.reasons, inputs.own_remedies(row), advice=inputs.advice),
        secondary=_secondary(losses, inputs),
    )


def _doubt(inputs: VerdictInputs) -> Verdict | None:
    """The verdict where the quality of the traces forbids any other, or None."""
    quality = inputs.quality
    if quality.steps_without_device > UNTRUSTED_EMPTY_STEPS:
        share = quality.steps_without_device
        evidence = Evidence("steps_without_device", share, "ratio", UNTRUSTED_EMPTY_STEPS)
        lost = f"{share:.0%} of the marked steps have no device activity: the profiler lost them"
        remedy = "profile fewer steps, so that activity buffers do not overflow"
        return _insufficient(inputs, lost, evidence, remedy=remedy)
    if quality.largest_activity > NOTABLE_ACTIVITY and quality.steps_complete > 1:
        share = quality.largest_activity
        evidence = Evidence("largest_activity", share, "ratio", NOTABLE_ACTIVITY)
        several = f"a window of {quality.steps_complete} steps"
        damaged = f"one device activity takes {share:.0%} of {several}: its record is damaged"
        return _insufficient(inputs, damaged, evidence, remedy="record again; stepscope trace info shows the damage")
    return None


def _unexplained(share: float, inputs: VerdictInputs) -> Verdict:
    """Verdict where most of the time has no cause."""
    missing = _main_gap(inputs, share)
    summary = f"{share:.0%} of the time cannot be explained from these traces"
    if missing is not None:
        summary = f"{missing.unknown}: {missing.what}"
    return _insufficient(inputs, summary, Evidence("unexplained", share, "ratio", 0.5))


def _main_gap(inputs: VerdictInputs, unknown: float) -> MissingEvidence | None:
    """The missing evidence that leaves most unknown, if that is the better part of the share `unknown`."""
    largest = next(iter(inputs.missing), None)
    return largest if largest is not None and largest.share > unknown / 2 else None


def _insufficient(inputs: VerdictInputs, summary: str, evidence: Evidence, *, remedy: str | None = None) -> Verdict:
    """A verdict that names no cause, with how to record what is missing."""
    remedies = [remedy] if remedy is not None else []
    remedies += [one.remedy for one in inputs.missing if one.share >= NOTABLE_SHARE]
    return Verdict(
        cause=Cause.INSUFFICIENT_EVIDENCE,
        reasons=[],
        confidence=1.0 - _share_of_ranks(inputs.job) if inputs.job.missing_ranks else 0.5,
        summary=summary,
        ranks=[],
        evidence=[evidence],
        actions=list(dict.fromkeys(remedies)) or actions_for(Cause.INSUFFICIENT_EVIDENCE, []),
        secondary=[],
    )


def _summary(row: RootCause, inputs: VerdictInputs) -> str:
    cost = f"{row.fraction:.1%} of profiled time"
    if row.ms_per_step is not None and _is_unmarked(inputs):
        cost += f", {row.ms_per_step:,.1f} ms"
    elif row.ms_per_step is not None and inputs.job.step_ms is not None:
        cost += f", {row.ms_per_step:,.1f} ms of each {inputs.job.step_ms:,.1f} ms step"
    where = _where(row, inputs)
    if inputs.is_guess(row):
        where = "; it may as well be waiting for a late rank: arrivals are unknown"
    pipeline = ""
    if row.cause is Cause.PIPELINE_BUBBLE and inputs.pipeline is not None:
        p = inputs.pipeline
        pipeline = f" ({counted(p.stages, 'stage')}, {counted(p.micro_batches, 'micro-batch')}, {p.schedule})"
    on_cpu = COSTS_ON_CPU.get(row.cause) if is_on_cpu(inputs.job) else None
    costs = on_cpu or COSTS.get(row.cause) or f"{cause_phrase(row.cause)} takes"
    return f"{costs} {cost}{pipeline}{where}"


def _where(row: RootCause, inputs: VerdictInputs) -> str:
    """Clause with the ranks to look at, unless it is all of them."""
    return look_at(row.ranks, inputs.views) if 0 < len(row.ranks) < len(inputs.job.ranks) else ""


def _secondary(losses: Sequence[RootCause], inputs: VerdictInputs) -> list[SecondaryCause]:
    return [
        SecondaryCause(row.cause, row.fraction, _summary(row, inputs))
        for row in losses
        if row.fraction > SECONDARY_THRESHOLD
    ][:3]


def _confidence(cause: Cause, resampled: Resampled, inputs: VerdictInputs) -> float:
    """Share of resamples in which the cause ranks first among its kind, lowered for missing data."""
    rivals = [
        code
        for code, other in enumerate(CAUSE_ORDER)
        if (other in HEALTHY_CAUSES if cause in HEALTHY_CAUSES else other not in _NEVER_NAMED)
    ]
    first = resampled[:, rivals].argmax(axis=1)
    confidence = float(np.mean(np.array(rivals)[first] == CAUSE_CODE[cause]))
    confidence *= _share_of_ranks(inputs.job)
    confidence *= 1.0 - min(inputs.quality.unlinked, UNTRUSTED_UNLINKED)
    confidence *= 1.0 - min(inputs.quality.lost_launches, UNTRUSTED_UNLINKED)
    if inputs.job.num_steps < 2:
        confidence *= 0.7  # one step: no spread between steps to resample
    if inputs.oversubscribed:
        confidence = min(confidence, OVERSUBSCRIBED_CONFIDENCE)
    return round(confidence, 3)


def _share_of_ranks(job: AnalysedJob) -> float:
    """Share of the job's ranks with a usable trace."""
    return len(job.ranks) / job.world_size
