"""Which host call launched each device activity?

Both carry the call's correlation id. An id may be that of several calls: the profiler started twice, the 32-bit
counter came round, a runtime call holds the driver call that does its work. Only a call that began by then can have
launched an activity, and of several such calls the last did.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns

Rows = npt.NDArray[np.intp]

SPARSE_IDS = 16
"""Ids usually count up, so a table indexed by id is fastest; beyond this many ids a row, sort instead."""


def launch_rows(trace: TraceColumns, activity_rows: IntColumn) -> Rows:
    """For each device activity, the row of the runtime or driver call that launched it, or NONE.

    Where every call of an id begins after the activity (the device's clock is off), the first of them counts.
    """
    calls = trace.rows_of(Category.RUNTIME)
    ids, wanted = trace.correlation[calls], trace.correlation[activity_rows]
    found = last_row_of_id(ids, calls, wanted)
    repeated = _repeated(ids)
    if len(repeated):
        several = np.flatnonzero(np.isin(wanted, repeated))
        found[several] = _last_begun(trace, calls[np.isin(ids, repeated)], activity_rows[several])
    return found


def _repeated(ids: IntColumn) -> IntColumn:
    """The ids that several rows have; ids below 1 are none."""
    ordered = np.sort(ids, kind="stable")
    again: IntColumn = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] > 0)]
    return again


def last_row_of_id(ids: IntColumn, rows: Rows, wanted: IntColumn) -> Rows:
    """Row whose id is wanted (the last of several), or NONE; ids below 1 are none."""
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
    """The last call of each activity's id that begins no later than it, else the first of that id; each has one."""
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
