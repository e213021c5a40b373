"""How large is the pipeline's bubble, and what is it made of?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, Pipeline
from stepscope.core.counting import counted
from stepscope.core.words import bubble_parts, milliseconds, percent
from stepscope.dashboard.components.bars import share_bar
from stepscope.dashboard.components.panel import panel


def pipeline_panel(analysis: Analysis) -> list[Component]:
    """Measured bubble = structural + imbalance + variance, beside the textbook's; nothing without a pipeline."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return []
    parts = bubble_parts(pipeline)
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
        f"{pipeline.schedule}, {counted(pipeline.stages, 'stage')}, "
        f"{counted(pipeline.micro_batches, 'micro-batch')}{chunks}, "
        f"period {milliseconds(pipeline.period_ms)}"
    )
