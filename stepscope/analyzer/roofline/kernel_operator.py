"""Which operator launched each kernel?

Kineto writes the innermost operator's External id on the kernel and on its launch. Where it does not (CUDA graphs,
Triton without a cpu_op, old files, ids of another numbering), the innermost operator open on the launching thread at
the launch counts.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.launches import Rows, last_row_of_id
from stepscope.analyzer.membership import distinct
from stepscope.analyzer.ordering import order_of
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.interning import narrow


def launching_operators(trace: TraceColumns, kernel_rows: IntColumn, launch: Rows) -> Rows:
    """For each kernel row, the row of the operator that launched it, or NONE.

    Args:
        trace: one rank's events.
        kernel_rows: rows of kernels.
        launch: as `launch_rows` finds them.
    """
    operators = trace.rows_of(Category.CPU_OP)
    if not len(operators) or not len(kernel_rows):
        return np.full(len(kernel_rows), NONE, np.intp)
    found = last_row_of_id(trace.external_id[operators], operators, trace.external_id[kernel_rows])
    unnamed = np.flatnonzero((found == NONE) & (launch != NONE))
    found[unnamed] = last_row_of_id(trace.external_id[operators], operators, trace.external_id[launch[unnamed]])
    # an id of another numbering may hit a stranger: the operator must be open when the launch is made
    launched = launch != NONE
    at = trace.start_ns[launch]
    stranger = (found != NONE) & launched & ((trace.start_ns[found] > at) | (trace.end_ns[found] < at))
    found[stranger] = NONE
    missing = np.flatnonzero((found == NONE) & launched)
    if len(missing):
        found[missing] = innermost_open(trace, operators, launch[missing])
    return found


def innermost_open(trace: TraceColumns, operators: Rows, launches: Rows) -> Rows:
    """The innermost of some host rows that is open on each launch's thread at its start, or NONE."""
    found = np.full(len(launches), NONE, np.intp)
    thread = trace.lane[operators]
    launch_thread = trace.lane[launches]
    for lane in distinct(launch_thread):
        asking = np.flatnonzero(launch_thread == lane)
        found[asking] = innermost_on_thread(trace, operators[thread == lane], launches[asking])
    return found


def innermost_on_thread(trace: TraceColumns, operators: Rows, launches: Rows) -> Rows:
    """The innermost of some host rows of one thread, where they nest, that is open at each launch, or NONE."""
    if not len(operators):
        return np.full(len(launches), NONE, np.intp)
    start, end = trace.start_ns[operators], trace.end_ns[operators]
    order = order_of(start, -end)
    operators, start, end = operators[order], start[order], end[order]
    ends = np.sort(end, kind="stable")  # nearly in order: many times faster than the default
    ended = np.searchsorted(ends, start, side="right") - _empty_from_here_on(start, end)
    depth = np.arange(len(operators)) - ended
    at = trace.start_ns[launches]
    started = np.searchsorted(start, at, side="right")
    wanted_depth = started - np.searchsorted(ends, at, side="right") - 1
    # the last one of the wanted depth that had started: one sorted axis for all depths
    by_depth = np.argsort(narrow(depth), kind="stable")
    axis = depth[by_depth] * (len(operators) + 1) + by_depth
    place = np.searchsorted(axis, wanted_depth * (len(operators) + 1) + started) - 1
    candidate = by_depth[np.maximum(place, 0)]
    is_open = (place >= 0) & (wanted_depth >= 0) & (depth[candidate] == wanted_depth)
    is_open &= (start[candidate] <= at) & (end[candidate] >= at)
    return np.where(is_open, operators[candidate], NONE)


def _empty_from_here_on(start: IntColumn, end: IntColumn) -> Rows:
    """For each row, how many of it and those after it begin and end where it begins: in microseconds some take none."""
    is_empty = start == end
    if not is_empty.any():
        return np.zeros(len(start), np.intp)
    empty = np.cumsum(is_empty)
    last = np.flatnonzero(np.concatenate((start[1:] != start[:-1], [True])))  # of the rows that begin together
    up_to_here = np.repeat(empty[last], np.diff(last, prepend=-1))
    return np.asarray(up_to_here - (empty - is_empty))
