"""Panels of the verdict: trace quality, verdict with evidence, root causes, what fixes would save, warnings."""

from __future__ import annotations

from stepscope.core.documents.analysis import AnalysedJob, Analysis, RootCause, SecondaryCause, Verdict, WhatIf
from stepscope.core.text.numbers import UNKNOWN, evidence_value, milliseconds, percent
from stepscope.core.text.wording import (
    action_words,
    cause_title_of_job,
    cause_words,
    clean_words,
    evidence_span,
    find_problems,
    is_on_cpu,
    metric_words,
    quality_lines,
    reason_words,
)
from stepscope.core.vocabulary import HEALTHY_CAUSES, Evidence
from stepscope.workflow.panels import elements as html
from stepscope.workflow.panels.palette import category_of_cause

MAX_ROWS = 20
MAX_WARNINGS = 30
LOW_CONFIDENCE = 0.7
MIN_SHOWN_SHARE = 0.0005
"""Less reads as 0.0 %."""


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
    """Panel of the verdict: the cause, its size, what to do, and the evidence."""
    verdict, world_size = analysis.verdict, analysis.job.world_size
    row = next((row for row in analysis.root_causes if row.cause == verdict.cause), None)
    kind = "Where the time goes:"
    if verdict.cause in HEALTHY_CAUSES and not is_on_cpu(analysis.job):
        kind = "The job is healthy; what bounds it:"
    source = (
        "The largest loss of the root-cause table if it is at least 10 % of the step; else what bounds the compute. "
        "Confidence is the share of resamples over the steps in which this cause ranks first, lowered by missing ranks "
        "and poor trace quality."
    )
    overline = [html.tag("span", kind, class_="ss-overline"), html.info(source, about="The verdict.")]
    return html.tag(
        "section",
        html.tag("div", overline, class_="ss-panel-head"),
        html.tag("h2", cause_title_of_job(verdict.cause, analysis.job), id="verdict-title", class_="ss-verdict-cause"),
        _figures(verdict, row, world_size),
        html.tag("p", verdict.summary, class_="ss-verdict-summary"),
        html.tag("div", _actions(verdict), _evidence(verdict, world_size), class_="ss-columns"),
        _secondary(verdict.secondary),
        id="verdict",
        class_=f"ss-panel ss-verdict ss-edge-{category_of_cause(verdict.cause).value}",
        aria_labelledby="verdict-title",
    )


def _figures(verdict: Verdict, row: RootCause | None, world_size: int) -> html.Element:
    figures = []
    if row:
        figures.append(_figure(percent(row.fraction), "of all ranks' time"))
        if row.ms_per_step is not None:
            figures.append(_figure(milliseconds(row.ms_per_step), "of each step"))
    if verdict.ranks:
        figures.append(_figure(html.short_ranks(verdict.ranks, world_size=world_size), "concerned"))
    doubt = " ss-doubt" if verdict.confidence < LOW_CONFIDENCE else ""
    figures.append(_figure(percent(verdict.confidence, decimals=0), "confidence", class_=doubt))
    reasons = [html.tag("span", reason_words(reason), class_="ss-badge") for reason in verdict.reasons]
    return html.tag("div", figures, html.tag("div", reasons, class_="ss-reasons"), class_="ss-figures")


def _figure(number: str, meaning: str, *, class_: str = "") -> html.Element:
    cells = [
        html.tag("span", number, class_=f"ss-figure-number{class_}"),
        html.tag("span", meaning, class_="ss-figure-meaning"),
    ]
    return html.tag("div", cells, class_="ss-figure")


def _actions(verdict: Verdict) -> html.Element:
    steps = [html.tag("li", action_words(action)) for action in verdict.actions[:MAX_ROWS]]
    body = html.tag("ol", steps, class_="ss-actions") if steps else html.tag("p", "Nothing to do.", class_="ss-note")
    return html.tag("div", html.tag("h3", "What to do first"), body)


def _evidence(verdict: Verdict, world_size: int) -> html.Element:
    title = html.tag("h3", "What it stands on")
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
    threshold = UNKNOWN if evidence.threshold is None else evidence_value(evidence.threshold, evidence.unit)
    ranks = html.short_ranks(evidence.ranks, world_size=world_size) if evidence.ranks else "job"
    span = evidence_span(evidence)
    return [
        html.name(metric_words(evidence.metric)),
        html.name(evidence_value(evidence.value, evidence.unit)),
        html.name(threshold),
        f"{ranks}, over {span}" if span else ranks,
    ]


