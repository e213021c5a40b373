"""Does a GPU work in bursts, and how often do they come?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FULL, _EMPTY = 0.5, 0.05
_FEWEST = 8
"""Samples below which no rhythm is looked for."""
_AS_GOOD = 0.9
_REPEATS = 0.4
"""Correlation of a series with itself, one period later, from which it has a rhythm."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """Work that comes and goes by whole samples.

    Attributes:
        duty: share of samples in which the GPU worked.
        empty: share of samples without any work.
        period_seconds: from one burst to the next; None without a rhythm.
    """

    duty: float
    empty: float
    period_seconds: float | None


def bursts_of(activity: Sequence[float], seconds_between: float) -> Bursts | None:
    """Bursts of a series of activity (0..1), None where there are none or too few samples to tell.

    Args:
        activity: one value a sample, at even distances.
        seconds_between: two samples.
    """
    if len(activity) < _FEWEST or max(activity) < _FULL:
        return None
    empty = sum(value < _EMPTY for value in activity) / len(activity)
    if not 0.1 <= empty <= 0.95:
        return None
    lag = _period(activity)
    duty = sum(value >= _EMPTY for value in activity) / len(activity)
    return Bursts(duty, empty, None if lag is None else lag * seconds_between)


def _period(activity: Sequence[float]) -> int | None:
    """The first lag at which the series repeats itself about best, after having differed; None without one."""
    count = len(activity)
    mean = sum(activity) / count
    deviations = [value - mean for value in activity]
    power = sum(value * value for value in deviations) / count
    if power <= 0:
        return None
    correlations: dict[int, float] = {}
    has_differed = False
    for lag in range(1, count // 2 + 1):
        pairs = zip(deviations, deviations[lag:], strict=False)
        correlation = sum(a * b for a, b in pairs) / (count - lag) / power
        has_differed = has_differed or correlation < 0
        if has_differed:
            correlations[lag] = correlation
    best = max(correlations.values(), default=0.0)
    if best < _REPEATS:
        return None
    return next(lag for lag, correlation in correlations.items() if correlation >= _AS_GOOD * best)
