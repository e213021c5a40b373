"""How do numbers stand in rows and columns?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash.development.base_component import Component

from stepscope.dashboard.components.attributes import attributes


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head; numbers stand to the right."""

    title: str
    is_number: bool = False
    hint: str | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, caption: str, class_name: str = "") -> Component:
    """An HTML table that scrolls sideways on a narrow page; the first cell of a row is its head."""
    head = html.Tr(
        [html.Th(column.title, scope="col", className=_class(column), title=column.hint) for column in columns]
    )
    return html.Div(
        html.Table(
            [
                html.Caption(caption, className="ss-sr"),
                html.Thead(head),
                html.Tbody([_row(columns, row) for row in rows]),
            ],
            className=f"ss-table {class_name}".strip(),
        ),
        className="ss-scroll",
        tabIndex=0,
        role="region",
        **attributes({"aria-label": caption}),
    )


def _row(columns: Sequence[Column], cells: Sequence[Any]) -> Component:
    first, *others = cells
    return html.Tr(
        [
            html.Th(first, scope="row", className=_class(columns[0])),
            *(html.Td(cell, className=_class(column)) for cell, column in zip(others, columns[1:], strict=True)),
        ]
    )


def _class(column: Column) -> str:
    return "ss-num" if column.is_number else ""
