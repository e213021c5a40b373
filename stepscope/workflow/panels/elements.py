"""HTML elements, and the parts that all panels are made of: sections, tables, bars, legends.

Every text passes `clean` and is escaped, unless it is Markup, which only this module makes: no name from a trace can
become markup, break the page or blow it up.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.core.documents.analysis import Ledger
from stepscope.core.text.numbers import count, percent, ranks_words
from stepscope.core.text.wording import CATEGORY_MEANINGS, category_words
from stepscope.core.vocabulary.categories import CATEGORY_ORDER, TimeCategory
from stepscope.core.vocabulary.palette import pattern

LONGEST_NAME = 160
"""Characters of a name from a trace; C++ kernels have names of many kilobytes."""

LONGEST_TEXT = 1000
"""Characters of a sentence."""

_REPLACED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Control, format (bidirectional overrides), surrogate, private and unassigned characters."""

_VOID = frozenset({"meta", "img", "source", "rect", "br", "line"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text without characters that are not seen, and no longer than `longest`; the middle of a long one goes."""
    if len(text) > longest:
        head = longest * 2 // 3
        text = f"{text[:head]} … {text[-(longest - head - 3) :]}"
    return "".join("\ufffd" if unicodedata.category(c) in _REPLACED_CATEGORIES else c for c in text.replace("\n", " "))


def name(text: str) -> str:
    """A name from a trace, short enough for a table."""
    return clean(text, LONGEST_NAME)


def tag(kind: str, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. In attribute names `_` stands for `-`, and one at the end is dropped (class_); None leaves it out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(_plain(value), 1_000_000), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if kind in _VOID:
        return Markup(f"<{kind}{said}/>")  # elements of SVG would stay open without the stroke
    return Markup(f"<{kind}{said}>{join(*children)}</{kind}>")


def join(*children: Child) -> Markup:
    """The children one after the other, texts escaped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(clean(child), quote=True))
        elif child is not None:
            parts.append(join(*child))
    return Markup("".join(parts))


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


LONGEST_RANKS = 90


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and whether it holds numbers (set right, not wrapped)."""

    title: str
    is_number: bool = False


def panel(title: str, *body: Child, key: str, note: str = "") -> Markup:
    """One section of the page."""
    small = tag("p", note, class_="note") if note else None
    return tag("section", tag("h2", title, id=f"{key}-title"), small, *body, id=key, aria_labelledby=f"{key}-title")


def table(columns: Sequence[Column], rows: Sequence[Sequence[Child]], *, num_all: int, what: str) -> Markup:
    """A table of `rows`, and a line that says how many of `num_all` it leaves out."""
    head = tag("tr", *(tag("th", c.title, scope="col", class_=_class(c)) for c in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=_class(c)) for c, cell in zip(columns, row, strict=True))) for row in rows
    ]
    return join(
        tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex="0"),
        more(num_all - len(rows), what),
    )


def more(number: int, what: str) -> Markup | None:
    """What is left out, and where it can be read."""
    if number <= 0:
        return None
    return tag(
        "p",
        f"{count(number)} more {what} in the output of ",
        tag("code", "stepscope analyze RUN --json"),
        class_="note",
    )


def some_ranks(ranks: list[int], *, world_size: int) -> str:
    """Ranks as words, short even where every other rank of a thousand is meant."""
    return clean(ranks_words(ranks, world_size=world_size), LONGEST_RANKS)


def _class(column: Column) -> str | None:
    return "num" if column.is_number else None


HEIGHT = 22
LABELLED_SHARE = 0.06
"""Below this a box is too narrow for its number; the tooltip and the table tell it."""


def definitions() -> Markup:
    """The textures that tell the families apart without colour; every bar refers to them."""
    return tag("svg", tag("defs", *(_texture(heading) for heading in TimeCategory)), class_="defs", aria_hidden="true")


def stacked_bar(ledger: Ledger, *, label: str, scale: float = 1.0) -> Markup:
    """One row, headings always in the same order; `scale` is its length as a share of the space."""
    boxes: list[Markup] = []
    place = 0.0
    for heading in CATEGORY_ORDER:
        share = _clamped(ledger.get(heading, 0.0))
        if share <= 0:
            continue
        boxes += _box(heading, place, share * scale, share)
        place += share * scale
    largest = sorted(((s, h) for h, s in ledger.items() if s > 0), reverse=True, key=lambda pair: pair[0])[:4]
    spoken = ", ".join(f"{category_words(heading)} {percent(share)}" for share, heading in largest)
    return tag("svg", *boxes, class_="bar", height=HEIGHT, role="img", aria_label=f"{label}: {spoken}")


def share_bar(
    share: float, *, heading: TimeCategory, largest: float, interval: tuple[float, float] | None = None
) -> Markup:
    """One bar of a list, scaled to the largest, with its interval as a whisker."""
    scale = 1 / largest if largest > 0 else 0.0
    marks = [tag("rect", width=_percent(share * scale), height=14, y=1, rx=2, style=_fill(heading))]
    if interval is not None:
        low, high = (_clamped(edge * scale) for edge in interval)
        marks.append(tag("line", x1=_percent(low), x2=_percent(high), y1=8, y2=8, class_="whisker"))
    return tag("svg", *marks, class_="share", height=16, aria_hidden="true")


def legend(headings: Iterable[TimeCategory]) -> Markup:
    """Colour, texture, name and meaning of each heading."""
    items = [tag("li", swatch(h), category_words(h), title=f"at this instant {CATEGORY_MEANINGS[h]}") for h in headings]
    return tag("ul", *items, class_="legend")


def swatch(heading: TimeCategory) -> Markup:
    """A heading's mark."""
    box = tag("rect", width=12, height=12, rx=2, style=_fill(heading))
    return tag("svg", box, class_="swatch", width=12, height=12, aria_hidden="true")


def _box(heading: TimeCategory, place: float, width: float, share: float) -> list[Markup]:
    title = tag("title", f"{category_words(heading)} {percent(share)}")
    # a void element would lose its title
    box = tag("g", title, tag("rect", x=_percent(place), width=_percent(width), height=HEIGHT, style=_fill(heading)))
    if width < LABELLED_SHARE:
        return [box]
    ink = f"fill:var(--ink-{heading.value});stroke:var(--heading-{heading.value})"
    return [box, tag("text", f"{share * 100:.0f}", x=_percent(place + width / 2), y=HEIGHT / 2 + 4, style=ink)]


def _texture(heading: TimeCategory) -> Markup:
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


def _fill(heading: TimeCategory) -> str:
    return f"fill:url(#p-{heading.value})"


def _percent(share: float) -> str:
    return f"{_clamped(share) * 100:.3f}%"


def _clamped(share: float) -> float:
    """A damaged file's 1e300, and nan, draw nothing absurd."""
    return min(max(share, 0.0), 1.0) if share == share else 0.0
