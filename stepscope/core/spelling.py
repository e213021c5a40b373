"""Which of the known names is most like one that there is not?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKE_ENOUGH = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like this one; None where none is near."""
    near = difflib.get_close_matches(name, list(known), 1, _LIKE_ENOUGH)
    return near[0] if near else None
