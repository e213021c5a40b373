"""Text of a verdict: head line, evidence, fix, next bottleneck, headroom and confidence, all from one analysis.

Terminal, `prof.summary()`, report and pages show these sentences. Every share in them is a share of the same time: of
training time, or of the profiled steps where those are all that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.analysis import CAUSE_OF_PART, Analysis, Headroom, JobTime, Pipeline, PredictedFix
from stepscope.core.text import numbers
from stepscope.core.text.evidence import evidence_sentence
from stepscope.core.text.wording import (
    NOTABLE_DISTORTION,
    SHOWN_FROM,
    action_words,
    cause_of_job,
    cause_title_of_job,
    device_words,
    is_on_cpu,
    mesh_words,
    reason_words,
    training_category_title,
)
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Reason

BOTTLENECK, NO_BOTTLENECK, UNKNOWN = "BOTTLENECK", "NO BOTTLENECK", "UNKNOWN"

HIGH_CONFIDENCE, MEDIUM_CONFIDENCE = 0.9, 0.6
FEW_STEPS = 8
NOTABLE_NEXT = 0.01
"""Share of the next bottleneck from which it is named."""
NOTABLE_BEFORE_WINDOW = 0.10
_MAX_FURTHER_ACTIONS = 2
_EXACT_SPEEDUP = 1.1
"""Smaller speed-ups have two decimals."""


@dataclass(frozen=True, slots=True)
class VerdictText:
    """A verdict as text.

    Attributes:
        label: BOTTLENECK | NO BOTTLENECK | UNKNOWN.
        title: the cause, with the ranks where it is not all; what bounds the job; what is missing.
        figures: of a bottleneck, number and meaning of each: share, milliseconds a step, how much was observed.
        evidence: in one or two sentences.
        remedies: name and text of each: Fix, Then, Record, Next.
        headroom: what a known change would save.
    """

    label: str
    title: str
    figures: list[tuple[str, str]]
    evidence: str
    remedies: list[tuple[str, str]]
    headroom: list[str]
    confidence: str

    @property
    def head(self) -> str:
        """The first line without its label: title and figures."""
        if not self.figures:
            return self.title
        share, *others = (f"{number} {meaning}" for number, meaning in self.figures)
        return f"{self.title}: {share}" + (f" ({', '.join(others)})" if others else "")

    def lines(self) -> list[str]:
        """All lines, as a terminal shows them."""
        lines = [f"{self.label}  {self.head}"]
        lines += [f"  {self.evidence}"] if self.evidence else []
        lines += [f"  {name:<{_NAME_WIDTH}}{text}" for name, text in self.remedies]
        lines += [f"{'' if at else 'HEADROOM':<{_NAME_WIDTH}}{text}" for at, text in enumerate(self.headroom)]
        return [*lines, f"Confidence {self.confidence}"]


_NAME_WIDTH = 10


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """One category of a job's time; `ms` is its part of the mean step, `ranks` those whose doing it is."""

    title: str
    cause: Cause | None
    share: float
    ms: float | None
    ranks: list[int] = field(default_factory=list)


def verdict_text(analysis: Analysis) -> VerdictText:
    """The verdict of an analysis as text."""
    verdict, confidence = analysis.verdict, _confidence(analysis)
    headroom = [_headroom(headroom) for headroom in verdict.headroom]
    if verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        record = [("Record", action_words(action)) for action in verdict.actions]
        return VerdictText(UNKNOWN, verdict.summary, [], "", record, headroom, confidence)
    evidence = _evidence(analysis)
    if is_bottleneck(analysis):
        ranks = verdict.ranks if len(verdict.ranks) < analysis.job.world_size else []
        title = _title(analysis) + (f" on {numbers.ranks_words(ranks)}" if ranks else "")
        remedies = [*_fixes(analysis), *_next(analysis)]
        return VerdictText(BOTTLENECK, title, _figures(analysis), evidence, remedies, headroom, confidence)
    headroom = headroom or [f"{action_words(action)} (gain not modelled)" for action in verdict.actions]
    return VerdictText(NO_BOTTLENECK, _no_bottleneck(analysis), [], evidence, [], headroom, confidence)


def is_bottleneck(analysis: Analysis) -> bool:
    """Whether the text calls the verdict's cause a bottleneck; of older documents, whether it is a loss."""
    verdict = analysis.verdict
    return verdict.cause not in HEALTHY_CAUSES if verdict.bottleneck is None else verdict.bottleneck


