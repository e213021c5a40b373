"""Panels of the verdict: trace quality, verdict with evidence, time by category, what fixes would save, warnings."""

from __future__ import annotations

from stepscope.analyzer.what_if.training_step import training_step_ms
from stepscope.core.documents.analysis import AnalysedJob, Analysis, RootCause, Verdict, WhatIf
from stepscope.core.text.evidence import evidence_value, threshold_value
from stepscope.core.text.job_time import BreakdownRow, breakdown, goodput_line, of_training_time, time_name
from stepscope.core.text.numbers import UNKNOWN, counted, milliseconds, percent
from stepscope.core.text.trace_quality import clean_words, find_problems, quality_lines
from stepscope.core.text.verdict import VerdictText, verdict_text
from stepscope.core.text.wording import (
    cause_title_of_job,
    evidence_span,
    metric_words,
    reason_words,
)
from stepscope.core.vocabulary import HEALTHY_CAUSES, Evidence, Reason, TimeCategory
from stepscope.workflow.panels import elements as html
from stepscope.workflow.panels.palette import category_of_cause

MAX_ROWS = 20
MAX_WARNINGS = 30
MIN_SHOWN_SHARE = 0.0005
"""Less reads as 0.0%."""


def quality_block(analysis: Analysis) -> html.Element:
    """Panel of trace quality, above the verdict, so that no number is read without."""
    lines = quality_lines(analysis.trace_quality)
    counted = html.tag("div", " ".join(f"{about}: {line}." for about, line in lines.items()), class_="ss-note")
    problems = find_problems(analysis.job, analysis.trace_quality)
    if problems:
        body: list[html.Child] = [
            html.tag("strong", "Read the numbers with this in mind"),
            html.tag("ul", (html.tag("li", problem) for problem in problems), class_="ss-problems"),
        ]
    else:
        body = [
            html.tag("span", "✓", class_="ss-tick", aria_hidden="true"),
            html.tag("strong", "Trace quality: clean."),
            html.tag("span", clean_words(analysis.trace_quality)),
        ]
    class_ = "ss-quality-doubt" if problems else "ss-quality-clean"
    return html.tag("section", body, counted, id="quality", class_=class_, aria_label="Trace quality")


