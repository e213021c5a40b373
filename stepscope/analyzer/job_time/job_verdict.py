"""Verdict of a job over all its training time: the largest loss, the step without it, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.counters.agreement import BusyShare, busy_share
from stepscope.analyzer.counters.alone import counters_alone
from stepscope.analyzer.counters.loss_reasons import CountedSteps
from stepscope.analyzer.counters.rank_signals import rank_signals
from stepscope.analyzer.goodput.attempts import attempt_records
from stepscope.analyzer.goodput.job import job_goodput
from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps
from stepscope.analyzer.job_time.captured_steps import CapturedSteps
from stepscope.analyzer.job_time.job_losses import HOST_CAUSES, JobLosses, job_losses
from stepscope.analyzer.job_time.judge import BOUND_CONFIDENCE, FEW_STEPS_CONFIDENCE, Judge
from stepscope.analyzer.job_time.loader import LoaderFindings, loader_findings
from stepscope.analyzer.job_time.loss import BOUND, REPLAY, TELEMETRY
from stepscope.analyzer.job_time.steps import HostLoss, JobSteps, job_steps
from stepscope.analyzer.job_time.training_time import TrainingTime, training_time
from stepscope.core.documents.analysis import (
    Analysis,
    EvidenceLayer,
    Goodput,
    JobTime,
    LayerVerdict,
    NextCause,
    PredictedFix,
    UnexplainedSteps,
    Verdict,
)
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.documents.run_directory import Attempt, RankSteps
from stepscope.core.documents.training_settings import LoaderSettings
from stepscope.core.text.numbers import counted
from stepscope.core.text.trace_quality import NOTABLE_DISTORTION
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Notice


class RunFacts(NamedTuple):
    """What a run directory tells of a job beside its traces.

    Attributes:
        records: of each rank all steps that it finished.
        attempts: as the manifest lists them.
        num_cpus: processors that a rank may use; None where unknown.
        other_captures: those besides the one that is analysed.
        light: replay of a light capture of a job of one rank; None where there is none.
        hosts: names by rank; unknown ones are left out.
        counters: of the ranks' own GPUs and hosts, by the nodes' agents; empty where no agent ran.
    """

    records: Sequence[RankSteps]
    attempts: Sequence[Attempt] = ()
    num_cpus: int | None = None
    other_captures: Sequence[CapturedSteps] = ()
    light: CalibratedSteps | None = None
    hosts: Mapping[int, str] = MappingProxyType({})
    counters: Sequence[RankCounters] = ()

    def steps(self, *, is_one_clock: bool = False) -> JobSteps | None:
        """The steps of all ranks, with what captures tell of their clocks; None without one."""
        is_one_clock = is_one_clock or any(capture.is_one_clock for capture in self.other_captures)
        return job_steps(self.records, self.hosts, is_one_clock=is_one_clock)


def with_job_time(
    analysis: Analysis,
    capture: CapturedSteps,
    facts: RunFacts | None,
    advice: Advice | None = None,
    steps: JobSteps | None = None,
) -> Analysis:
    """The analysis of a capture with the training time of its job, and the verdict on that; `steps` of its records."""
    advice = advice or Advice()
    if facts is None or steps is None:
        return _by_trace(analysis, capture)
    training = training_time(steps, facts.attempts, _loader(advice))
    if not training.num_settled:
        by_trace = _by_trace(analysis, capture)
        certain = min(by_trace.verdict.confidence, FEW_STEPS_CONFIDENCE)
        return replace(by_trace, verdict=replace(by_trace.verdict, confidence=certain))
    return _judged(analysis, training, [*facts.other_captures, capture], facts, advice)


def with_recorded_time(analysis: Analysis, facts: RunFacts, advice: Advice | None = None) -> Analysis:
    """The analysis of a job without a trace with its training time, and the verdict on what its step records show."""
    advice, steps = advice or Advice(), facts.steps()
    if steps is None:
        return analysis
    return _judged(analysis, training_time(steps, facts.attempts, _loader(advice)), [], facts, advice)


def _judged(
    analysis: Analysis,
    training: TrainingTime,
    captures: Sequence[CapturedSteps],
    facts: RunFacts,
    advice: Advice,
) -> Analysis:
    losses = job_losses(training, captures, facts.light)
    counters, busy = _counters(analysis, training, facts, advice), None
    alone = {"telemetry": _telemetry_alone(analysis, training, facts, advice)}
    if captures:
        alone["trace"] = _layer_verdict(_by_trace(analysis, captures[-1]).verdict)
    if counters is not None:
        alone["counters"] = counters_alone(counters.signals)
    if counters is not None:
        losses = counters.refined(losses)
        is_compared = bool(captures) and analysis.job.device_kind == "gpu"
        busy = busy_share(losses, counters) if is_compared else None
    loader = _loader_findings(training, losses, advice)
    are_contradicted = busy is not None and not busy.agrees
    judge = Judge(analysis, training, losses, loader, facts.num_cpus, advice, are_contradicted=are_contradicted)
    job_time = _job_time(training, losses, facts.attempts, has_trace=bool(captures))
    job_time = _with_counters(job_time, counters, busy, on_cpu=advice.on_cpu)
    job_time = replace(job_time, layers=[replace(one, verdict=alone.get(one.layer)) for one in job_time.layers])
    notices = [*analysis.warnings, *training.steps.notices, *_notices(training)]
    notices += [] if counters is None else counters.throttled()
    if busy is not None and are_contradicted:
        notices.append(Notice("counters_disagree", busy.note))
    verdict = judge.verdict()
    notices += _differing(verdict, job_time.layers)
    return replace(analysis, verdict=verdict, job_time=job_time, warnings=notices)


def _telemetry_alone(
    analysis: Analysis, training: TrainingTime, facts: RunFacts, advice: Advice
) -> LayerVerdict | None:
    """What the records of all steps say without a trace and without counters; None where they cannot tell."""
    unknown = replace(analysis.verdict, cause=Cause.INSUFFICIENT_EVIDENCE, confidence=BOUND_CONFIDENCE)
    untraced = replace(analysis, ranks=[], root_causes=[], what_if=[], verdict=unknown)
    losses = job_losses(training, [], None)
    loader = _loader_findings(training, losses, advice)
    return _layer_verdict(Judge(untraced, training, losses, loader, facts.num_cpus, advice).verdict())


def _layer_verdict(verdict: Verdict) -> LayerVerdict | None:
    if verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        return None
    return LayerVerdict(
        verdict.cause, verdict.reasons, verdict.confidence, verdict.ranks, verdict.bottleneck, verdict.share
    )


def _differing(verdict: Verdict, layers: Sequence[EvidenceLayer]) -> list[Notice]:
    """Notices of layers that alone name another loss with confidence, though nothing known speaks against them."""
    named = {verdict.cause, Cause.UNEXPLAINED, *(other.cause for other in verdict.secondary)}
    named |= set() if verdict.next is None else {verdict.next.cause}
    notices = []
    for layer in layers:
        alone = layer.verdict
        if alone is None or not alone.bottleneck or alone.cause in named or alone.confidence < BOUND_CONFIDENCE:
            continue
        is_refined = alone.cause is Cause.STRAGGLER and alone.ranks == verdict.ranks
        if layer.agrees is not False and not is_refined:
            share = "" if alone.share is None else f" ({alone.share:.0%})"
            text = f"the {layer.layer} alone would say {cause_phrase(alone.cause)}{share}"
            notices.append(Notice("layers_differ", f"{text}; all evidence joined says otherwise"))
    return notices


def _counters(analysis: Analysis, training: TrainingTime, facts: RunFacts, advice: Advice) -> CountedSteps | None:
    """The counters of the ranks beside their steps; None without any."""
    if not facts.counters:
        return None
    rows = {row.cause: row for row in analysis.root_causes}
    loader = _loader(advice)
    return CountedSteps(
        training,
        facts.records,
        rank_signals(facts.counters),
        {cause: row.ranks for cause, row in rows.items()},
        reasons_of={cause: row.reasons for cause, row in rows.items()},
        num_hosts=len(set(facts.hosts.values())),
        num_workers=None if loader is None else loader.num_workers,
        num_cpus=facts.num_cpus,
    )


WITHOUT_COUNTERS = (
    "none: with stepscope agent run on the node a run also records other processes on the GPU, clocks, throttling, CPU "
    "limits and storage waits, and the busy share of its GPUs checks the breakdown"
)
WITHOUT_COUNTERS_ON_CPU = "none: with stepscope agent run on the node a run also records CPU limits and storage waits"


def _with_counters(
    job_time: JobTime, counters: CountedSteps | None, busy: BusyShare | None, *, on_cpu: bool
) -> JobTime:
    """The job's time with the counters as a layer."""
    if counters is None:
        layer = EvidenceLayer("counters", False, None, WITHOUT_COUNTERS_ON_CPU if on_cpu else WITHOUT_COUNTERS)
        return replace(job_time, layers=[*job_time.layers, layer])
    note = "" if busy is None else busy.note
    layer = EvidenceLayer("counters", True, None if busy is None else busy.agrees, note or counters.coverage())
    return replace(job_time, basis=f"{job_time.basis}+counters", layers=[*job_time.layers, layer])