def headline(analysis: Analysis) -> str:
    """Text: the analysed job in one line: ranks, layout, device, steps and their mean, MFU."""
    job, time = analysis.job, analysis.job_time
    missing = "" if len(job.ranks) == job.world_size else f"{len(job.ranks)} of "
    parts = [f"{missing}{numbers.counted(job.world_size, 'rank')}"]
    parts += [layout] if job.world_size > 1 and (layout := mesh_words(job.mesh)) else []
    parts.append(device_words(job))
    profiled = numbers.counted(job.num_steps, "profiled step")
    step_ms = mean_step_ms(analysis)
    if of_training_time(time):
        median = "" if time is None else f" (median {time.median_step_ms:,.1f})"
        steps = "" if time is None else numbers.counted(time.num_steps, "step")
        parts += [f"{steps} of {step_ms:,.1f} ms{median}", f"{job.num_steps or 'none'} of them profiled"]
    else:
        parts.append(profiled if step_ms is None else f"{profiled} of {step_ms:,.1f} ms")
    if job.mfu is not None:
        hfu = "" if job.hfu is None or f"{job.hfu:.1%}" == f"{job.mfu:.1%}" else f", HFU {job.hfu:.1%}"
        parts[-1] += f" (MFU {job.mfu:.1%}{hfu})"
    return ", ".join(parts)


def of_training_time(time: JobTime | None) -> bool:
    """Whether shares are of the training time of all steps, not of the profiled ones alone."""
    return time is not None and "telemetry" in time.basis.split("+")


def time_name(analysis: Analysis) -> str:
    """Text: what the shares of a verdict are shares of: 'training time' or 'profiled time'."""
    return "training time" if of_training_time(analysis.job_time) else "profiled time"


def mean_step_ms(analysis: Analysis) -> float | None:
    """The step that the milliseconds of a verdict are part of."""
    return analysis.job.step_ms if analysis.job_time is None else analysis.job_time.mean_step_ms


def breakdown(analysis: Analysis) -> list[BreakdownRow]:
    """The job's time by category, the largest first; the verdict's loss has a row of its own."""
    verdict, time = analysis.verdict, analysis.job_time
    shares = {row.cause.value: row.fraction for row in analysis.root_causes} if time is None else dict(time.breakdown)
    ranks = {} if of_training_time(time) else {row.cause.value: row.ranks for row in analysis.root_causes}
    rows = [_row(analysis, name, share, ranks.get(name, [])) for name, share in shares.items() if share >= SHOWN_FROM]
    title, cause = _title(analysis), verdict.cause
    if any(row.title == title for row in rows) or verdict.share is None:
        return rows
    others = max(shares.get(cause.value, 0.0) - verdict.share, 0.0)
    rows = [row for row in rows if row.cause is not cause]
    rows.append(BreakdownRow(title, cause, verdict.share, _ms(analysis, verdict.share), verdict.ranks))
    rows += [_row(analysis, cause.value, others, [])] if others >= SHOWN_FROM else []
    return sorted(rows, key=lambda row: -row.share)


def goodput_line(time: JobTime) -> str | None:
    """Text: the parts of a run's wall-clock time in one line; None from traces alone."""
    goodput = time.goodput
    if goodput is None or not time.wall_ms:
        return None
    parts = {
        "training": goodput.training,
        "start-up": goodput.start_up,
        "profiling": goodput.profiling,
        "lost steps": goodput.lost_steps,
        "restarts": goodput.restarts,
        "after the last step": goodput.tail,
    }
    shown = [f"{name} {ms / time.wall_ms:.1%}" for name, ms in parts.items() if ms / time.wall_ms >= SHOWN_FROM]
    return f"Wall-clock time {time.wall_ms / 1e3:,.1f} s: {', '.join(shown)}"


def _row(analysis: Analysis, name: str, share: float, ranks: list[int]) -> BreakdownRow:
    cause = CAUSE_OF_PART.get(name) or (Cause(name) if name in frozenset(Cause) else None)
    return BreakdownRow(training_category_title(name, analysis.job), cause, share, _ms(analysis, share), ranks)


def _ms(analysis: Analysis, share: float) -> float | None:
    step_ms = mean_step_ms(analysis)
    return None if step_ms is None else share * step_ms


_TITLES_OF_REASONS = {
    Reason.GC: "Garbage collection",
    Reason.COMPILE: "Compilation",
}
"""Instead of the cause's title where the records of the steps name this part of it."""


def _title(analysis: Analysis) -> str:
    verdict = analysis.verdict
    if verdict.cause is Cause.UNEXPLAINED:
        return "Slow steps without a recorded cause"
    of_reason = _TITLES_OF_REASONS.get(verdict.reasons[0]) if len(verdict.reasons) == 1 else None
    in_part = any(evidence.metric.startswith("share_of_late_host_time") for evidence in verdict.evidence)
    return cause_title_of_job(verdict.cause, analysis.job) if of_reason is None or in_part else of_reason


