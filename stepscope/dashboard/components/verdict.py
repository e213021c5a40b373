"""Panels of the verdict: trace quality, verdict with evidence, root causes, what fixes would save, warnings."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, RootCause, SecondaryCause, Verdict, WhatIf
from stepscope.core.documents.evidence import Evidence, Notice
from stepscope.core.text.numbers import UNKNOWN, evidence_value, milliseconds, percent, ranks_words
from stepscope.core.text.verdict import clean_words, find_problems, quality_lines
from stepscope.core.text.wording import action_words, cause_words, evidence_span, metric_words, reason_words
from stepscope.core.vocabulary.causes import HEALTHY_CAUSES
from stepscope.core.vocabulary.palette import category_of_cause
from stepscope.dashboard.components.elements import Column, attributes, info, panel, share_bar, swatch, table


def quality_block(analysis: Analysis) -> Component:
    """Stands above the verdict, so that no number is read without it."""
    lines = quality_lines(analysis.trace_quality)
    counted = html.Div(" ".join(f"{about}: {line}." for about, line in lines.items()), className="ss-note")
    problems = find_problems(analysis.job, analysis.trace_quality)
    if not problems:
        return html.Section(
            [
                html.Span("✓", className="ss-tick", **attributes({"aria-hidden": "true"})),
                html.Strong("Trace quality: clean."),
                html.Span(clean_words(analysis.trace_quality)),
                counted,
            ],
            id="quality",
            className="ss-quality-clean",
            **attributes({"aria-label": "Trace quality"}),
        )
    return html.Section(
        dmc.Alert(
            [html.Ul([html.Li(problem) for problem in problems], className="ss-problems"), counted],
            title="Read the numbers with this in mind",
            color="yellow",
            variant="light",
        ),
        id="quality",
        className="ss-quality-doubt",
        **attributes({"aria-label": "Trace quality"}),
    )


LOW_CONFIDENCE = 0.7
SMALLEST_SHARE_SHOWN = 0.0005
"""Less reads as 0.0 %."""


def verdict_card(analysis: Analysis) -> Component:
    """The card that stands above all figures."""
    verdict = analysis.verdict
    row = next((row for row in analysis.root_causes if row.cause == verdict.cause), None)
    kind = "The job is healthy; what bounds it:" if verdict.cause in HEALTHY_CAUSES else "Where the time goes:"
    return html.Section(
        [
            html.Div(
                [html.Span(kind, className="ss-overline"), info(_SOURCE, about="The verdict.")],
                className="ss-panel-head",
            ),
            html.H2(cause_words(verdict.cause), id="verdict-title", className="ss-verdict-cause"),
            _figures(verdict, row, analysis.job.world_size),
            html.P(verdict.summary, className="ss-verdict-summary"),
            html.Div([_actions(verdict), _evidence(verdict, analysis.job.world_size)], className="ss-columns"),
            *_secondary(verdict.secondary),
        ],
        id="verdict",
        className=f"ss-panel ss-verdict ss-edge-{category_of_cause(verdict.cause).value}",
        **attributes({"aria-labelledby": "verdict-title"}),
    )


def _figures(verdict: Verdict, row: RootCause | None, world_size: int) -> Component:
    figures: list[Any] = []
    if row:
        figures.append(_figure(percent(row.fraction), "of all ranks' time"))
        if row.ms_per_step is not None:
            figures.append(_figure(milliseconds(row.ms_per_step), "of each step"))
    if verdict.ranks:
        figures.append(_figure(ranks_words(verdict.ranks, world_size=world_size), "concerned"))
    doubt = " ss-doubt" if verdict.confidence < LOW_CONFIDENCE else ""
    figures.append(_figure(percent(verdict.confidence, decimals=0), "confidence", class_name=doubt))
    reasons = [dmc.Badge(reason_words(reason), variant="default", tt="none", size="lg") for reason in verdict.reasons]
    return html.Div([*figures, html.Div(reasons, className="ss-reasons")], className="ss-figures")


def _figure(number: str, meaning: str, *, class_name: str = "") -> Component:
    return html.Div(
        [
            html.Span(number, className=f"ss-figure-number{class_name}"),
            html.Span(meaning, className="ss-figure-meaning"),
        ],
        className="ss-figure",
    )


def _actions(verdict: Verdict) -> Component:
    steps = [html.Li(action_words(action)) for action in verdict.actions]
    body = html.Ol(steps, className="ss-actions") if steps else html.P("Nothing to do.", className="ss-note")
    return html.Div([html.H3("What to do first"), body])


def _evidence(verdict: Verdict, world_size: int) -> Component:
    telling = [evidence for evidence in verdict.evidence if not _is_absent_part(evidence)]
    if not telling:
        return html.Div([html.H3("What it stands on"), html.P("No evidence is recorded.", className="ss-note")])
    columns = [
        Column("Metric"),
        Column("Value", is_number=True),
        Column("Threshold", is_number=True, hint="the value from which this counts as evidence"),
        Column("Where"),
    ]
    rows = [_evidence_row(evidence, world_size) for evidence in telling]
    return html.Div([html.H3("What it stands on"), table(columns, rows, caption="Evidence of the verdict")])


def _is_absent_part(evidence: Evidence) -> bool:
    """A part of the bubble that is not there explains nothing; it would only ask what it means."""
    return evidence.metric == "pipeline_imbalance" and abs(evidence.value) < SMALLEST_SHARE_SHOWN


def _evidence_row(evidence: Evidence, world_size: int) -> list[str]:
    threshold = UNKNOWN if evidence.threshold is None else evidence_value(evidence.threshold, evidence.unit)
    ranks = ranks_words(evidence.ranks, world_size=world_size) if evidence.ranks else "job"
    span = evidence_span(evidence)
    return [
        metric_words(evidence.metric),
        evidence_value(evidence.value, evidence.unit),
        threshold,
        f"{ranks}, over {span}" if span else ranks,
    ]


def _secondary(causes: list[SecondaryCause]) -> list[Component]:
    if not causes:
        return []
    items = [
        html.Li(
            [
                swatch(category_of_cause(cause.cause)),
                html.Strong(cause_words(cause.cause)),
                html.Span(percent(cause.fraction), className="ss-num"),
                html.Span(cause.summary, className="ss-note"),
            ]
        )
        for cause in causes
    ]
    return [html.H3("Worth knowing as well"), html.Ul(items, className="ss-secondary")]


_SOURCE = (
    "The largest loss of the root-cause table if it is at least 10 % of the step; else what bounds the compute. "
    "Confidence is the share of resamples over the steps in which this cause ranks first, lowered by missing ranks and "
    "poor trace quality."
)


def root_causes_panel(analysis: Analysis) -> Component:
    """A bar a cause, the largest first; losses and useful work are told apart."""
    rows = sorted(analysis.root_causes, key=lambda row: -row.fraction)
    largest = max((max(row.fraction, *(row.interval or ())) for row in rows), default=0.0)
    items = [_item(row, largest, analysis.job.world_size) for row in rows if row.fraction > 0]
    body = html.Ul(items, className="ss-causes") if items else html.P("No cause is recorded.", className="ss-note")
    return panel(
        "What is the time spent on, and whose doing is it?",
        [body],
        name="root-causes",
        note="of all ranks' time, adds up to 100\u202f%",
        source=(
            "Root-cause table: the ledger after blame. Waiting is charged to the rank that arrived last and to what it "
            "did differently until then. The thin line over a bar is the 90 % interval (bootstrap over steps)."
        ),
    )


def what_if_panel(analysis: Analysis) -> list[Component]:
    """The predicted step with one cause removed; nothing when nothing was replayed."""
    if not analysis.what_if:
        return []
    columns = [
        Column("Fix"),
        Column("Measured", is_number=True, hint="of the steps replayed, without those whose waits began before"),
        Column("Step", is_number=True),
        Column("Gain", is_number=True),
        Column("Calibrated", is_number=True, hint="host gaps scaled to the unprofiled step"),
        Column("Then binds"),
        Column("Replay error", is_number=True, hint="error of the replay with nothing changed"),
    ]
    rows = [_what_if_row(fix) for fix in analysis.what_if]
    return [
        panel(
            "What would fixing it buy?",
            [table(columns, rows, caption="Predicted step time with one cause removed")],
            name="what-if",
            source=(
                "The job is rebuilt as a graph of launches, streams and collectives and replayed without one cause. "
                "Gain = 1 − predicted / replayed step."
            ),
        )
    ]


def _item(row: RootCause, largest: float, world_size: int) -> Component:
    heading = category_of_cause(row.cause)
    details = [ranks_words(row.ranks, world_size=world_size)] if row.ranks else []
    details += [reason_words(reason) for reason in row.reasons]
    if row.interval:
        low, high = map(percent, row.interval)
        details += [f"{low} to {high}"] if low != high else []
    healthy = " ss-healthy" if row.cause in HEALTHY_CAUSES else ""
    return html.Li(
        [
            html.Span([swatch(heading), html.Span(cause_words(row.cause))], className="ss-cause-name"),
            share_bar(row.fraction, heading=heading, largest=largest, interval=row.interval),
            html.Span(percent(row.fraction), className="ss-num ss-cause-share"),
            html.Span(
                f"{milliseconds(row.ms_per_step)} a step" if row.ms_per_step is not None else "", className="ss-num"
            ),
            html.Span(" · ".join(details), className="ss-note ss-cause-details"),
        ],
        className=f"ss-cause{healthy}",
    )


def _what_if_row(fix: WhatIf) -> list[str]:
    return [
        cause_words(fix.fix),
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        cause_words(fix.binds_next) if fix.binds_next else UNKNOWN,
        percent(fix.replay_error),
    ]


def warnings_panel(notices: list[Notice]) -> list[Component]:
    """The analysis's warnings; nothing when there are none."""
    if not notices:
        return []
    items = [html.Li([html.Span(notice.message), html.Code(notice.code)]) for notice in notices]
    return [
        panel(
            "What else should you know?",
            [html.Ul(items, className="ss-warnings")],
            name="warnings",
            source="The warnings of `stepscope analyze`; the code in grey is the one in its JSON.",
        )
    ]
