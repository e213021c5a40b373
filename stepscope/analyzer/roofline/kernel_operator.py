"""Operator of each kernel: the one that launched it, or that of an equivalent kernel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, Category, IntColumn, Rows, TraceColumns, narrow
from stepscope.trace.rows import are_among, distinct, last_row_of_id, sorted_order


def launching_operators(trace: TraceColumns, kernel_rows: IntColumn, launch: Rows) -> Rows:
    """Roofline: for each kernel row, the row of the operator that launched it and gives its cost, or NONE.

    Kineto writes the innermost operator's External id on the kernel and on its launch. Without one (CUDA graphs, Triton
    without a cpu_op, old files, ids of another numbering) the innermost operator open at the launch counts.

    Args:
        launch: as `launch_rows` returns.
    """
    operators = trace.rows_of(Category.CPU_OP)
    if not len(operators) or not len(kernel_rows):
        return np.full(len(kernel_rows), NONE, np.intp)
    found = last_row_of_id(trace.external_id[operators], operators, trace.external_id[kernel_rows])
    unnamed = np.flatnonzero((found == NONE) & (launch != NONE))
    found[unnamed] = last_row_of_id(trace.external_id[operators], operators, trace.external_id[launch[unnamed]])
    # an id of another numbering may hit another operator: the right one is open at the launch
    launched = launch != NONE
    at = trace.start_ns[launch]
    is_wrong = (found != NONE) & launched & ((trace.start_ns[found] > at) | (trace.end_ns[found] < at))
    found[is_wrong] = NONE
    missing = np.flatnonzero((found == NONE) & launched)
    if len(missing):
        found[missing] = innermost_open(trace, operators, launch[missing])
    return found


def innermost_open(trace: TraceColumns, operators: Rows, launches: Rows) -> Rows:
    """Roofline: innermost of some host rows open on each launch's thread at its start, or NONE."""
    found = np.full(len(launches), NONE, np.intp)
    thread = trace.lane[operators]
    launch_thread = trace.lane[launches]
    for lane in distinct(launch_thread):
        asking = np.flatnonzero(launch_thread == lane)
        found[asking] = innermost_on_thread(trace, operators[thread == lane], launches[asking])
    return found


def innermost_on_thread(trace: TraceColumns, operators: Rows, launches: Rows) -> Rows:
    """Roofline: innermost of some nested host rows of one thread that is open at each launch, or NONE.

    Idea: the depth of a row is the number of rows started minus ended before it; at a launch that difference is the
    depth wanted, and the innermost open row is the last of that depth to start. All searches are vectorised.
    """
    if not len(operators):
        return np.full(len(launches), NONE, np.intp)
    start, end = trace.start_ns[operators], trace.end_ns[operators]
    order = sorted_order(start, -end)
    operators, start, end = operators[order], start[order], end[order]
    ends = np.sort(end, kind="stable")  # nearly in order, where a stable sort is many times faster
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
    """For each row, how many of it and later rows are empty at its start: in microseconds some have length 0."""
    is_empty = start == end
    if not is_empty.any():
        return np.zeros(len(start), np.intp)
    empty = np.cumsum(is_empty)
    last = np.flatnonzero(np.concatenate((start[1:] != start[:-1], [True])))  # of the rows that begin together
    up_to_here = np.repeat(empty[last], np.diff(last, prepend=-1))
    return np.asarray(up_to_here - (empty - is_empty))


REACHES = (3, 1, 0)
"""Numbers of neighbours on either side that must be equal, tried in turn."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier (2**64 / golden ratio) of a multiplicative hash; contexts collide once in 2**64 pairs."""


def stand_ins(trace: TraceColumns, kernel_rows: IntColumn, operator: IntColumn) -> Rows:
    """Roofline: for each kernel without operator, the position of an equivalent kernel with one, or NONE.

    Kernels queued when the window opens have no operator, but the same work comes again a step later. Equivalent
    kernels have equal name, grid and block, and equal neighbours on the stream where possible (a persistent kernel has
    one grid for all sizes); of several, the one with the nearest duration.

    Args:
        operator: row of the operator that launched each kernel, or NONE.
    """
    found = np.full(len(kernel_rows), NONE, np.intp)
    orphans = np.flatnonzero(operator == NONE)
    if not len(orphans) or len(orphans) == len(kernel_rows):
        return found
    duration = trace.end_ns[kernel_rows] - trace.start_ns[kernel_rows]
    order = np.lexsort((trace.start_ns[kernel_rows], trace.lane[kernel_rows]))
    lane = trace.lane[kernel_rows[order]]
    # ROCm records the grid with the launch, so kernels without launch are compared by name alone
    bare = orphans[trace.launch[kernel_rows[orphans]] == NONE]
    for some, code in ((orphans, _codes(trace, kernel_rows)), (bare, _names(trace, kernel_rows))):
        donors = np.flatnonzero((operator != NONE) & are_among(code, code[some]))
        for reach in REACHES:
            asking = some[found[some] == NONE]
            if not len(asking) or not len(donors):
                break
            key = np.empty(len(code), np.uint64)
            key[order] = _contexts(code[order], lane, reach)
            found[asking] = _nearest(key, duration, asking, donors)
    return found


def _names(trace: TraceColumns, kernel_rows: IntColumn) -> npt.NDArray[np.uint64]:
    """Hash of a kernel's name."""
    codes: npt.NDArray[np.uint64] = (trace.name[kernel_rows].astype(np.uint64) + np.uint64(1)) * _MIX
    return codes


def _codes(trace: TraceColumns, kernel_rows: IntColumn) -> npt.NDArray[np.uint64]:
    """Hash of a kernel's name, grid and block."""
    launch = (trace.launch[kernel_rows].astype(np.int64) + 2).astype(np.uint64)
    return _names(trace, kernel_rows) ^ launch * (_MIX >> np.uint64(7))


def _contexts(code: npt.NDArray[np.uint64], lane: IntColumn, reach: int) -> npt.NDArray[np.uint64]:
    """Hash of each kernel with its neighbours, for kernels ordered by lane and time."""
    context = np.zeros(len(code), np.uint64)
    for shift in range(-reach, reach + 1):
        neighbour = np.roll(code, -shift)
        at = np.arange(len(code)) + shift
        inside = (at >= 0) & (at < len(code))
        neighbour[~inside | (np.roll(lane, -shift) != lane)] = 0  # before a stream's first and after its last
        context = (context ^ neighbour) * _MIX
        context ^= context >> np.uint64(29)
    return context


def _nearest(key: npt.NDArray[np.uint64], duration: IntColumn, asking: Rows, donors: Rows) -> Rows:
    """The donor with the same key whose duration is nearest, or NONE."""
    keys, rank = np.unique(key[donors], return_inverse=True)
    place = np.minimum(np.searchsorted(keys, key[asking]), len(keys) - 1)
    # donors sorted by key, then duration, as one axis
    longest = int(max(duration[donors].max(), duration[asking].max())) + 1
    axis = rank * longest + duration[donors]
    order = np.argsort(axis, kind="stable")
    wanted = place * longest + duration[asking]
    after = np.searchsorted(axis[order], wanted)
    before, after = order[np.maximum(after - 1, 0)], order[np.minimum(after, len(order) - 1)]
    is_before = (rank[after] != place) | (
        (rank[before] == place) & (np.abs(axis[before] - wanted) <= np.abs(axis[after] - wanted))
    )
    return np.where(keys[place] == key[asking], donors[np.where(is_before, before, after)], NONE)
