"""Rows of a trace: membership, order, nesting, and the host call that launched each device activity.

A trace's rows are nearly in order of time, so stable sorts and searches are used here, which are faster on such
columns than the hashing of np.isin and np.unique.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, Category, IntColumn, Rows, TraceColumns

_MAX_CODES = 2**62
_MAX_DENSE = 2**20
"""Up to this many possible combinations, a table of all of them is faster than sorting the codes."""

_Integer = TypeVar("_Integer", bound=np.integer[Any])
_Number = TypeVar("_Number", bound=np.number[Any])


def are_among(values: npt.NDArray[_Integer], others: npt.NDArray[_Integer]) -> npt.NDArray[np.bool_]:
    """For each value of a trace column whether it is one of the others; fast where these are nearly sorted."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    known = np.sort(others, kind="stable")
    place = np.minimum(np.searchsorted(known, values.astype(known.dtype, copy=False)), len(known) - 1)
    is_known: npt.NDArray[np.bool_] = known[place] == values
    return is_known


def distinct(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """The different values of a trace column, ascending."""
    ordered = np.sort(values, kind="stable")
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def combinations(columns: tuple[IntColumn, ...]) -> tuple[IntColumn, IntColumn]:
    """For each trace row the number of its combination of values, and for each combination its first row."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        place = column.astype(np.intp) + 1  # NONE is a value too
        used = np.zeros(int(place.max(initial=0)) + 1, np.bool_)
        used[place] = True
        number = np.cumsum(used) - 1
        num_values = int(number[-1]) + 1
        if size * num_values > _MAX_CODES:
            code = np.unique(code, return_inverse=True)[1]
            size = int(code.max(initial=0)) + 1
        code = code * num_values + number[place]
        size *= num_values
    if size > _MAX_DENSE:
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return which, first
    first_of = np.full(size, NONE, np.int64)
    first_of[code[::-1]] = np.arange(len(code))[::-1]  # the last assignment wins: that of the first row
    is_used = first_of != NONE
    return (np.cumsum(is_used) - 1)[code], first_of[is_used]


def on_lanes(trace: TraceColumns, rows: IntColumn, lanes: Iterable[int]) -> npt.NDArray[np.intp]:
    """Those of the trace rows that are on these lanes; NONE is not a lane."""
    is_wanted = np.zeros(len(trace.lanes) + 1, np.bool_)
    is_wanted[[lane for lane in lanes if lane != NONE]] = True
    return rows[is_wanted[trace.lane[rows]]]


def row_mask(trace: TraceColumns, rows: IntColumn) -> npt.NDArray[np.bool_]:
    """For each row of the trace whether it is one of these; the last of one more entry, for NONE, is False."""
    mask = np.zeros(len(trace) + 1, np.bool_)
    mask[rows] = True
    mask[NONE] = False
    return mask


def sorted_order(major: IntColumn, minor: IntColumn) -> npt.NDArray[np.intp]:
    """Positions in trace columns sorted by `major`, then `minor`, then position.

    Equals np.lexsort((minor, major)); faster on nearly sorted data, as `minor` is compared only where `major` ties.
    """
    if not len(major):
        return np.empty(0, np.intp)
    order = np.argsort(major, kind="stable")
    sorted_major = major[order]
    ties = sorted_major[1:] == sorted_major[:-1]
    places = np.flatnonzero(np.concatenate((ties, [False])) | np.concatenate(([False], ties)))
    tied = order[places]
    order[places] = tied[np.lexsort((minor[tied], major[tied]))]
    return order


def outermost(trace: TraceColumns, rows: IntColumn) -> Rows:
    """Those of the trace rows that no other of them encloses on its thread, by thread and start."""
    found = [np.empty(0, np.intp)]
    for lane in distinct(trace.lane[rows]).tolist():
        own = rows[trace.lane[rows] == lane]
        own = own[np.lexsort((-trace.end_ns[own], trace.start_ns[own]))]
        reach = np.maximum.accumulate(trace.end_ns[own])
        found.append(own[np.concatenate(([True], trace.start_ns[own[1:]] >= reach[:-1]))])
    return np.concatenate(found)


def graph_launches(trace: TraceColumns) -> Rows:
    """Trace rows: the calls in a trace's columns that launch a CUDA or HIP graph."""
    return trace.rows_named(lambda name: "GraphLaunch" in name, Category.RUNTIME)


SPARSE_IDS = 16
"""Ids usually count up, so a table indexed by id is fastest; with more possible ids a row, sorting is."""


def launch_rows(trace: TraceColumns, activity_rows: IntColumn) -> Rows:
    """Trace rows: for each device activity, the row of the runtime or driver call that launched it, or NONE.

    Both carry the same correlation id. Several calls may share an id (the profiler started twice, the 32-bit counter
    wrapped, a runtime call contains the driver call that does its work): the last that began before the activity
    launched it. Where all began after it (the device's clock is off), the first did.
    """
    calls = trace.rows_of(Category.RUNTIME)
    ids, wanted = trace.correlation[calls], trace.correlation[activity_rows]
    found = last_row_of_id(ids, calls, wanted)
    ordered = np.sort(ids, kind="stable")
    repeated = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)]
    if len(repeated):
        several = np.flatnonzero(np.isin(wanted, repeated))
        found[several] = _last_begun(trace, calls[np.isin(ids, repeated)], activity_rows[several])
    return found


def last_row_of_id(ids: IntColumn, rows: Rows, wanted: IntColumn) -> Rows:
    """For each wanted id its trace row (the last of several), or NONE; ids below 1 are not ids."""
    real = ids > 0
    ids, rows = ids[real], rows[real]
    if not len(ids) or not np.any(wanted > 0):
        return np.full(len(wanted), NONE, np.intp)
    largest = int(ids.max())
    if largest < SPARSE_IDS * len(ids):
        row_of = np.full(largest + 1, NONE, np.int32)
        row_of[ids] = rows
        return np.where((wanted > 0) & (wanted <= largest), row_of[np.clip(wanted, 0, largest)], NONE).astype(np.intp)
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    place = np.maximum(np.searchsorted(ids, wanted, side="right") - 1, 0)
    return np.where((ids[place] == wanted) & (wanted > 0), rows[place], NONE)


def _last_begun(trace: TraceColumns, calls: Rows, activities: IntColumn) -> Rows:
    """For each activity the last call of its id that begins no later, else the first of that id; each has one."""
    both = np.concatenate((calls, activities))
    ids = trace.correlation[both]
    is_activity = np.arange(len(both)) >= len(calls)
    order = np.lexsort((is_activity, trace.start_ns[both], ids))
    num_before = np.cumsum(~is_activity[order])
    calls = both[order[~is_activity[order]]]
    first = np.searchsorted(trace.correlation[calls], trace.correlation[activities], side="left")
    before = np.empty(len(both), np.intp)
    before[order] = num_before - 1
    return calls[np.maximum(before[len(calls) :], first)]
