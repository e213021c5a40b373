"""Which kernel stands for one whose launch the trace does not hold?

Kernels still queued when the window opens have no operator, but the same work comes again a step later. The stand-in
is a kernel of the same name, grid and block; a persistent kernel has one grid for all sizes, so its neighbours on the
stream must be the same as well, as far as that finds one; of several, the one that took most nearly as long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.membership import are_among
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

Places = npt.NDArray[np.intp]

REACHES = (3, 1, 0)
"""How many neighbours on either side must agree, one try after the other."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier (2**64 / golden ratio) that spreads keys; two contexts meet by chance once in 2**64 pairs."""


def stand_ins(trace: TraceColumns, kernel_rows: IntColumn, operator: IntColumn) -> Places:
    """For each kernel without operator the position of the kernel that stands for it; NONE where there is none.

    Args:
        trace: one rank's events.
        kernel_rows: rows of its compute kernels.
        operator: row of the operator that launched each, or NONE.
    """
    found = np.full(len(kernel_rows), NONE, np.intp)
    orphans = np.flatnonzero(operator == NONE)
    if not len(orphans) or len(orphans) == len(kernel_rows):
        return found
    duration = trace.end_ns[kernel_rows] - trace.start_ns[kernel_rows]
    order = np.lexsort((trace.start_ns[kernel_rows], trace.lane[kernel_rows]))
    lane = trace.lane[kernel_rows[order]]
    # ROCm records the grid with the launch, so kernels without one are known by their names alone
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
    """One number for a kernel's name."""
    codes: npt.NDArray[np.uint64] = (trace.name[kernel_rows].astype(np.uint64) + np.uint64(1)) * _MIX
    return codes


def _codes(trace: TraceColumns, kernel_rows: IntColumn) -> npt.NDArray[np.uint64]:
    """One number for a kernel's name, grid and block."""
    launch = (trace.launch[kernel_rows].astype(np.int64) + 2).astype(np.uint64)
    return _names(trace, kernel_rows) ^ launch * (_MIX >> np.uint64(7))


def _contexts(code: npt.NDArray[np.uint64], lane: IntColumn, reach: int) -> npt.NDArray[np.uint64]:
    """One number for a kernel and its neighbours, of kernels in order of time lane by lane."""
    context = np.zeros(len(code), np.uint64)
    for shift in range(-reach, reach + 1):
        neighbour = np.roll(code, -shift)
        at = np.arange(len(code)) + shift
        inside = (at >= 0) & (at < len(code))
        neighbour[~inside | (np.roll(lane, -shift) != lane)] = 0  # before a stream's first and after its last
        context = (context ^ neighbour) * _MIX
        context ^= context >> np.uint64(29)
    return context


def _nearest(key: npt.NDArray[np.uint64], duration: IntColumn, asking: Places, donors: Places) -> Places:
    """The donor with the same key whose duration is nearest, or NONE."""
    keys, rank = np.unique(key[donors], return_inverse=True)
    place = np.minimum(np.searchsorted(keys, key[asking]), len(keys) - 1)
    # donors of one key stand together, by duration: one sorted axis for all
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
