"""Which values, or rows, are among others? By search or by a mask: np.isin and np.unique hash, which takes longer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, IntColumn, TraceColumns


def are_among(values: IntColumn, others: IntColumn) -> npt.NDArray[np.bool_]:
    """For each value whether it is one of the others; fastest where these are nearly sorted."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    known = np.sort(others, kind="stable")
    place = np.minimum(np.searchsorted(known, values.astype(known.dtype, copy=False)), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[place] == values
    return found


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