def _by_trace(analysis: Analysis, capture: CapturedSteps) -> Analysis:
    """Job time of the captured steps, which are all that is known."""
    shares = {row.cause.value: row.fraction for row in analysis.root_causes}
    step_ms = capture.step_ms
    verdict = analysis.verdict
    row = next((row for row in analysis.root_causes if row.cause is verdict.cause), None)
    others = [other for other in verdict.secondary if other.cause is not verdict.cause]
    is_known = verdict.cause is not Cause.INSUFFICIENT_EVIDENCE
    is_slow = is_known and verdict.cause not in HEALTHY_CAUSES
    is_slowed = verdict.cause in HOST_CAUSES and capture.on_device  # by the capture itself, nobody knows how much
    fix = _replayed(analysis, verdict.cause, float(step_ms.mean()), verdict.actions) if is_slow else None
    share = None if row is None else row.fraction
    if verdict.cause is Cause.STRAGGLER and share is not None and fix is not None and fix.step_ms is not None:
        share = max(share, 1.0 - fix.step_ms / float(step_ms.mean()))  # else a mean of the ranks, the straggler too
    verdict = replace(
        verdict,
        confidence=min(verdict.confidence, BOUND_CONFIDENCE) if is_slowed else verdict.confidence,
        bottleneck=is_slow if is_known else None,
        share=share,
        fix=fix,
        next=NextCause(others[0].cause, others[0].fraction) if others else None,
    )
    note = "the profiled steps are all that is known of the job"
    return replace(
        analysis,
        verdict=verdict,
        job_time=JobTime(
            num_steps=len(step_ms),
            training_ms=float(step_ms.sum()),
            mean_step_ms=float(step_ms.mean()),
            median_step_ms=float(np.median(step_ms)),
            wall_ms=None,
            basis="trace",
            breakdown=shares,
            goodput=None,
            layers=[EvidenceLayer("trace", True, None, note, _layer_verdict(verdict))],
        ),
    )


