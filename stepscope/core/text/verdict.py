"""Text of a verdict: head line, evidence, fix, next bottleneck, headroom and confidence, all from one analysis.

Terminal, `prof.summary()`, report and pages show these sentences. Every share in them is a share of the same time: of
training time, or of the profiled steps where those are all that is known.
"""

from __future__ import annotations

from math import isclose
from typing import NamedTuple

from stepscope.core.documents.analysis import (
    CAUSE_OF_PART,
    OVERLAPPING,
    Analysis,
    Headroom,
    Pipeline,
    PredictedFix,
    Verdict,
)
from stepscope.core.text import numbers
from stepscope.core.text.evidence import evidence_sentence
from stepscope.core.text.job_time import breakdown, mean_step_ms, ms_per_step, of_training_time, time_name
from stepscope.core.text.trace_quality import NOTABLE_DISTORTION
from stepscope.core.text.wording import (
    action_words,
    cause_of_job,
    in_sentence,
    is_on_cpu,
    reason_words,
    training_category_title,
)
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Reason

BOTTLENECK, NO_BOTTLENECK, UNKNOWN = "BOTTLENECK", "NO BOTTLENECK", "UNKNOWN"

ENDED = {Cause.HANG: "HANG", Cause.OUT_OF_MEMORY: "OUT OF MEMORY"}
"""Labels of jobs that ended by these causes."""

HIGH_CONFIDENCE, MEDIUM_CONFIDENCE = 0.9, 0.6
FEW_STEPS = 8
NOTABLE_NEXT = 0.01
"""Share of the next bottleneck from which it is named."""
NOTABLE_BEFORE_WINDOW = 0.10
_MAX_FURTHER_ACTIONS = 2
_EXACT_SPEEDUP = 1.1
"""Smaller speed-ups have two decimals."""


class VerdictText(NamedTuple):
    """A verdict as text.

    Attributes:
        label: BOTTLENECK | NO BOTTLENECK | UNKNOWN | HANG | OUT OF MEMORY.
        title: the cause, with the ranks where it is not all; what bounds the job; what is missing.
        figures: of a bottleneck, number and meaning of each: share, milliseconds a step, how much was observed.
        evidence: in one or two sentences.
        remedies: name and text of each: Fix, Then, Record, Next.
        headroom: what a known change would save.
        counters: that there are none, and what they would add; empty where there are.
    """

    label: str
    title: str
    figures: list[tuple[str, str]]
    evidence: str
    remedies: list[tuple[str, str]]
    headroom: list[str]
    confidence: str
    counters: str = ""

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
        lines.append(f"Confidence {self.confidence}")
        return [*lines, f"{'Counters':<{_NAME_WIDTH}}{self.counters}"] if self.counters else lines


_NAME_WIDTH = 10


def verdict_text(analysis: Analysis) -> VerdictText:
    """The verdict of an analysis as text."""
    layers = () if analysis.job_time is None else analysis.job_time.layers
    absent = next((layer.note for layer in layers if layer.layer == "counters" and not layer.used), "")
    return _verdict_text(analysis)._replace(counters=absent)


def _verdict_text(analysis: Analysis) -> VerdictText:
    verdict, confidence = analysis.verdict, _confidence(analysis)
    headroom = [_headroom(analysis, headroom, place) for place, headroom in enumerate(verdict.headroom)]
    if verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        record = [("Record", action_words(action)) for action in verdict.actions]
        return VerdictText(UNKNOWN, verdict.summary, [], "", record, headroom, confidence)
    evidence = _evidence(analysis)
    if verdict.cause in ENDED:
        fixes = _named_actions(verdict.actions) or [("Fix", "none known")]
        remedies = [*fixes, *_next(analysis)]
        return VerdictText(ENDED[verdict.cause], verdict.summary, [], evidence, remedies, headroom, confidence)
    if is_bottleneck(analysis):
        ranks = verdict.ranks if len(verdict.ranks) < analysis.job.world_size else []
        title = _title(analysis, verdict.cause, verdict.share)
        if verdict.cause is Cause.UNEXPLAINED:
            is_growth = Reason.STEPS_GET_LONGER in verdict.reasons
            title = "Steps that get longer" if is_growth else "Slow steps without a recorded cause"
        title += f" on {numbers.ranks_words(ranks)}" if ranks else ""
        remedies = [*_fixes(analysis), *_next(analysis)]
        return VerdictText(
            BOTTLENECK, title, _figures(analysis), evidence, remedies, headroom or _none(verdict), confidence
        )
    if verdict.cause not in HEALTHY_CAUSES:  # what limits the job's own work is not known
        title = f"no loss reaches 10% of {time_name(analysis)}{_largest_loss(analysis)}"
        return VerdictText(NO_BOTTLENECK, title, [], "", [], headroom, confidence)
    headroom = headroom or _other_headroom(analysis)
    title = f"{_own_work(analysis)}{_largest_loss(analysis)}"
    return VerdictText(NO_BOTTLENECK, title, [], evidence, [], headroom, confidence)


