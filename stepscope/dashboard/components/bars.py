"""How is a share drawn without a chart library? As boxes whose width is the share."""

from __future__ import annotations

from collections.abc import Iterable

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Ledger
from stepscope.core.headings import Heading
from stepscope.core.palette import pattern
from stepscope.core.timeline import HEADING_ORDER
from stepscope.core.words import HEADING_MEANINGS, heading_words, percent
from stepscope.dashboard.components.attributes import attributes

LABELLED_SHARE = 0.055
"""Below this a box is too narrow for its number; the hover and the table tell it."""


def stacked_bar(ledger: Ledger, *, label: str) -> Component:
    """One row that adds up to 100 %, headings always in the same order."""
    boxes = [_box(heading, ledger.get(heading, 0.0)) for heading in HEADING_ORDER if ledger.get(heading, 0.0) > 0]
    spoken = ", ".join(
        f"{heading_words(heading)} {percent(share)}"
        for heading, share in sorted(ledger.items(), key=lambda item: -item[1])[:5]
        if share > 0
    )
    return html.Div(boxes, className="ss-stacked", role="img", **attributes({"aria-label": f"{label}: {spoken}"}))


def share_bar(
    share: float, *, heading: Heading, largest: float, interval: tuple[float, float] | None = None
) -> Component:
    """One bar of a list, scaled to the largest, with its interval as a whisker."""
    scale = 100 / largest if largest > 0 else 0.0
    width = f"{_clamped(share * scale, 100):.3f}%"
    marks = [html.Div(className=f"ss-bar {_classes(heading)}", style={"width": width})] if share > 0 else []
    if interval:
        low, high = (_clamped(edge * scale, 100) for edge in interval)
        marks.append(html.Div(className="ss-whisker", style={"left": f"{low:.3f}%", "width": f"{high - low:.3f}%"}))
    return html.Div(marks, className="ss-bar-track", **attributes({"aria-hidden": "true"}))


def legend(headings: Iterable[Heading]) -> Component:
    """Colour, texture and name of each heading, in the fixed order."""
    present = set(headings)
    items = [
        html.Li(
            [swatch(heading), heading_words(heading)],
            title=f"At this instant {HEADING_MEANINGS.get(heading, 'nothing else fits')}.",
        )
        for heading in HEADING_ORDER
        if heading in present
    ]
    return html.Ul(items, className="ss-legend")


def swatch(heading: Heading) -> Component:
    """A small box in the heading's colour and texture."""
    return html.Span(className=f"ss-swatch {_classes(heading)}", **attributes({"aria-hidden": "true"}))


def _box(heading: Heading, share: float) -> Component:
    text = f"{heading_words(heading)} {percent(share)}"
    number = (
        html.Span(f"{_clamped(share, 1) * 100:.0f}", className="ss-box-number") if share >= LABELLED_SHARE else None
    )
    return html.Div(
        number, className=f"ss-box {_classes(heading)}", style={"width": f"{_clamped(share, 1) * 100:.4f}%"}, title=text
    )


def _clamped(value: float, largest: float) -> float:
    """Within 0 and `largest`; a damaged file's 1e300 must not widen the page."""
    return min(max(value, 0.0), largest)


def _classes(heading: Heading) -> str:
    return f"ss-h-{heading.value} ss-p-{pattern(heading)}"
