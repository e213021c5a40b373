"""Tables of pages that are sorted and searched in the browser, the search field of one, and links to runs in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.text.numbers import form
from stepscope.dashboard.components import attributes
from stepscope.dashboard.live_slots import slot


def cell(content: Any, value: object = "", *, number: bool = False) -> Component:
    """Cell of a sortable table; `value` is what it is sorted by."""
    return html.Td(
        content, className="ss-num" if number else "", **attributes({"data-value": "" if value is None else str(value)})
    )


def table_head(columns: Sequence[tuple[str, bool, bool]]) -> Component:
    """Head of a sortable table.

    Args:
        columns: title, whether it holds numbers (aligned right), and whether it is sorted by number, of each.
    """
    head = [
        html.Th(
            html.Button(title, type="button", className="ss-sort"),
            scope="col",
            className="ss-num" if is_number else "",
            **attributes({"data-sort": "number"} if by_number else {}),
        )
        for title, is_number, by_number in columns
    ]
    return html.Thead(html.Tr(head))


def sortable_table(
    name: str, columns: Sequence[tuple[str, bool, bool]], rows: Sequence[Component], *, noun: str, caption: str
) -> Component:
    """A table that assets/30-tables.js sorts and searches by its cells' `data-value`.

    Args:
        name: begins its ids.
        columns: as of `table_head`.
        noun: of a row.
    """
    table = html.Table(
        [
            html.Caption(caption, className="ss-sr"),
            table_head(columns),
            slot(html.Tbody, f"{name}-rows", list(rows)),
        ],
        id=f"{name}-table",
        className="ss-table ss-runs ss-sortable",
        **attributes({"data-noun": noun, "data-nouns": form(2, noun)}),
    )
    return html.Div(
        [
            html.Div(table, className="ss-scroll", tabIndex=0, role="region", **attributes({"aria-label": caption})),
            html.P(f"No {noun} matches.", id=f"{name}-none", className="ss-note ss-none", hidden=True),
        ]
    )


def search_field(name: str, label: str, placeholder: str) -> Component:
    """The search field of a sortable table."""
    field: Component = dmc.TextInput(
        id=f"{name}-search", placeholder=placeholder, className="ss-search", **attributes({"aria-label": label})
    )
    return field


def run_link(run: str, content: Any, **properties: Any) -> Component:
    """Link to the run's page. DMC's anchor does not reload but decodes the address; the plain one reloads."""
    quoted = quote(run, safe="")
    link: Component = (dmc.Anchor if quoted == run else html.A)(content, href=f"/runs/{quoted}", **properties)
    return link