def is_bottleneck(analysis: Analysis) -> bool:
    """Whether the text calls the verdict's cause a bottleneck; of older documents, whether it is a loss."""
    verdict = analysis.verdict
    return verdict.cause not in HEALTHY_CAUSES if verdict.bottleneck is None else verdict.bottleneck


def _title(analysis: Analysis, cause: Cause, share: float | None) -> str:
    """Title of a loss: of the part of a cause that takes this share by the breakdown, else of the cause."""
    shares = {} if analysis.job_time is None else analysis.job_time.breakdown
    parts = [part for part, whole in CAUSE_OF_PART.items() if whole is cause and part in shares]
    category = next((part for part in parts if isclose(shares[part], share or 0.0)), cause.value)
    return training_category_title(category, analysis.job)


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


def _own_work(analysis: Analysis) -> str:
    """What bounds the work of a job without a bottleneck."""
    job, share = analysis.job, _share(analysis)
    if is_on_cpu(job):
        return "the CPU is busy in operators" + ("" if share is None else f" for {share:.1%} of {time_name(analysis)}")
    return cause_of_job(analysis.verdict.cause, job) + ("" if job.mfu is None else f" at {job.mfu:.0%} MFU")


def _largest_loss(analysis: Analysis) -> str:
    """Clause with the largest loss by the breakdown."""
    losses = [row for row in breakdown(analysis) if row.cause not in _NO_LOSSES]
    return f"; largest loss {losses[0].share:.1%} ({in_sentence(losses[0].title)})" if losses else ""


NOTABLE_OVERLAP = 0.05
"""Share of training time from which on the overlap of several causes is told."""

_NO_LOSSES = HEALTHY_CAUSES | {Cause.UNEXPLAINED, Cause.BEFORE_WINDOW}


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
    overlapping = 0.0 if analysis.job_time is None else analysis.job_time.breakdown.get(OVERLAPPING, 0.0)
    if overlapping >= NOTABLE_OVERLAP:
        sentences.append(
            f"{overlapping:.1%} more is lost to several causes at once: without one of them, the others take it."
        )
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
    if first.startswith(_DIAGNOSIS):  # it shows what to change, and gains nothing by itself
        then = "; without this loss"
    after = " (step after it not predicted)" if gain is None else f"{then} {gain}"
    return [("Fix", f"{action_words(first)}{after}"), *(("Then", action_words(action)) for action in others)]


_DIAGNOSIS = ("profile ", "profile(", "check ", "find ", "look ", "see ")
"""Beginnings of actions that only show what to change."""


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


def _named_actions(actions: list[str]) -> list[tuple[str, str]]:
    names = ["Fix", *["Then"] * _MAX_FURTHER_ACTIONS]
    return [(name, action_words(action)) for name, action in zip(names, actions, strict=False)]


def _next(analysis: Analysis) -> list[tuple[str, str]]:
    following = analysis.verdict.next
    if following is None:
        return []
    if following.share < NOTABLE_NEXT:
        return [("Next", f"no other known loss above {NOTABLE_NEXT:.0%}")]
    reasons = f" ({', '.join(map(reason_words, following.reasons))})" if following.reasons else ""
    ms = ms_per_step(analysis, following.share)
    per_step = "" if ms is None else f", {ms:,.1f} ms per step"
    title = in_sentence(_title(analysis, following.cause, following.share))
    return [("Next", f"{title}{reasons}: {following.share:.1%} of {time_name(analysis)}{per_step}")]


