"""How is a share drawn? As boxes in inline SVG, which prints, scales and needs no script."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.analysis import Ledger
from stepscope.core.headings import Heading
from stepscope.core.palette import pattern
from stepscope.core.timeline import HEADING_ORDER
from stepscope.core.words import HEADING_MEANINGS, heading_words, percent
from stepscope.workflow.report_html.markup import Markup, tag

HEIGHT = 22
LABELLED_SHARE = 0.06
"""Below this a box is too narrow for its number; the tooltip and the table tell it."""


def definitions() -> Markup:
    """The textures that tell the families apart without colour; every bar refers to them."""
    return tag("svg", tag("defs", *(_texture(heading) for heading in Heading)), class_="defs", aria_hidden="true")


def stacked_bar(ledger: Ledger, *, label: str, scale: float = 1.0) -> Markup:
    """One row, headings always in the same order; `scale` is its length as a share of the space."""
    boxes: list[Markup] = []
    place = 0.0
    for heading in HEADING_ORDER:
        share = _clamped(ledger.get(heading, 0.0))
        if share <= 0:
            continue
        boxes += _box(heading, place, share * scale, share)
        place += share * scale
    largest = sorted(((s, h) for h, s in ledger.items() if s > 0), reverse=True, key=lambda pair: pair[0])[:4]
    spoken = ", ".join(f"{heading_words(heading)} {percent(share)}" for share, heading in largest)
    return tag("svg", *boxes, class_="bar", height=HEIGHT, role="img", aria_label=f"{label}: {spoken}")


def share_bar(share: float, *, heading: Heading, largest: float, interval: tuple[float, float] | None = None) -> Markup:
    """One bar of a list, scaled to the largest, with its interval as a whisker."""
    scale = 1 / largest if largest > 0 else 0.0
    marks = [tag("rect", width=_percent(share * scale), height=14, y=1, rx=2, style=_fill(heading))]
    if interval is not None:
        low, high = (_clamped(edge * scale) for edge in interval)
        marks.append(tag("line", x1=_percent(low), x2=_percent(high), y1=8, y2=8, class_="whisker"))
    return tag("svg", *marks, class_="share", height=16, aria_hidden="true")


def legend(headings: Iterable[Heading]) -> Markup:
    """Colour, texture, name and meaning of each heading."""
    items = [tag("li", swatch(h), heading_words(h), title=f"at this instant {HEADING_MEANINGS[h]}") for h in headings]
    return tag("ul", *items, class_="legend")


def swatch(heading: Heading) -> Markup:
    """A heading's mark."""
    box = tag("rect", width=12, height=12, rx=2, style=_fill(heading))
    return tag("svg", box, class_="swatch", width=12, height=12, aria_hidden="true")


def _box(heading: Heading, place: float, width: float, share: float) -> list[Markup]:
    title = tag("title", f"{heading_words(heading)} {percent(share)}")
    # a void element would lose its title
    box = tag("g", title, tag("rect", x=_percent(place), width=_percent(width), height=HEIGHT, style=_fill(heading)))
    if width < LABELLED_SHARE:
        return [box]
    ink = f"fill:var(--ink-{heading.value});stroke:var(--heading-{heading.value})"
    return [box, tag("text", f"{share * 100:.0f}", x=_percent(place + width / 2), y=HEIGHT / 2 + 4, style=ink)]


def _texture(heading: Heading) -> Markup:
    ground = tag("rect", width=8, height=8, style=f"fill:var(--heading-{heading.value})")
    kind = pattern(heading)
    turn, marks = None, Markup()
    if kind == "hatch":
        turn, marks = "rotate(45)", tag("rect", width=2, height=8, class_="texture")
    elif kind == "dots":
        marks = tag("rect", x=1, y=1, width=2, height=2, rx=1, class_="texture")
        marks = Markup(marks + tag("rect", x=5, y=5, width=2, height=2, rx=1, class_="texture"))
    return tag(
        "pattern", ground, marks, id=f"p-{heading.value}", width=8, height=8, patternUnits="userSpaceOnUse",
        patternTransform=turn,
    )  # fmt: skip


def _fill(heading: Heading) -> str:
    return f"fill:url(#p-{heading.value})"


def _percent(share: float) -> str:
    return f"{_clamped(share) * 100:.3f}%"


def _clamped(share: float) -> float:
    """A damaged file's 1e300, and nan, draw nothing absurd."""
    return min(max(share, 0.0), 1.0) if share == share else 0.0
