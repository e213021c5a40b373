"""What does the verdict say, what does it stand on, and what should be done first?"""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, Evidence, RootCause, SecondaryCause, Verdict
from stepscope.core.causes import HEALTHY_CAUSES
from stepscope.core.palette import heading_of_cause
from stepscope.core.words import (
    UNKNOWN,
    action_words,
    cause_words,
    evidence_span,
    evidence_value,
    metric_words,
    milliseconds,
    percent,
    ranks_words,
    reason_words,
)
from stepscope.dashboard.components.attributes import attributes
from stepscope.dashboard.components.bars import swatch
from stepscope.dashboard.components.panel import info
from stepscope.dashboard.components.table import Column, table

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
        className=f"ss-panel ss-verdict ss-edge-{heading_of_cause(verdict.cause).value}",
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
                swatch(heading_of_cause(cause.cause)),
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