def _figures(analysis: Analysis) -> list[tuple[str, str]]:
    job, time, share = analysis.job, analysis.job_time, _share(analysis)
    if share is None:
        return []
    figures = [(f"{share:.1%}", f"of {time_name(analysis)}")]
    has_records = of_training_time(time)
    is_unmarked = not analysis.trace_quality.steps_marked and job.num_steps == 1 and not has_records
    if (step_ms := mean_step_ms(analysis)) is not None:
        per_step = " ms" if is_unmarked else " ms per step"
        figures.append((f"{share * step_ms:,.1f}", f"of {step_ms:,.1f}{per_step}"))
    if time is not None and has_records:
        observed = time.num_steps if time.num_settled is None else time.num_settled
        figures.append((f"{observed:,}", f"of {numbers.counted(time.num_steps, 'step')} observed"))
    else:
        steps = "profiled window" if is_unmarked else numbers.form(job.num_steps, "profiled step")
        figures.append((f"{job.num_steps:,}", steps))
    return figures


def _share(analysis: Analysis) -> float | None:
    """Share of the verdict's cause; of older documents that of its root cause."""
    if analysis.verdict.share is not None or analysis.job_time is not None:
        return analysis.verdict.share
    return next((row.fraction for row in analysis.root_causes if row.cause is analysis.verdict.cause), None)


def _no_bottleneck(analysis: Analysis) -> str:
    job, share = analysis.job, _share(analysis)
    if is_on_cpu(job):
        head = "" if share is None else f" for {share:.1%} of {time_name(analysis)}"
        head = f"the CPU is busy in operators{head}"
    else:
        head = cause_of_job(analysis.verdict.cause, job) + ("" if job.mfu is None else f" at {job.mfu:.0%} MFU")
    largest = _largest_loss(analysis)
    return head if largest is None else f"{head}; largest loss {largest[1]:.1%} ({cause_of_job(largest[0], job)})"


_NO_LOSSES = HEALTHY_CAUSES | {Cause.UNEXPLAINED, Cause.BEFORE_WINDOW}


def _largest_loss(analysis: Analysis) -> tuple[Cause, float] | None:
    if analysis.verdict.next is not None:
        return analysis.verdict.next.cause, analysis.verdict.next.share
    losses = [row for row in breakdown(analysis) if row.cause is not None and row.cause not in _NO_LOSSES]
    return next(((row.cause, row.share) for row in losses if row.cause is not None), None)


