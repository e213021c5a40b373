"""What adds up over kernels, so that groups of them, and ranks, can be joined by plain addition?"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.occupancy import Limiter
from stepscope.analyzer.roofline.kernel_costs import DecidedBy
from stepscope.core.timeline import HEADING_ORDER

Sums = npt.NDArray[np.float64]
"""Sums of groups of kernels, shape (groups, SIZE)."""


class Flag(IntEnum):
    """What may be wrong with a kernel; docs/kernels.md tells the evidence of each."""

    NO_TENSOR_CORES = 0
    UNALIGNED = 1
    SMALL_GRID = 2
    TAIL_WAVE = 3
    LOW_OCCUPANCY = 4
    INEFFICIENT_KERNELS = 5
    UNFUSED = 6
    TINY_KERNELS = 7


COUNT = 0
"""kernels that own time in the window"""
TINY_COUNT = 1
OWNED_NS = 2
DURATION_NS = 3
MODELLED_NS = 4
"""duration of those whose floors are known"""
FLOOR_NS = 5
"""their larger floors"""
FITTED_NS = 6
"""owned time of those whose occupancy is known"""
OCCUPIED_NS = 7
"""the same, each weighted with its theoretical occupancy"""
ACHIEVED_NS = 8
"""the same, with the one that its grid allows"""
_SCALARS = 9

FLAGS = slice(_SCALARS, _SCALARS + len(Flag))
"""Owned time by flag; a kernel may have several."""
HEADINGS = slice(FLAGS.stop, FLAGS.stop + len(HEADING_ORDER))
"""Owned time by the heading of the limit."""
DECIDED = slice(HEADINGS.stop, HEADINGS.stop + len(DecidedBy))
"""Owned time by how the limit was decided."""
LIMITERS = slice(DECIDED.stop, DECIDED.stop + len(Limiter))
"""Owned time by what limits the occupancy."""
SIZE = LIMITERS.stop


def flagged(sums: npt.NDArray[np.float64], flag: Flag) -> float:
    """Owned nanoseconds of a group's kernels that have a flag."""
    return float(sums[FLAGS.start + flag])
