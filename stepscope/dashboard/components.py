"""Panels as Dash components: the mapping of element trees, and the canvas of the time lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis
from stepscope.core.text.numbers import UNKNOWN, counted, milliseconds, percent
from stepscope.core.text.wording import category_words, is_on_cpu
from stepscope.core.vocabulary import CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels import elements
from stepscope.workflow.panels.ledger import present_categories
from stepscope.workflow.panels.palette import pattern

MAX_STEP_ROWS = 256
"""Rows are built before anyone opens the table, so a large job's are left to the command line."""

_PROPERTIES = {"class": "className", "tabindex": "tabIndex"}
"""HTML attribute -> Dash property, where they differ."""


def to_dash(node: str | elements.Element) -> Any:
    """A panel's tree as Dash components; a text is itself."""
    if isinstance(node, str):
        return elements.clean(node)
    if node.kind == "info":
        return _tooltip(**node.attributes)
    if node.kind == "tabs":
        bodies = {tab.attributes["title"]: tab.children for tab in node.children if isinstance(tab, elements.Element)}
        panels = [dmc.TabsPanel(list(map(to_dash, body)), value=title, pt="md") for title, body in bodies.items()]
        drawn: Component = dmc.Tabs(
            [dmc.TabsList([dmc.TabsTab(title, value=title) for title in bodies]), *panels],
            value=next(iter(bodies)),
            variant="pills",
            id=node.attributes["id"],
            className="ss-tabs",
            keepMounted=True,
        )
        return drawn
    children = [to_dash(child) for child in node.children]
    named: dict[str, Any] = {_PROPERTIES.get(name, name): value for name, value in node.attributes.items()}
    if style := named.get("style"):
        named["style"] = dict(declaration.split(":", 1) for declaration in style.split(";"))
    return getattr(html, node.kind.capitalize())(children or None, **named)


def _tooltip(text: str, about: str) -> Component:
    """An (i) that explains on hover and on keyboard focus."""
    tooltip: Component = dmc.Tooltip(
        html.Button("i", type="button", className="ss-info", **attributes({"aria-label": f"{about} {text}"})),
        label=text,
        multiline=True,
        w=340,
        withArrow=True,
        events={"hover": True, "focus": True, "touch": True},
    )
    return tooltip


def attributes(named: Mapping[str, object]) -> dict[str, Any]:
    """Keyword arguments for Dash's `html.*`, whose signatures know no `data-*` and `aria-*`."""
    return dict(named)


def timeline_canvas_panel(run_id: str, analysis: Analysis) -> elements.Element:
    """Dashboard: its canvas of time lines, which assets/20-timeline.js draws, and the steps as a table.

    The script mounts itself where it finds `data-timeline`; all it needs is in the data attributes.
    """
    ranks = [rank.rank for rank in analysis.ranks]
    categories, on_cpu = present_categories(analysis), is_on_cpu(analysis.job)
    canvas = elements.tag(
        "div",
        id="timeline-canvas",
        class_="ss-timeline",
        data_timeline=f"/api/v1/runs/{quote(run_id, safe='')}/timeline",
        data_ranks=json.dumps(ranks),
        data_words=json.dumps({c.value: [category_words(c, on_cpu=on_cpu), pattern(c)] for c in CATEGORY_ORDER}),
        data_label=(
            f"Time line of {counted(len(ranks), 'rank')} over {counted(analysis.job.num_steps, 'step')}; "
            "the tab Table says the same"
        ),
    )
    return elements.panel(
        "What did each rank do, step by step?",
        elements.tabs(
            "timeline",
            {"Chart": [elements.legend(categories, on_cpu=on_cpu), canvas], "Table": _step_table(analysis, categories)},
        ),
        key="timeline",
        source=(
            "timeline.json: the time breakdown on the job's clock. Zoomed out, a column is split by each category's "
            "share of its time, so the area of a colour is its time; zoomed in, slices are exact. "
            "Lines mark step boundaries."
        ),
    )


def _step_table(analysis: Analysis, categories: list[TimeCategory]) -> elements.Child:
    columns = [
        elements.Column("Rank, step"),
        elements.number_column("Length"),
        *(elements.number_column(category_words(category, on_cpu=is_on_cpu(analysis.job))) for category in categories),
    ]
    steps = [(rank, step) for rank in analysis.ranks for step in sorted(rank.steps, key=lambda step: step.index)]
    rows = [
        [
            f"rank {rank.rank}, step {step.index}",
            milliseconds(step.ms),
            *(percent(step.ledger[c]) if c in step.ledger else UNKNOWN for c in categories),
        ]
        for rank, step in steps[:MAX_STEP_ROWS]
    ]
    return elements.table(
        columns, rows, caption="Every whole step of every rank", num_all=len(steps), what="rows", class_="ss-wide"
    )
