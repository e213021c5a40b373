"""How sure is the median of repeated measurements?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

_SEED = 7
_RESAMPLES = 2000


class Interval(NamedTuple):
    """A median, and between what it is with 95 %."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """For people."""
        return f"{self.median:.4f} (95 %: {self.low:.4f} to {self.high:.4f})"


def interval_of(values: Sequence[float]) -> Interval:
    """By resampling."""
    resampled = np.random.default_rng(_SEED).choice(values, (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(resampled, axis=1), (2.5, 97.5))
    return Interval(median(values), float(low), float(high))
