"""Names as text: the nearest known name, short kernel names, safe label values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LIKE_ENOUGH = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like this one; None where none is near."""
    near = difflib.get_close_matches(name, list(known), 1, _LIKE_ENOUGH)
    return near[0] if near else None


_NAMESPACES = re.compile(r"\b(at|native|c10|cutlass|cutlass_cudnn|cub|thrust|internal|std)::|\(anonymous namespace\)::")


def short_kernel_name(name: str, *, most: int = 56) -> str:
    """The name without return type and common namespaces, cut to `most` characters."""
    bare = _NAMESPACES.sub("", name.removeprefix("void "))
    return bare if len(bare) <= most else bare[: most - 3] + "..."


LONGEST_LABEL = 100
LONGEST_ID = 320
"""A pod's namespace has 63 letters, its name 253."""


def label_text(text: str, longest: int = LONGEST_LABEL) -> str:
    """The text with spaces for what cannot be seen (control characters, overrides of direction), and cut.

    Args:
        text: of a user: the name of a job, a pod, a process.
        longest: characters.
    """
    if len(text) <= longest and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
