"""Which small number stands for a value? Values get numbers in order of first sight, and numbers become columns."""

from __future__ import annotations

import struct
from collections.abc import Collection, Hashable
from typing import TypeVar

import numpy as np

from stepscope.trace.columns import NONE, IntColumn

Value = TypeVar("Value", bound=Hashable)

_WIDTHS = tuple(
    (np.dtype(width), int(np.iinfo(width).min), int(np.iinfo(width).max)) for width in (np.int8, np.int16, np.int32)
)


class Numbered(dict[Value, int]):
    """Value -> number; asking for a new value numbers it."""

    def __missing__(self, value: Value) -> int:
        number = self[value] = len(self)
        return number


def narrow(column: IntColumn) -> IntColumn:
    """The same integers in the smallest type that holds them."""
    if not len(column):
        return column.astype(np.int8)
    low, high = int(column.min()), int(column.max())
    for width, least, most in _WIDTHS:
        if least <= low and high <= most:
            return column.astype(width)
    return column


def integers(values: Collection[int]) -> IntColumn:
    """Integers as a narrow column; those beyond int64 become NONE. Packing takes less long than np.fromiter."""
    try:
        return narrow(np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64))
    except struct.error:
        fitting = (value if -(2**63) <= value < 2**63 else NONE for value in values)
        return narrow(np.fromiter(fitting, np.int64, len(values)))


class GrowingColumn:
    """One column that grows: its room doubles, and what is not filled yet takes no memory."""

    def __init__(self) -> None:
        self._array: IntColumn = np.empty(0, np.int8)
        self._count = 0

    def add(self, part: IntColumn) -> None:
        """Append a part; the column widens when a part is wider."""
        count = self._count + len(part)
        is_wider = part.dtype.itemsize > self._array.dtype.itemsize
        if is_wider or count > len(self._array):
            room = 2 * count if count > len(self._array) else len(self._array)
            larger = np.empty(room, part.dtype if is_wider else self._array.dtype)
            larger[: self._count] = self._array[: self._count]
            self._array = larger
        self._array[self._count : count] = part
        self._count = count

    def finish(self) -> IntColumn:
        """The whole column; nothing can be added after it."""
        self._array.resize(self._count, refcheck=False)
        return self._array
