"""Outliers among the GPUs of one job, which do the same work: values far from the others' median."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

_LEAST_KNOWN = 4
"""GPUs with a value below which no median speaks for the others."""
_NUM_DEVIATIONS = 4.0
"""Scaled median absolute deviations of the job itself: in a job whose GPUs all differ, none is an outlier. Twice the
usual 2 to 3 (Leys et al. 2013), since one in 10,000 GPUs would be one by chance."""
_SCALE = 1.4826
"""Makes the median absolute deviation a standard deviation for normal values."""


def outliers(values: Sequence[float | None], *, low: float | None = None, high: float | None = None) -> list[int]:
    """Places of the values that are too far from the median of all known ones.

    Args:
        low: how far below the median a value must be; None: a low value is none.
        high: how far above it a value must be; None: a high value is none.
    """
    known = [value for value in values if value is not None]
    if len(known) < _LEAST_KNOWN:
        return []
    middle = median(known)
    spread = _NUM_DEVIATIONS * _SCALE * median(abs(value - middle) for value in known)
    return [
        place
        for place, value in enumerate(values)
        if value is not None
        and (
            (low is not None and middle - value >= max(low, spread) and value < middle)
            or (high is not None and value - middle >= max(high, spread) and value > middle)
        )
    ]
