"""How do a few of many things read in one line?"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def listed(items: Iterable[object], most: int = 8) -> str:
    """[0, 1, 2] -> '0, 1, 2'; of more than `most` the first: '0, 1, ...'."""
    shown = [str(item) for item in islice(items, most + 1)]
    return ", ".join(shown if len(shown) <= most else [*shown[:most], "..."])
