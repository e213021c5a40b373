"""Which small number stands for a value? Values get numbers in order of first sight, and numbers become columns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, IntColumn

Value = TypeVar("Value", bound=Hashable)

_WIDTHS: tuple[type[np.signedinteger], ...] = (np.int8, np.int16, np.int32)


class Numbered(dict[Value, int]):
    """Value -> number; asking for a new value numbers it."""

    def __missing__(self, value: Value) -> int:
        number = self[value] = len(self)
        return number


def narrow(column: IntColumn) -> IntColumn:
    """The same integers in the smallest type that holds them."""
    if not len(column):
        return column.astype(np.int8)
    low, high = column.min(), column.max()
    for width in _WIDTHS:
        limits = np.iinfo(width)
        if limits.min <= low and high <= limits.max:
            return column.astype(width)
    return column


def integers(values: Iterable[int], count: int) -> IntColumn:
    """Integers as a narrow column; those beyond int64 (or no integers at all) become NONE."""
    kept = values if isinstance(values, Sequence) else list(values)
    try:
        return narrow(np.fromiter(kept, np.int64, count))
    except OverflowError:
        fitting = (value if -(2**63) <= value < 2**63 else NONE for value in kept)
        return narrow(np.fromiter(fitting, np.int64, count))


class GrowingColumn:
    """One column, grown in parts and joined once."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.signedinteger]] = []

    def add(self, part: IntColumn) -> None:
        """Append a part; parts may differ in width."""
        self._parts.append(part)

    def join(self) -> IntColumn:
        """The whole column, in its widest part's type; the parts are freed on the way."""
        if not self._parts:
            return np.empty(0, np.int8)
        joined = np.empty(sum(map(len, self._parts)), np.result_type(*{part.dtype for part in self._parts}))
        self._parts.reverse()
        position = 0
        while self._parts:
            part = self._parts.pop()
            joined[position : position + len(part)] = part
            position += len(part)
        return joined