def verdict_card(analysis: Analysis) -> html.Element:
    """Panel of the verdict: the cause, its size, the fix, what comes next, headroom, confidence and evidence."""
    verdict, text = analysis.verdict, verdict_text(analysis)
    source = (
        f"The largest loss if it is at least 10% of {time_name(analysis)}; else what bounds the job's own work. "
        "Headroom is what a known change to the same work would save; it is not lost time."
    )
    overline = [
        html.tag("span", text.label.capitalize(), class_="ss-overline"),
        html.info(source, about="The verdict."),
    ]
    evidence = html.tag("p", text.evidence, class_="ss-verdict-summary") if text.evidence else None
    return html.tag(
        "section",
        html.tag("div", overline, class_="ss-panel-head"),
        html.tag("h2", _capitalised(text.title), id="verdict-title", class_="ss-verdict-cause"),
        _figures(text, verdict.reasons),
        evidence,
        html.tag("div", _remedies(text), _evidence(verdict, analysis.job.world_size), class_="ss-columns"),
        html.tag("p", f"Confidence {text.confidence}", class_="ss-note ss-confidence"),
        html.tag("p", f"Counters: {text.counters}", class_="ss-note") if text.counters else "",
        id="verdict",
        class_=f"ss-panel ss-verdict ss-edge-{category_of_cause(verdict.cause).value}",
        aria_labelledby="verdict-title",
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _figures(text: VerdictText, reasons: list[Reason]) -> html.Element | None:
    figures = [_figure(number, meaning) for number, meaning in text.figures]
    badges = [html.tag("span", reason_words(reason), class_="ss-badge") for reason in reasons]
    if not figures and not badges:
        return None
    return html.tag("div", figures, html.tag("div", badges, class_="ss-reasons"), class_="ss-figures")


def _figure(number: str, meaning: str) -> html.Element:
    cells = [
        html.tag("span", number, class_="ss-figure-number"),
        html.tag("span", meaning, class_="ss-figure-meaning"),
    ]
    return html.tag("div", cells, class_="ss-figure")


def _remedies(text: VerdictText) -> html.Element:
    """Fix, further remedies and the next bottleneck, then the headroom."""
    named = [html.tag("li", html.tag("strong", name), f" {words}") for name, words in text.remedies[:MAX_ROWS]]
    gains = [html.tag("li", words) for words in text.headroom[:MAX_ROWS]]
    parts: list[html.Child] = []
    if named:
        parts += [html.tag("h3", "What to do"), html.tag("ul", named, class_="ss-actions")]
    if gains:
        parts += [html.tag("h3", "Headroom"), html.tag("ul", gains, class_="ss-actions ss-headroom")]
    return html.tag("div", parts or html.tag("p", "Nothing to do.", class_="ss-note"))


def _evidence(verdict: Verdict, world_size: int) -> html.Element:
    title = html.tag("h3", "Evidence")
    shown = [evidence for evidence in verdict.evidence if not _is_absent_part(evidence)]
    if not shown:
        return html.tag("div", title, html.tag("p", "No evidence is recorded.", class_="ss-note"))
    columns = [
        html.Column("Metric"),
        html.number_column("Value"),
        html.number_column("Threshold", "the value from which this counts as evidence"),
        html.Column("Where"),
    ]
    rows = [_evidence_row(evidence, world_size) for evidence in shown[:MAX_ROWS]]
    body = html.table(columns, rows, caption="Evidence of the verdict", num_all=len(shown), what="pieces of evidence")
    return html.tag("div", title, body)


def _is_absent_part(evidence: Evidence) -> bool:
    """A part of the bubble that is not there explains nothing; it would only ask what it means."""
    return evidence.metric == "pipeline_imbalance" and abs(evidence.value) < MIN_SHOWN_SHARE


def _evidence_row(evidence: Evidence, world_size: int) -> list[str]:
    threshold = threshold_value(evidence)
    ranks = html.short_ranks(evidence.ranks, world_size=world_size) if evidence.ranks else "job"
    span = evidence_span(evidence)
    return [
        html.name(metric_words(evidence.metric)),
        html.name(evidence_value(evidence)),
        html.name(threshold),
        f"{ranks}, over {span}" if span else ranks,
    ]


def breakdown_panel(analysis: Analysis) -> html.Element:
    """Panel of the job's time by category: a bar each, the largest first, and the parts of the wall-clock time."""
    causes = {} if of_training_time(analysis.job_time) else {row.cause: row for row in analysis.root_causes}
    rows = [(row, None if row.cause is None else causes.get(row.cause)) for row in breakdown(analysis)]
    ends = [end for _, cause in rows if cause is not None and cause.interval is not None for end in cause.interval]
    largest = max([*ends, *(row.share for row, _ in rows)], default=0.0)
    items = [_category(row, cause, largest, analysis.job) for row, cause in rows]
    bars = html.tag("ul", items, class_="ss-causes")
    goodput = goodput_line(analysis)
    return html.panel(
        "What is the time spent on, and whose doing is it?",
        bars if items else html.tag("p", "No cause is recorded.", class_="ss-note"),
        html.tag("p", goodput, class_="ss-note") if goodput else None,
        key="root-causes",
        note=f"of {time_name(analysis)}, adds up to 100%",
        source=(
            "Waiting is attributed to the rank that arrived last and to what it did differently until then. Of the "
            "profiled steps alone, the thin line over a bar is the 90% interval (bootstrap over steps)."
        ),
    )


def _category(row: BreakdownRow, cause: RootCause | None, largest: float, job: AnalysedJob) -> html.Element:
    category = TimeCategory.IDLE_OTHER if row.cause is None else category_of_cause(row.cause)
    details = [html.short_ranks(row.ranks, world_size=job.world_size)] if row.ranks else []
    interval = None if cause is None else cause.interval
    if cause is not None:
        details += [reason_words(reason) for reason in cause.reasons]
    if interval is not None:
        low, high = map(percent, interval)
        details += [f"{low} to {high}"] if low != high else []
    per_step = "" if row.ms is None else f"{milliseconds(row.ms)} per step"
    return html.tag(
        "li",
        html.tag("span", html.swatch(category), html.tag("span", row.title), class_="ss-cause-name"),
        html.share_bar(row.share, category=category, largest=largest, interval=interval),
        html.tag("span", percent(row.share), class_="ss-num ss-cause-share"),
        html.tag("span", per_step, class_="ss-num"),
        html.tag("span", " · ".join(details), class_="ss-note ss-cause-details"),
        class_="ss-cause ss-healthy" if row.cause in HEALTHY_CAUSES else "ss-cause",
    )


def what_if_panel(analysis: Analysis) -> html.Element | None:
    """Panel of what-if: the predicted step with one cause removed; None when nothing was replayed."""
    if not analysis.what_if:
        return None
    training_ms = [training_step_ms(fix, fix.step_ms * fix.speedup, analysis) for fix in analysis.what_if]
    has_training = any(ms is not None for ms in training_ms)
    training = [html.number_column("Training step", "the mean step of training time with the fix")]
    columns = [
        html.Column("Fix"),
        *(training if has_training else []),
        html.number_column("Measured", "of the steps replayed, without those whose waits began before the traces"),
        html.number_column("Step"),
        html.number_column("Gain"),
        html.number_column("Calibrated", "CPU time scaled to the unprofiled step"),
        html.Column("Next bottleneck"),
        html.number_column("Model error", "error of the replay with nothing changed"),
    ]
    rows: list[list[html.Child]] = []
    for fix, ms in zip(analysis.what_if, training_ms, strict=True):
        name, *figures = _fix(fix, analysis.job)
        rows.append([name, *([milliseconds(ms)] if has_training else []), *figures])
    steps = counted(analysis.job.num_steps, "profiled step")
    return html.panel(
        "What would fixing it save?",
        html.table(columns, rows, caption="Predicted step time with one cause removed"),
        key="what-if",
        note=f"of the {steps}, and per step of training time" if has_training else f"of the {steps}",
        source=(
            "The job is rebuilt as a graph of launches, streams and collectives and replayed without one cause. "
            "Gain = 1 − predicted / replayed step."
        ),
    )


def _fix(fix: WhatIf, job: AnalysedJob) -> list[html.Child]:
    change = html.tag("span", f" {fix.change}", class_="ss-note") if fix.change else None
    return [
        [cause_title_of_job(fix.fix, job), change],
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        UNKNOWN if fix.binds_next is None else cause_title_of_job(fix.binds_next, job),
        percent(abs(fix.replay_error)),
    ]


def warnings_panel(analysis: Analysis) -> html.Element | None:
    """Panel of the analysis's warnings; None when there are none."""
    if not analysis.warnings:
        return None
    shown = analysis.warnings[:MAX_WARNINGS]
    items = [
        html.tag("li", html.tag("span", notice.message), html.tag("code", html.name(notice.code))) for notice in shown
    ]
    return html.panel(
        "What else should you know?",
        html.tag("ul", items, class_="ss-warnings"),
        html.more(len(analysis.warnings) - len(shown), "warnings"),
        key="warnings",
        source="The warnings of `stepscope analyze`; the code in grey is the one in its JSON.",
    )
