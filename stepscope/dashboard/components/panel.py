"""What frames a figure? A question as its title, and behind an (i) where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.dashboard.components.attributes import attributes


def panel(question: str, body: Sequence[Any], *, name: str, source: str, note: str | None = None) -> Component:
    """A titled section.

    Args:
        question: the title.
        body: what answers it.
        name: the section's id, for links.
        source: formula and origin of the numbers, shown on hover and focus.
        note: a line beside the title.
    """
    title = html.H2(question, id=f"{name}-title")
    beside = [html.Span(note, className="ss-note")] if note else []
    return html.Section(
        [html.Div([title, info(source, about=question), *beside], className="ss-panel-head"), *body],
        id=name,
        className="ss-panel",
        **attributes({"aria-labelledby": f"{name}-title"}),
    )


def info(text: str, *, about: str) -> Component:
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


def figure_or_table(figure: Any, table: Any, *, name: str) -> Component:
    """Two tabs: the picture, and the same numbers as a table."""
    tabs: Component = dmc.Tabs(
        [
            dmc.TabsList([dmc.TabsTab("Chart", value="chart"), dmc.TabsTab("Table", value="table")]),
            dmc.TabsPanel(figure, value="chart", pt="md"),
            dmc.TabsPanel(table, value="table", pt="md"),
        ],
        value="chart",
        variant="pills",
        id=f"{name}-tabs",
        className="ss-tabs",
        keepMounted=True,
    )
    return tabs
