"""In which order do rows come by one column, and by another where that one ties?

As np.lexsort says, which sorts by both columns in full: here the second one is looked at only where the first ties, and
what is nearly in order (a trace mostly is) is sorted sooner.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import IntColumn


def order_of(major: IntColumn, minor: IntColumn) -> npt.NDArray[np.intp]:
    """Positions by `major`, then by `minor`, then as they stand."""
    if not len(major):
        return np.empty(0, np.intp)
    order = np.argsort(major, kind="stable")
    sorted_major = major[order]
    ties = sorted_major[1:] == sorted_major[:-1]
    places = np.flatnonzero(np.concatenate((ties, [False])) | np.concatenate(([False], ties)))
    tied = order[places]
    order[places] = tied[np.lexsort((minor[tied], major[tied]))]
    return order