def _secondary(causes: list[SecondaryCause]) -> html.Child:
    if not causes:
        return None
    items = [
        html.tag(
            "li",
            html.swatch(category_of_cause(cause.cause)),
            html.tag("strong", cause_words(cause.cause)),
            html.tag("span", percent(cause.fraction), class_="ss-num"),
            html.tag("span", cause.summary, class_="ss-note"),
        )
        for cause in causes[:MAX_ROWS]
    ]
    left_out = html.more(len(causes) - len(items), "causes")
    return [html.tag("h3", "Worth knowing as well"), html.tag("ul", items, class_="ss-secondary"), left_out]


def root_causes_panel(analysis: Analysis) -> html.Element:
    """Panel of root causes: a bar per cause, the largest first."""
    rows = sorted((row for row in analysis.root_causes if row.fraction > 0), key=lambda row: -row.fraction)
    largest = max((max(row.fraction, *(row.interval or ())) for row in rows), default=0.0)
    items = [_cause(row, largest, analysis.job) for row in rows]
    body = (
        html.tag("ul", items, class_="ss-causes") if items else html.tag("p", "No cause is recorded.", class_="ss-note")
    )
    return html.panel(
        "What is the time spent on, and whose doing is it?",
        body,
        key="root-causes",
        note="of all ranks' time, adds up to 100\u202f%",
        source=(
            "Root-cause table: the ledger after blame. Waiting is charged to the rank that arrived last and to what it "
            "did differently until then. The thin line over a bar is the 90 % interval (bootstrap over steps)."
        ),
    )


def _cause(row: RootCause, largest: float, job: AnalysedJob) -> html.Element:
    category = category_of_cause(row.cause)
    details = [html.short_ranks(row.ranks, world_size=job.world_size)] if row.ranks else []
    details += [reason_words(reason) for reason in row.reasons]
    if row.interval:
        low, high = map(percent, row.interval)
        details += [f"{low} to {high}"] if low != high else []
    a_step = "" if row.ms_per_step is None else f"{milliseconds(row.ms_per_step)} a step"
    return html.tag(
        "li",
        html.tag(
            "span", html.swatch(category), html.tag("span", cause_title_of_job(row.cause, job)), class_="ss-cause-name"
        ),
        html.share_bar(row.fraction, category=category, largest=largest, interval=row.interval),
        html.tag("span", percent(row.fraction), class_="ss-num ss-cause-share"),
        html.tag("span", a_step, class_="ss-num"),
        html.tag("span", " · ".join(details), class_="ss-note ss-cause-details"),
        class_="ss-cause ss-healthy" if row.cause in HEALTHY_CAUSES else "ss-cause",
    )


def what_if_panel(analysis: Analysis) -> html.Element | None:
    """Panel of what-if: the predicted step with one cause removed; None when nothing was replayed."""
    if not analysis.what_if:
        return None
    columns = [
        html.Column("Fix"),
        html.number_column("Measured", "of the steps replayed, without those whose waits began before the traces"),
        html.number_column("Step"),
        html.number_column("Gain"),
        html.number_column("Calibrated", "host gaps scaled to the unprofiled step"),
        html.Column("Then binds"),
        html.number_column("Replay error", "error of the replay with nothing changed"),
    ]
    rows = [_fix(fix) for fix in analysis.what_if]
    return html.panel(
        "What would fixing it buy?",
        html.table(columns, rows, caption="Predicted step time with one cause removed"),
        key="what-if",
        source=(
            "The job is rebuilt as a graph of launches, streams and collectives and replayed without one cause. "
            "Gain = 1 − predicted / replayed step."
        ),
    )


def _fix(fix: WhatIf) -> list[html.Child]:
    change = html.tag("span", f" {fix.change}", class_="ss-note") if fix.change else None
    return [
        [cause_words(fix.fix), change],
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        UNKNOWN if fix.binds_next is None else cause_words(fix.binds_next),
        percent(fix.replay_error),
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