MOST_TIMES = 10.0
"""More times that of other steps is no step time any more: records and trace are of different steps."""

WITHOUT_TRACE = (
    "no profiled step can be analysed: a full capture of a few would divide the unexplained time into compute, "
    "communication, copies and CPU time"
)


def _replayed(analysis: Analysis, cause: Cause, step_ms: float, actions: Sequence[str]) -> PredictedFix | None:
    """The step without a cause as the replay predicts it, scaled to the job's step."""
    gain = next((gain for gain in analysis.what_if if gain.fix is cause), None)
    measured_ms = None if gain is None else gain.measured_step_ms or analysis.job.step_ms
    if gain is None or not measured_ms:
        return None
    unprofiled_ms = analysis.job.unprofiled_step_ms
    ratio = gain.step_ms / measured_ms
    if gain.calibrated_step_ms is not None and unprofiled_ms:
        ratio = min(gain.calibrated_step_ms / unprofiled_ms, 1.0)
    action = actions[0] if actions else gain.change
    if cause in HOST_CAUSES and analysis.job.device_kind == "gpu":  # the capture slowed what it would remove
        return PredictedFix(action, None, None, None, BOUND, (ratio * step_ms, step_ms))
    after = ratio * step_ms
    return PredictedFix(action, after, step_ms / after if after > 0 else None, abs(gain.replay_error), REPLAY)


