"""How large is the pipeline's bubble, and what is it made of?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, Pipeline
from stepscope.core.headings import Heading
from stepscope.core.words import milliseconds, percent
from stepscope.dashboard.components.bars import share_bar
from stepscope.dashboard.components.panel import panel


def pipeline_panel(analysis: Analysis) -> list[Component]:
    """Measured bubble = structural + imbalance + variance, beside the textbook's; nothing without a pipeline."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return []
    parts = [
        (
            "Measured",
            pipeline.measured,
            Heading.BUBBLE,
            "share of the pipelined span in which a stage does not compute",
        ),
        ("Structural", pipeline.structural, Heading.BUBBLE, "the schedule alone, all stages equally fast"),
        ("Imbalance", pipeline.imbalance, Heading.WAIT, "what uneven stages add"),
        ("Variance", pipeline.variance, Heading.DEVICE_GAP, "what differences from step to step add"),
        ("Textbook", pipeline.textbook, Heading.IDLE_OTHER, "(P − 1) / (v·M + P − 1), for comparison only"),
    ]
    largest = max(share for _, share, _, _ in parts)
    items = [
        html.Li(
            [
                html.Span(name, className="ss-cause-name"),
                share_bar(share, heading=heading, largest=largest),
                html.Span(percent(share), className="ss-num ss-cause-share"),
                html.Span(meaning, className="ss-note ss-cause-details"),
            ],
            className=f"ss-cause ss-cause-short{' ss-sum' if name == 'Measured' else ''}",
        )
        for name, share, heading, meaning in parts
    ]
    return [
        panel(
            "How large is the pipeline's bubble, and why?",
            [html.Ul(items, className="ss-causes")],
            name="pipeline",
            note=_layout_words(pipeline),
            source=(
                "One period of the observed schedule is replayed without host delay: at the mean of all stages "
                "(structural), at each stage's own mean (imbalance), as measured (variance)."
            ),
        )
    ]


def _layout_words(pipeline: Pipeline) -> str:
    chunks = f", {pipeline.chunks} chunks a stage" if pipeline.chunks > 1 else ""
    return (
        f"{pipeline.schedule}, {pipeline.stages} stages, {pipeline.micro_batches} micro-batches{chunks}, "
        f"period {milliseconds(pipeline.period_ms)}"
    )
