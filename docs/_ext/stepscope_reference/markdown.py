"""Markdown: tables, and text from the code made safe for a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_<>\[\]|])")


def text(plain: str) -> str:
    """Text as it stands, on one line; what is between backticks stays code."""
    parts = _CODE.split(" ".join(plain.split()))
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def code(plain: str) -> str:
    """A word as code; nothing for an empty one."""
    return f"`{plain}`" if plain else ""


def codes(words: Iterable[str]) -> str:
    """Words as code, separated by commas."""
    return ", ".join(map(code, words))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty columns are left out, and without rows there is none."""
    made = [list(row) for row in rows]
    kept = [at for at in range(len(titles)) if any(row[at] for row in made)]
    lines = [[titles[at] for at in kept], ["---"] * len(kept), *([_cell(row[at]) for at in kept] for row in made)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if made else ""


def _cell(content: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", content)
