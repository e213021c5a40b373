"""How many standard errors wide is a confidence interval? Student's t for any, also fractional, degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache

_LARGEST_T = 1e6
_AS_GOOD_AS_INFINITE = 1e6
"""Degrees of freedom from which the normal distribution is taken: t differs from it by less than 2e-6 of itself, and
the beta function's logarithms, differences of large numbers, lose more than that from some 1e8 on."""
_MAX_TERMS = 300
_TINY = 1e-300
_EPSILON = 1e-14


def probability_within(t: float, freedom: float) -> float:
    """P(|T| < t) of Student's distribution; the normal one for a freedom above 1e6."""
    if freedom > _AS_GOOD_AS_INFINITE:
        return math.erf(t / math.sqrt(2))
    return 1.0 - _regularised_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def two_sided_t(level: float, freedom: float) -> float:
    """The t with P(|T| > t) = level, to 1e-9 relative; at most 1e6.

    Args:
        level: 0 < level < 1.
        freedom: degrees of freedom, > 0, may be infinite.
    """
    low, high = 0.0, _LARGEST_T
    while high - low > 1e-9 * max(high, 1e-9):
        middle = (low + high) / 2
        if 1.0 - probability_within(middle, freedom) > level:
            low = middle
        else:
            high = middle
    return high


def _regularised_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by the continued fraction of Abramowitz and Stegun 26.5.8."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction, evaluated by Lentz's method."""
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            value *= d * c
        if abs(d * c - 1.0) < _EPSILON:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
