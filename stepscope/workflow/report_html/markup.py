"""How is HTML written so that no name from a trace can become markup, break the page or blow it up?

Every text passes `clean` and is escaped, unless it is Markup, which only this module makes.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

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