def _evidence(analysis: Analysis) -> str:
    verdict, job = analysis.verdict, analysis.job
    sentences = [evidence_sentence(analysis)]
    if verdict.cause is Cause.PIPELINE_BUBBLE and analysis.pipeline is not None:
        sentences.insert(0, _pipeline(analysis.pipeline))
    if not is_bottleneck(analysis) and not is_on_cpu(job) and (share := _share(analysis)) is not None:
        sentences.insert(0, f"{share:.1%} of {time_name(analysis)} is {cause_of_job(verdict.cause, job)} work.")
    wasted = 0.0 if analysis.job_time is None else analysis.job_time.breakdown.get(Cause.WASTED_STEPS.value, 0.0)
    if verdict.cause is Cause.WASTED_STEPS and wasted < 1.0 and (step_ms := mean_step_ms(analysis)) is not None:
        sentences.append(f"Each useful step costs {step_ms / (1.0 - wasted):,.1f} ms of training time.")
    before = next((row for row in breakdown(analysis) if row.cause is Cause.BEFORE_WINDOW), None)
    if before is not None and before.share >= NOTABLE_BEFORE_WINDOW:
        sentences.append(f"{before.share:.1%} is waiting for what began before the trace.")
    _, _, files = verdict.summary.partition("; look at ")
    if files and not verdict.ranks and any(rank.rank_source == "order" for rank in analysis.ranks):
        sentences.append(f"Look at {files}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _pipeline(pipeline: Pipeline) -> str:
    stages = numbers.counted(pipeline.stages, "stage")
    micro_batches = numbers.counted(pipeline.micro_batches, "micro-batch")
    return f"The {pipeline.schedule} schedule of {stages} and {micro_batches} leaves ranks without work."


def _fixes(analysis: Analysis) -> list[tuple[str, str]]:
    """The first remedy with the step after it, then the others; where the cause is unknown, how to record it."""
    verdict = analysis.verdict
    unit = "useful step" if verdict.cause is Cause.WASTED_STEPS else "step"
    gain = None if verdict.fix is None else fix_words(verdict.fix, now_ms=mean_step_ms(analysis), unit=unit)
    if verdict.cause is Cause.UNEXPLAINED:
        record = [("Record", action_words(action)) for action in verdict.actions]
        return [("Fix", "none known" if gain is None else f"none known; without this loss {gain}"), *record]
    first = verdict.fix.action if verdict.fix is not None and verdict.fix.action else next(iter(verdict.actions), "")
    if not first:
        return [("Fix", "none known")]
    others = [action for action in verdict.actions if action != first][:_MAX_FURTHER_ACTIONS]
    then = "; then" if ":" in first else ":"
    after = " (step after it not predicted)" if gain is None else f"{then} {gain}"
    return [("Fix", f"{action_words(first)}{after}"), *(("Then", action_words(action)) for action in others)]


def fix_words(fix: PredictedFix, *, now_ms: float | None, unit: str = "step") -> str:
    """The step after a fix as text: 'about 41.0 ms per step, 4.6x faster (model error 15%)', or its bounds."""
    if fix.step_ms is None:
        if fix.interval_ms is None:
            return "a step of unknown length"
        now = "" if now_ms is None else f", now {now_ms:,.1f}"
        return f"{fix.interval_ms[0]:,.1f} to {fix.interval_ms[1]:,.1f} ms per {unit} (bounds{now})"
    error = "" if fix.error is None else f" (model error {_error_words(fix.error)})"
    return f"about {fix.step_ms:,.1f} ms per {unit}{_faster(fix.speedup)}{error}"


def _faster(speedup: float | None) -> str:
    if speedup is None:
        return ""
    return f", {speedup:.1f}x faster" if speedup >= _EXACT_SPEEDUP else f", {speedup:.2f}x faster"


def _error_words(error: float) -> str:
    return f"{abs(error):.0%}" if abs(error) >= 0.0995 else f"{abs(error):.1%}"


def _next(analysis: Analysis) -> list[tuple[str, str]]:
    following = analysis.verdict.next
    if following is None:
        return []
    if following.share < NOTABLE_NEXT:
        return [("Next", f"no other known loss above {NOTABLE_NEXT:.0%}")]
    reasons = f" ({', '.join(map(reason_words, following.reasons))})" if following.reasons else ""
    ms = _ms(analysis, following.share)
    per_step = "" if ms is None else f", {ms:,.1f} ms per step"
    cause = cause_of_job(following.cause, analysis.job)
    return [("Next", f"{cause}{reasons}: {following.share:.1%} of {time_name(analysis)}{per_step}")]


def _headroom(headroom: Headroom) -> str:
    words = f"about {headroom.step_ms:,.1f} ms per step{_faster(headroom.speedup)} ({headroom.basis})"
    return f"{action_words(headroom.action)}: {words}"


def confidence_word(confidence: float) -> str:
    """A confidence as text: high, medium or low."""
    if confidence >= HIGH_CONFIDENCE:
        return "high"
    return "medium" if confidence >= MEDIUM_CONFIDENCE else "low"


def _confidence(analysis: Analysis) -> str:
    job, time, verdict = analysis.job, analysis.job_time, analysis.verdict
    has_telemetry = of_training_time(time)
    parts = []
    if time is not None and has_telemetry:
        observed = time.num_steps if time.num_settled is None else time.num_settled
        parts.append(f"telemetry of {numbers.counted(observed, 'step')}")
    profiled = numbers.counted(job.num_steps, "profiled step") if job.num_steps else "no profiled steps"
    parts.append(profiled + _distortion(analysis))
    if not has_telemetry:
        parts.append("no telemetry of other steps")
    for layer in () if time is None else time.layers:
        if layer.layer == "counters" and layer.agrees is not None:
            parts.append("GPU counters agree" if layer.agrees else f"GPU counters disagree ({layer.note})")
        elif layer.layer == "trace" and layer.agrees is False and layer.note and not _is_distorted(analysis):
            parts.append(layer.note)
    if job.missing_ranks:
        what = "trace" if analysis.ranks else "record"
        parts.append(f"no {what} of {numbers.ranks_words(job.missing_ranks)}")
    if verdict.confidence < HIGH_CONFIDENCE:
        parts += _doubts(analysis)
    return f"{confidence_word(verdict.confidence)}: {', '.join(parts)}."


def _distortion(analysis: Analysis) -> str:
    distortion = analysis.trace_quality.profiler_distortion
    return "" if distortion is None else f" (profiling adds {max(distortion, 0.0):.0%})"


def _is_distorted(analysis: Analysis) -> bool:
    """Whether what profiling adds, which is given, is why profiled steps differ from the others."""
    return (analysis.trace_quality.profiler_distortion or 0.0) > NOTABLE_DISTORTION


def _doubts(analysis: Analysis) -> list[str]:
    """Why the confidence is not high."""
    verdict, time = analysis.verdict, analysis.job_time
    basis = None if verdict.fix is None else verdict.fix.basis
    doubts = []
    if basis == "bound":
        doubts.append("only bounds of the loss are known")
    if basis == "model":
        doubts.append("inferred: no record names the cause")
    if time is not None and time.num_settled is not None and time.num_settled < FEW_STEPS:
        doubts.append("few steps")
    if any(notice.code == "oversubscribed" for notice in analysis.warnings):
        doubts.append("more ranks than CPU cores")
    return doubts
