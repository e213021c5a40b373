"""Which values, or rows, are among others, and which are there at all?

By search, by a mask, by sorting what is nearly sorted: np.isin and np.unique hash, which takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, IntColumn, TraceColumns

_MOST_CODES = 2**62
_MOST_DENSE = 2**20
"""Combinations up to which a table of all that are possible is filled sooner than the codes are sorted."""

_Integer = TypeVar("_Integer", bound=np.integer[Any])
_Number = TypeVar("_Number", bound=np.number[Any])


def are_among(values: npt.NDArray[_Integer], others: npt.NDArray[_Integer]) -> npt.NDArray[np.bool_]:
    """For each value whether it is one of the others; fastest where these are nearly sorted."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    known = np.sort(others, kind="stable")
    place = np.minimum(np.searchsorted(known, values.astype(known.dtype, copy=False)), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[place] == values
    return found


def distinct(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """The different values, ascending."""
    ordered = np.sort(values, kind="stable")  # a trace's columns are narrow, or nearly in order
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def combinations(columns: tuple[IntColumn, ...]) -> tuple[IntColumn, IntColumn]:
    """For each row the number of its combination of values, and for each combination its first row."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        place = column.astype(np.intp) + 1  # NONE is a value, too
        used = np.zeros(int(place.max(initial=0)) + 1, np.bool_)
        used[place] = True
        number = np.cumsum(used) - 1
        num_values = int(number[-1]) + 1
        if size * num_values > _MOST_CODES:
            code = np.unique(code, return_inverse=True)[1]
            size = int(code.max(initial=0)) + 1
        code = code * num_values + number[place]
        size *= num_values
    if size > _MOST_DENSE:
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return which, first
    first_of = np.full(size, NONE, np.int64)
    first_of[code[::-1]] = np.arange(len(code))[::-1]  # the last assignment, of the first row, stays
    is_used = first_of != NONE
    return (np.cumsum(is_used) - 1)[code], first_of[is_used]


def on_lanes(trace: TraceColumns, rows: IntColumn, lanes: Iterable[int]) -> npt.NDArray[np.intp]:
    """Those of the rows that lie on these lanes; NONE is no lane."""
    is_wanted = np.zeros(len(trace.lanes) + 1, np.bool_)
    is_wanted[[lane for lane in lanes if lane != NONE]] = True
    return rows[is_wanted[trace.lane[rows]]]


def row_mask(trace: TraceColumns, rows: IntColumn) -> npt.NDArray[np.bool_]:
    """For each row of the trace whether it is one of these; one entry more, which NONE meets: False."""
    mask = np.zeros(len(trace) + 1, np.bool_)
    mask[rows] = True
    mask[NONE] = False
    return mask
