"""How far can this trace be trusted? One line when clean, else what is wrong; and all that was counted."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis
from stepscope.core.quality_lines import quality_lines
from stepscope.core.trace_doubts import clean_words, find_problems
from stepscope.dashboard.components.attributes import attributes


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
