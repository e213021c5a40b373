"""Which GPU of a node gives less than its neighbours of the same kind?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

_SCALE = 1.4826
"""The median absolute deviation of normally distributed values, times this, is their standard deviation."""
_MOST_DEVIATIONS = 5.0
_LEAST_EFFECT = 0.08
"""Healthy GPUs of one node differ by 5 % and more (github.com/stas00/ml-engineering, compute/accelerator)."""
_FEWEST_FOR_SPREAD = 4
_PAIR_EFFECT = 0.15
"""Of two or three, none can be called usual: only a large difference is worth a word."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A GPU that gives less.

    Attributes:
        value: its own.
        usual: the median of all; of two or three the best.
        limit: what it would have had to give.
    """

    value: float
    usual: float
    limit: float


def low_outliers(values: Mapping[int, float]) -> dict[int, Outlier]:
    """Those that give less than the others, by index.

    Args:
        values: rates by index, of GPUs of one kind.
    """
    if len(values) < 2:
        return {}
    if len(values) < _FEWEST_FOR_SPREAD:
        usual = max(values.values())
        limit = usual * (1 - _PAIR_EFFECT)
    else:
        usual = median(values.values())
        deviation = _SCALE * median(abs(value - usual) for value in values.values())
        limit = usual - max(_MOST_DEVIATIONS * deviation, _LEAST_EFFECT * usual)
    return {index: Outlier(value, usual, limit) for index, value in values.items() if value < limit}