def _headroom(analysis: Analysis, headroom: Headroom, place: int) -> str:
    """A known change with the step after it, why, and the step after it and those before it."""
    step = f"about {headroom.step_ms:,.1f}"
    if headroom.interval_ms is not None:
        step = f"{headroom.interval_ms[0]:,.1f} to {headroom.interval_ms[1]:,.1f}"
    error = "" if headroom.error is None else f", error {_error_words(headroom.error)}"
    words = f"{step} ms per step{_faster(headroom.speedup)} ({headroom.basis}{error})"
    why = f"; {headroom.why}" if headroom.why else ""
    together = headroom.together_ms
    all_words = f"; {together:,.1f} ms with {_those_before(place)}" if place and together is not None else ""
    instead = "; gains nothing after those above" if place and together is None and _is_ordered(analysis) else ""
    return f"{action_words(headroom.action)}: {words}{all_words}{instead}{why}"


def _those_before(place: int) -> str:
    return "the one above" if place == 1 else f"the {place} above"


def _is_ordered(analysis: Analysis) -> bool:
    """Whether the steps after several changes are modelled; older documents lack them."""
    return any(headroom.together_ms is not None for headroom in analysis.verdict.headroom)


def _other_headroom(analysis: Analysis) -> list[str]:
    """What stands where no change is modelled to save much."""
    verdict = analysis.verdict
    return _none(verdict) or [f"{action_words(action)} (gain not modelled)" for action in verdict.actions]


def _none(verdict: Verdict) -> list[str]:
    """What is said where changes were modelled and none saves much."""
    if verdict.headroom_threshold is None:
        return []
    if verdict.bottleneck and verdict.cause is Cause.HOST_BOUND:
        return ["none in the kernels while the CPU is the limit"]
    return [f"none above {verdict.headroom_threshold:.0%} in the changes that are modelled"]


def confidence_word(confidence: float) -> str:
    """A confidence as text: high, medium or low."""
    if confidence >= HIGH_CONFIDENCE:
        return "high"
    return "medium" if confidence >= MEDIUM_CONFIDENCE else "low"


def _confidence(analysis: Analysis) -> str:
    job, time, verdict = analysis.job, analysis.job_time, analysis.verdict
    parts = []
    if time is not None and of_training_time(time):
        observed = time.num_steps if time.num_settled is None else time.num_settled
        parts.append(f"telemetry of {numbers.counted(observed, 'step')}")
    parts.append(_profiled_steps(analysis))
    if not of_training_time(time):
        parts.append("no telemetry of other steps")
    for layer in () if time is None else time.layers:
        if layer.layer == "counters" and layer.agrees is not None:
            parts.append("GPU counters agree" if layer.agrees else f"GPU counters disagree ({layer.note})")
    if job.missing_ranks:
        what = "trace" if analysis.ranks else "record"
        parts.append(f"no {what} of {numbers.ranks_words(job.missing_ranks)}")
    if verdict.confidence < HIGH_CONFIDENCE and verdict.cause not in ENDED:
        parts += _doubts(analysis)
    return f"{confidence_word(verdict.confidence)}: {', '.join(parts)}."


def _profiled_steps(analysis: Analysis) -> str:
    """The profiled steps, with what profiling adds to them, and how else they differ from other steps."""
    time, distortion = analysis.job_time, analysis.trace_quality.profiler_distortion
    if not analysis.job.num_steps:
        return "no profiled steps"
    notes = [] if distortion is None else [f"profiling adds {max(distortion, 0.0):.0%}"]
    if (distortion or 0.0) <= NOTABLE_DISTORTION:
        layers = () if time is None else time.layers
        notes += [layer.note for layer in layers if layer.layer == "trace" and layer.agrees is False and layer.note]
    return numbers.counted(analysis.job.num_steps, "profiled step") + (f" ({', '.join(notes)})" if notes else "")


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
    layers = time.layers if time else ()
    if not is_on_cpu(analysis.job) and not any(layer.layer == "counters" and layer.used for layer in layers):
        doubts.append("no GPU counters")
    if any(notice.code == "oversubscribed" for notice in analysis.warnings):
        doubts.append("more ranks than CPU cores")
    return doubts
