"""Parts that all panels are made of: sections, tables, bars, legends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Ledger
from stepscope.core.text.numbers import percent
from stepscope.core.text.wording import CATEGORY_MEANINGS, category_words
from stepscope.core.vocabulary.categories import CATEGORY_ORDER, TimeCategory
from stepscope.core.vocabulary.palette import pattern


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


LABELLED_SHARE = 0.055
"""Below this a box is too narrow for its number; the hover and the table tell it."""


def stacked_bar(ledger: Ledger, *, label: str) -> Component:
    """One row that adds up to 100 %, headings always in the same order."""
    boxes = [_box(heading, ledger.get(heading, 0.0)) for heading in CATEGORY_ORDER if ledger.get(heading, 0.0) > 0]
    spoken = ", ".join(
        f"{category_words(heading)} {percent(share)}"
        for heading, share in sorted(ledger.items(), key=lambda item: -item[1])[:5]
        if share > 0
    )
    return html.Div(boxes, className="ss-stacked", role="img", **attributes({"aria-label": f"{label}: {spoken}"}))


def share_bar(
    share: float, *, heading: TimeCategory, largest: float, interval: tuple[float, float] | None = None
) -> Component:
    """One bar of a list, scaled to the largest, with its interval as a whisker."""
    scale = 100 / largest if largest > 0 else 0.0
    width = f"{_clamped(share * scale, 100):.3f}%"
    marks = [html.Div(className=f"ss-bar {_classes(heading)}", style={"width": width})] if share > 0 else []
    if interval:
        low, high = (_clamped(edge * scale, 100) for edge in interval)
        marks.append(html.Div(className="ss-whisker", style={"left": f"{low:.3f}%", "width": f"{high - low:.3f}%"}))
    return html.Div(marks, className="ss-bar-track", **attributes({"aria-hidden": "true"}))


def legend(headings: Iterable[TimeCategory]) -> Component:
    """Colour, texture and name of each heading, in the fixed order."""
    present = set(headings)
    items = [
        html.Li(
            [swatch(heading), category_words(heading)],
            title=f"At this instant {CATEGORY_MEANINGS.get(heading, 'nothing else fits')}.",
        )
        for heading in CATEGORY_ORDER
        if heading in present
    ]
    return html.Ul(items, className="ss-legend")


def swatch(heading: TimeCategory) -> Component:
    """A small box in the heading's colour and texture."""
    return html.Span(className=f"ss-swatch {_classes(heading)}", **attributes({"aria-hidden": "true"}))


def _box(heading: TimeCategory, share: float) -> Component:
    text = f"{category_words(heading)} {percent(share)}"
    number = (
        html.Span(f"{_clamped(share, 1) * 100:.0f}", className="ss-box-number") if share >= LABELLED_SHARE else None
    )
    return html.Div(
        number, className=f"ss-box {_classes(heading)}", style={"width": f"{_clamped(share, 1) * 100:.4f}%"}, title=text
    )


def _clamped(value: float, largest: float) -> float:
    """Within 0 and `largest`; a damaged file's 1e300 must not widen the page."""
    return min(max(value, 0.0), largest)


def _classes(heading: TimeCategory) -> str:
    return f"ss-h-{heading.value} ss-p-{pattern(heading)}"


def attributes(named: Mapping[str, object]) -> dict[str, Any]:
    """Keyword arguments for `html.*`: Dash takes any `data-*` and `aria-*`, but its signatures know none of them."""
    return dict(named)
