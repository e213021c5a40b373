"""Analysis of a job without a trace: what the records of its steps show, and what only a capture would tell."""

from __future__ import annotations

from collections.abc import Collection

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.job_time.job_verdict import WITHOUT_TRACE, RunFacts, with_recorded_time
from stepscope.analyzer.job_time.steps import uses_gpu
from stepscope.analyzer.slow_settings import with_slow_settings
from stepscope.analyzer.summaries import JobContext, oversubscribed_notice
from stepscope.core.documents.analysis import AnalysedJob, Analysis, Roofline, RooflineCoverage, TraceQuality, Verdict
from stepscope.core.vocabulary import Cause, Notice

UNKNOWN_CONFIDENCE = 0.5
CAPTURE_ACTION = (
    "profile some steps: stepscope.profile() captures three of a run, stepscope capture some of a running job"
)


def analyse_untraced_job(
    facts: RunFacts, context: JobContext, *, world_size: int, missing_ranks: Collection[int] = ()
) -> Analysis:
    """Analyse a job by the records of its steps alone.

    Args:
        context: what the run directory tells beside them.
        missing_ranks: ranks without records.
    """
    job = AnalysedJob(
        world_size=world_size,
        ranks=[rank for rank in range(world_size) if rank not in missing_ranks],
        missing_ranks=sorted(missing_ranks),
        mesh=context.mesh,
        gpu=None,
        num_steps=0,
        step_ms=None,
        unprofiled_step_ms=context.unprofiled_step_ms,
        device_kind=_device_kind(facts),
        simulated_compute=context.simulated_compute,
    )
    notices = [*context.notices, Notice("no_trace", WITHOUT_TRACE)]
    if job.device_kind == "cpu" and not job.simulated_compute and context.num_cpus and world_size > context.num_cpus:
        notices.append(oversubscribed_notice(context))
    analysis = Analysis(
        job=job,
        trace_quality=TraceQuality(),
        ledger={},
        ranks=[],
        root_causes=[],
        verdict=Verdict(
            cause=Cause.INSUFFICIENT_EVIDENCE,
            reasons=[],
            confidence=UNKNOWN_CONFIDENCE,
            summary=WITHOUT_TRACE,
            ranks=[],
            evidence=[],
            actions=[CAPTURE_ACTION],
            secondary=[],
        ),
        what_if=[],
        collectives=[],
        pipeline=None,
        roofline=Roofline(RooflineCoverage(model=0.0, by_name=0.0, none=1.0), []),
        warnings=notices,
    )
    advice = Advice(context.settings, on_cpu=job.device_kind == "cpu", affinity=context.cpu_affinity)
    return with_slow_settings(with_recorded_time(analysis, facts, advice), context.slow_settings)


def _device_kind(facts: RunFacts) -> str | None:
    """Device of the job by its records; None without any."""
    if not any(rank.steps for rank in facts.records):
        return None
    return "gpu" if uses_gpu(facts.records) else "cpu"
