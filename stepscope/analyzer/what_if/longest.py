"""When is each slot of a graph reached, by the longer of the two ways that lead to it?

With the optional accelerator in C (`native/longest.c`) where it is built, else in Python, ten times as long.
"""

from __future__ import annotations

from array import array
from types import ModuleType

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.core.acceleration import may_accelerate


def _find_accelerator() -> ModuleType | None:
    try:
        from stepscope.analyzer.what_if import _longest
    except ImportError:  # no compiler
        return None
    return _longest


ACCELERATOR = _find_accelerator()
Slots = npt.NDArray[np.int64]


def longest_times(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """Times of all slots; slot 0 is at 0, every other one waits for two earlier ones.

    Args:
        source, weight: by slot, the slot its first way comes from and what that way takes; ns.
        other, more: the same of the second way.
    """
    if ACCELERATOR is None or not may_accelerate():
        return longest_times_in_python(source, weight, other, more)
    ways = (np.ascontiguousarray(column, np.int64) for column in (source, weight, other, more))
    return np.frombuffer(ACCELERATOR.longest(*ways), np.int64)


def longest_times_in_python(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """The same without the accelerator."""
    times = [0]
    append = times.append
    # arrays hand out their numbers one at a time: as lists, four of a million take 140 MB
    steps = zip(*(array("q", column.tobytes()) for column in (source, weight, other, more)), strict=True)
    next(steps)
    for first, first_takes, second, second_takes in steps:
        a = times[first] + first_takes
        b = times[second] + second_takes
        append(a if a > b else b)
    return np.array(times, np.int64)
