"""Element tree of a panel, its rendering as HTML, and the parts all panels are made of: tables, bars, legends.

A panel is built once, as a tree of `Element`. The report renders it with `to_html`; the dashboard maps it to Dash
components. Every text passes `clean` and is escaped when it is rendered: no name from a trace can become markup, break
the page or make it huge.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepscope.core.documents.analysis import Ledger
from stepscope.core.text.numbers import count, percent, ranks_words
from stepscope.core.text.wording import category_meaning, category_words
from stepscope.core.vocabulary import CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels.palette import pattern

MAX_NAME_CHARS = 160
"""Names from a trace: C++ kernels have names of many kilobytes."""
MAX_TEXT_CHARS = 1000
MAX_RANKS_CHARS = 90
MAX_ATTRIBUTE_CHARS = 1_000_000
"""Pictures are attributes, as data URIs."""

_REPLACED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Control, format (bidirectional overrides), surrogate, private and unassigned characters."""

_VOID_KINDS = frozenset({"meta", "img", "source", "br"})


@dataclass(frozen=True, slots=True)
class Element:
    """One HTML node of a panel.

    Attributes:
        kind: an HTML element's name, or one of two that each renderer draws its own way: `info` (text on demand, as
            `text`) and `tabs` (children of kind `tab`, the first one shown).
        children: flat, without None.
        attributes: by HTML attribute name.
    """

    kind: str
    children: tuple[str | Element, ...]
    attributes: Mapping[str, str]


Child = str | Element | Iterable["Child"] | None


def tag(kind: str, *children: Child, **attributes: str | float | None) -> Element:
    """An HTML node of a panel. In attribute names `_` stands for `-`, a trailing one is dropped; None is left out."""
    named = {
        key.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:.6g}"
        for key, value in attributes.items()
        if value is not None
    }
    return Element(kind, tuple(_flat(children)), named)


def _flat(children: Iterable[Child]) -> Iterator[str | Element]:
    for child in children:
        if isinstance(child, str | Element):
            yield child
        elif child is not None:
            yield from _flat(child)


def to_html(child: Child) -> str:
    """A panel's tree as HTML, all texts escaped."""
    return "".join(_html(node) for node in _flat([child]))


def _html(node: str | Element) -> str:
    if isinstance(node, str):
        return html.escape(clean(node), quote=True)
    if node.kind == "info":
        summary = tag("summary", "How these numbers are made")
        return _html(tag("details", summary, tag("p", node.attributes["text"]), class_="ss-source"))
    if node.kind == "tabs":
        shown, *others = (tab for tab in node.children if isinstance(tab, Element))
        folded = [tag("details", tag("summary", tab.attributes["title"]), tab.children) for tab in others]
        return to_html([shown.children, folded])
    attributes = "".join(
        f' {name}="{html.escape(clean(value, MAX_ATTRIBUTE_CHARS), quote=True)}"'
        for name, value in node.attributes.items()
    )
    if node.kind in _VOID_KINDS:
        return f"<{node.kind}{attributes}/>"
    return f"<{node.kind}{attributes}>{''.join(map(_html, node.children))}</{node.kind}>"


