"""Names as text: the nearest known name, short kernel names, safe label values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from stepscope.core.errors import UsageError


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to this one; None where none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def unknown_name(
    what: str, given: str, known: Iterable[str], *, where: str = "", near: str | None = None, listing: str = ""
) -> UsageError:
    """The error of a name that is not a known one: the name, the nearest known one, and the list.

    Args:
        near: the nearest, where the names' likeness alone does not tell it.
        listing: where the known names are listed, where they are too many for the line.
    """
    known = list(known)
    listing = listing or f"known: {', '.join(known)}"
    near = near or nearest(given, known)
    what_next = listing if near is None else f'did you mean "{near}"? {listing[0].upper()}{listing[1:]}'
    return UsageError(f'unknown {what} "{given}"', where=where, what_next=what_next)


_NAMESPACES = re.compile(r"\b(at|native|c10|cutlass|cutlass_cudnn|cub|thrust|internal|std)::|\(anonymous namespace\)::")


def short_kernel_name(name: str, *, max_length: int = 56) -> str:
    """The name without return type and common namespaces, cut to `max_length` characters."""
    bare = _NAMESPACES.sub("", name.removeprefix("void "))
    return bare if len(bare) <= max_length else bare[: max_length - 3] + "..."


MAX_LABEL_LENGTH = 100
MAX_ID_LENGTH = 320
"""A pod's namespace has up to 63 characters, its name 253."""


def label_text(text: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """A user's text (the name of a job, a pod, a process) as a label value.

    Characters that are not printable (control characters, direction overrides) become spaces; long texts are cut.
    """
    if len(text) <= max_length and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: max_length + 1])
    return plain if len(plain) <= max_length else plain[: max_length - 1] + "…"
