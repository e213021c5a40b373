"""Panel of the time lines: the canvas that assets/20-timeline.js draws, and its steps as a table."""

from __future__ import annotations

import json
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, RankLedger, StepLedger
from stepscope.core.text.numbers import UNKNOWN, count, counted, milliseconds, percent
from stepscope.core.text.wording import category_words
from stepscope.core.vocabulary.categories import CATEGORY_ORDER, TimeCategory
from stepscope.core.vocabulary.palette import pattern
from stepscope.dashboard.components.elements import Column, attributes, figure_or_table, legend, panel, table

MAX_TABLE_ROWS = 256
"""Rows are built before anyone opens the table, so a large job's are left to the command line."""


def timeline_panel(run_id: str, analysis: Analysis) -> Component:
    """The canvas mounts itself where it finds `data-timeline`; all it needs is in the data attributes."""
    ranks = [rank.rank for rank in analysis.ranks]
    present = [heading for heading in CATEGORY_ORDER if any(rank.ledger.get(heading, 0) > 0 for rank in analysis.ranks)]
    words = {heading.value: [category_words(heading), pattern(heading)] for heading in CATEGORY_ORDER}
    label = (
        f"Time line of {counted(len(ranks), 'rank')} over {counted(analysis.job.num_steps, 'step')}; "
        "the tab Table says the same"
    )
    canvas = html.Div(
        id="timeline-canvas",
        className="ss-timeline",
        **attributes(
            {
                "data-timeline": f"/api/v1/runs/{quote(run_id, safe='')}/timeline",
                "data-ranks": json.dumps(ranks),
                "data-words": json.dumps(words),
                "data-label": label,
            }
        ),
    )
    return panel(
        "What did each rank do, step by step?",
        [figure_or_table(html.Div([legend(present), canvas]), _table(analysis, present), name="timeline")],
        name="timeline",
        source=(
            "timeline.json: the ledger's slices on the job's clock. Zoomed out, a column is split by each heading's "
            "share of its time, so the area of a colour is its time; zoomed in, slices are exact. "
            "Lines mark step boundaries."
        ),
    )


def _table(analysis: Analysis, present: list[TimeCategory]) -> Component:
    columns = [
        Column("Rank, step"),
        Column("Length", is_number=True),
        *(Column(category_words(heading), is_number=True) for heading in present),
    ]
    rows = [
        _row(rank, step, present) for rank in analysis.ranks for step in sorted(rank.steps, key=lambda step: step.index)
    ]
    note = []
    if len(rows) > MAX_TABLE_ROWS:
        text = f"The first {MAX_TABLE_ROWS} of {count(len(rows))} rows. All are in the output of "
        note = [html.P([text, html.Code("stepscope analyze RUN --json"), "."], className="ss-note ss-left-out")]
    body = table(columns, rows[:MAX_TABLE_ROWS], caption="Every whole step of every rank", class_name="ss-wide")
    return html.Div([body, *note])


def _row(rank: RankLedger, step: StepLedger, present: list[TimeCategory]) -> list[str]:
    shares = [percent(step.ledger[heading]) if heading in step.ledger else UNKNOWN for heading in present]
    return [f"rank {rank.rank}, step {step.index}", milliseconds(step.ms), *shares]