def clean(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Text for a panel without invisible characters, and without its middle beyond `max_chars`."""
    if len(text) > max_chars:
        head = max_chars * 2 // 3
        text = f"{text[:head]} … {text[-(max_chars - head - 3) :]}"
    return "".join("\ufffd" if unicodedata.category(c) in _REPLACED_CATEGORIES else c for c in text.replace("\n", " "))


def name(text: str) -> str:
    """A name from a trace, short enough for a panel's table."""
    return clean(text, MAX_NAME_CHARS)


def short_ranks(ranks: list[int], *, world_size: int | None = None) -> str:
    """Ranks in words for a panel, short even for every other rank of a thousand."""
    return clean(ranks_words(ranks, world_size=world_size), MAX_RANKS_CHARS)


def panel(title: str, *body: Child, key: str, note: str = "", source: str = "") -> Element:
    """Panel: a titled section of the report and of the run page.

    Args:
        key: the section's id, for links.
        note: a line beside the title.
        source: formula and origin of the numbers, shown on demand.
    """
    head = tag(
        "div",
        tag("h2", title, id=f"{key}-title"),
        info(source, about=title) if source else None,
        tag("span", note, class_="ss-note") if note else None,
        class_="ss-panel-head",
    )
    return tag("section", head, body, id=key, class_="ss-panel", aria_labelledby=f"{key}-title")


def info(text: str, *, about: str) -> Element:
    """An explanation in a panel that is shown on demand."""
    return tag("info", text=text, about=about)


def tabs(key: str, panels: Mapping[str, Child]) -> Element:
    """Tabs of a panel: alternative views by title, the first one shown."""
    return tag("tabs", (tag("tab", body, title=title) for title, body in panels.items()), id=f"{key}-tabs")


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a panel's table: title, whether it holds numbers (aligned right, not wrapped), and a tooltip."""

    title: str
    is_number: bool = False
    hint: str | None = None


def number_column(title: str, hint: str | None = None) -> Column:
    """A column of numbers in a panel's table."""
    return Column(title, is_number=True, hint=hint)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    num_all: int = 0,
    what: str = "rows",
    class_: str = "",
) -> list[Element | None]:
    """A panel's table that scrolls sideways on a narrow page, and how many of `num_all` it leaves out.

    The first cell of a row is its heading.
    """
    head = tag("tr", (tag("th", c.title, scope="col", class_=_class_of(c), title=c.hint) for c in columns))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=_class_of(columns[0])),
            (tag("td", cell, class_=_class_of(c)) for c, cell in zip(columns[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    drawn = tag(
        "table",
        tag("caption", caption, class_="ss-sr"),
        tag("thead", head),
        tag("tbody", body),
        class_=f"ss-table {class_}".strip(),
    )
    return [
        tag("div", drawn, class_="ss-scroll", tabindex="0", role="region", aria_label=caption),
        more(num_all - len(rows), what),
    ]


def _class_of(column: Column) -> str | None:
    return "ss-num" if column.is_number else None


def more(number: int, what: str) -> Element | None:
    """Line of a panel on how many of `what` are left out, and where they can be read; None for none."""
    if number <= 0:
        return None
    command = tag("code", "stepscope analyze RUN --json")
    return tag("p", f"{count(number)} more {what} in the output of ", command, ".", class_="ss-note ss-left-out")


MIN_LABELLED_SHARE = 0.055
"""Below this a box is too narrow for its number; the tooltip and the table have it."""
MAX_SPOKEN_CATEGORIES = 5


def stacked_bar(ledger: Ledger, *, label: str, scale: float = 1.0, on_cpu: bool = False) -> Element:
    """One bar of a panel that adds up to 100 %, categories always in the same order; `scale` is its length."""
    shares = {category: _clamped(ledger.get(category, 0.0)) for category in CATEGORY_ORDER}
    boxes = [_box(category, share, on_cpu=on_cpu) for category, share in shares.items() if share > 0]
    largest = sorted(((share, c) for c, share in ledger.items() if share > 0), key=lambda pair: -pair[0])
    spoken = ", ".join(
        f"{category_words(c, on_cpu=on_cpu)} {percent(share)}" for share, c in largest[:MAX_SPOKEN_CATEGORIES]
    )
    style = None if scale == 1.0 else f"width:{_percent(scale)}"
    return tag("div", boxes, class_="ss-stacked", role="img", style=style, aria_label=f"{label}: {spoken}")


def _box(category: TimeCategory, share: float, *, on_cpu: bool) -> Element:
    is_wide = share >= MIN_LABELLED_SHARE
    return tag(
        "div",
        tag("span", f"{share * 100:.0f}", class_="ss-box-number") if is_wide else None,
        class_=f"ss-box {_colour_classes(category)}",
        style=f"width:{_percent(share)}",
        title=f"{category_words(category, on_cpu=on_cpu)} {percent(share)}",
    )


def share_bar(
    share: float, *, category: TimeCategory, largest: float, interval: tuple[float, float] | None = None
) -> Element:
    """One bar of a panel's list, scaled to the largest, with its interval as a whisker."""
    scale = 1 / largest if largest > 0 else 0.0
    marks = []
    if share > 0:
        style = f"width:{_percent(share * scale)}"
        marks.append(tag("div", class_=f"ss-bar {_colour_classes(category)}", style=style))
    if interval is not None:
        low, high = (_clamped(edge * scale) for edge in interval)
        marks.append(tag("div", class_="ss-whisker", style=f"left:{_percent(low)};width:{_percent(high - low)}"))
    return tag("div", marks, class_="ss-bar-track", aria_hidden="true")


def legend(categories: Iterable[TimeCategory], *, on_cpu: bool = False) -> Element:
    """Legend of a panel: colour, texture, name and meaning of each category."""
    items = [
        tag(
            "li",
            swatch(category),
            category_words(category, on_cpu=on_cpu),
            title=f"At this instant {category_meaning(category, on_cpu=on_cpu)}.",
        )
        for category in categories
    ]
    return tag("ul", items, class_="ss-legend")


def swatch(category: TimeCategory) -> Element:
    """A small box of a panel in the category's colour and texture."""
    return tag("span", class_=f"ss-swatch {_colour_classes(category)}", aria_hidden="true")


def _colour_classes(category: TimeCategory) -> str:
    return f"ss-h-{category.value} ss-p-{pattern(category)}"


def _percent(share: float) -> str:
    return f"{_clamped(share) * 100:.3f}%"


def _clamped(share: float) -> float:
    """Within 0 and 1: a damaged file's 1e300, and nan, must not widen the page."""
    return min(max(share, 0.0), 1.0) if share == share else 0.0