def _job_time(training: TrainingTime, losses: JobLosses, attempts: Sequence[Attempt], *, has_trace: bool) -> JobTime:
    goodput = training.goodput
    records = attempt_records("", training.steps, training, attempts)
    of_job, _ = job_goodput("", records, on_device=training.steps.on_device)
    slow = training.slow
    unexplained = sum(
        loss.ms
        for loss in losses.losses
        if loss.cause is Cause.UNEXPLAINED and loss.basis == TELEMETRY and not loss.reasons
    )
    agrees = None if losses.distortion is None else abs(losses.distortion) <= NOTABLE_DISTORTION
    note = _difference(losses.distortion or 0.0) if agrees is False else ""
    trace = EvidenceLayer("trace", has_trace, agrees, note if has_trace else WITHOUT_TRACE)
    return JobTime(
        num_steps=training.num_steps,
        training_ms=training.training_ms,
        mean_step_ms=training.mean_step_ms,
        median_step_ms=training.median_step_ms,
        wall_ms=sum(getattr(goodput, name) for name in Goodput.__slots__),
        basis="telemetry+trace" if has_trace else TELEMETRY,
        breakdown=losses.breakdown(),
        goodput=goodput,
        layers=[
            EvidenceLayer(
                "telemetry",
                True,
                None,
                f"{training.num_settled} of {counted(training.num_steps, 'step')} settled",
            ),
            trace,
        ],
        unexplained=UnexplainedSteps(int(slow.is_slow.sum()), losses.share(unexplained), slow.every, slow.late_ranks)
        if unexplained > 0
        else None,
        trend=training.trend,
        num_settled=training.num_settled,
        rank_seconds=of_job.rank_seconds,
        gpu_time=of_job.time,
    )


def _difference(distortion: float) -> str:
    """Clause: how profiled steps differ from others."""
    if distortion < 1.0:
        return f"step time differs by {distortion:+.0%} from other steps"
    if distortion + 1.0 > MOST_TIMES:
        return f"step time is more than {MOST_TIMES:.0f} times that of other steps"
    return f"step time is {distortion + 1:.1f} times that of other steps"


def _notices(training: TrainingTime) -> list[Notice]:
    trend = training.trend
    if trend is None:
        return []
    with_it = f"; with them grow {', '.join(trend.grows_with)}" if trend.grows_with else ""
    text = (
        f"steps get longer: {trend.first_ms:,.1f} to {trend.last_ms:,.1f} ms, {trend.ms_per_step:+,.3g} ms a step"
        f" since step {trend.since_step}{with_it}"
    )
    return [Notice("steps_get_longer", text)]


def _loader(advice: Advice) -> LoaderSettings | None:
    """Settings of the loader that trains; None where there may be several kinds, or none is known."""
    loaders = [loader for loader in advice.settings.loaders if loader.trains]
    return loaders[0] if len({loader.num_workers for loader in loaders}) == 1 else None


def _loader_findings(training: TrainingTime, losses: JobLosses, advice: Advice) -> LoaderFindings | None:
    loader = _loader(advice)
    num_workers = None if loader is None else loader.num_workers
    for loss in losses.losses:
        if loss.recorded is HostLoss.DATA_WAIT:
            rank = loss.ranks[0] if loss.ranks else training.steps.ranks[0]
            wait_ms = loss.most_gain_ms
            return loader_findings(
                training, rank, losses.step_ms, wait_ms, num_workers=num_workers, options=advice.options
            )
    return None
