"""Which building blocks do all sections share? Panels, tables that say what they leave out, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.words import count, ranks_words
from stepscope.workflow.report_html.markup import Child, Markup, clean, join, tag

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
