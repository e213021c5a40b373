"""Which values are among others? By search in sorted ones: np.isin and np.unique hash, which takes much longer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import IntColumn


def are_among(values: IntColumn, others: IntColumn) -> npt.NDArray[np.bool_]:
    """For each value whether it is one of the others; fastest where these are nearly sorted."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    known = np.sort(others, kind="stable")
    place = np.minimum(np.searchsorted(known, values.astype(known.dtype, copy=False)), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[place] == values
    return found
