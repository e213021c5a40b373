"""Scaling: the share of the work that does not scale, with its interval, from a weighted line through 1/n.

Amdahl: step(n) = a + b/n, serial share a / (a + b). Gustafson: rate of one rank(n) = a + b/n, serial share b / (a + b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from stepscope.analyzer.compare.comparison import RUN_SPREAD
from stepscope.analyzer.compare.statistics import LEVEL, summarise_steps, two_sided_t
from stepscope.reference_workloads.bench.result import STRONG, ScalingFit

MIN_RUNS = 3
"""With fewer runs of a scale their spread is not measured but assumed, as `stepscope compare` has it."""


_RESOLUTION = 1e-6
"""Of a clock that counts nanoseconds, in a step of a millisecond."""


@dataclass(frozen=True, slots=True)
class Point:
    """A scale's median step in milliseconds, with the variance and the degrees of freedom of that figure."""

    scale: float
    step_ms: float
    variance: float
    freedom: float

    @property
    def relative_error(self) -> float:
        """Standard error as a share of the step; what repeats to the last digit is as sure as a clock tells."""
        return max(math.sqrt(self.variance) / self.step_ms, _RESOLUTION)


def scale_point(scale: float, runs: Sequence[Sequence[float]]) -> Point:
    """The step of a scale from its runs' steps."""
    figures = [summarise_steps(run) for run in runs]
    step = median(value for run in runs for value in run)
    if len(figures) >= MIN_RUNS:
        between = variance([figure.value for figure in figures])
        return Point(scale, step, between / len(figures), len(figures) - 1.0)
    within = fmean(figure.variance for figure in figures)
    return Point(scale, step, (within + (RUN_SPREAD * step) ** 2) / len(figures), math.inf)


def efficiency(point: Point, smallest: Point, *, rate: float, smallest_rate: float) -> tuple[float, float, float]:
    """Items per second and rank against the smallest scale's: the share, and its 95 % interval."""
    share = rate / smallest_rate
    if point is smallest:
        return share, share, share
    error = share * math.hypot(point.relative_error, smallest.relative_error)
    half = two_sided_t(LEVEL, min(point.freedom, smallest.freedom)) * error
    return share, share - half, share + half


def fit_scaling(points: Sequence[Point], scaling: str) -> ScalingFit | None:
    """The law of strong or weak scaling through the points; None with fewer than two."""
    if len(points) < 2:
        return None
    is_strong = scaling == STRONG
    figures = [point.step_ms if is_strong else 1.0 / point.step_ms for point in points]
    weights = [(1.0 / (figure * point.relative_error)) ** 2 for figure, point in zip(figures, points, strict=True)]
    a, b, covariance = _line([1.0 / point.scale for point in points], figures, weights)
    fitted = [a + b / point.scale for point in points]
    misfits = [abs(found - figure) / figure for found, figure in zip(fitted, figures, strict=True)]
    spare = len(points) - 2
    excess = sum(w * (f - y) ** 2 for w, f, y in zip(weights, fitted, figures, strict=True)) / spare if spare else 1.0
    serial = a / (a + b) if is_strong else b / (a + b)
    var_a, var_b, both = covariance
    # The share's derivatives by a and b are b / (a+b)^2 and -a / (a+b)^2, with the opposite signs under Gustafson.
    error = math.sqrt(max(0.0, b * b * var_a + a * a * var_b - 2 * a * b * both) * max(1.0, excess)) / (a + b) ** 2
    half = two_sided_t(LEVEL, min(point.freedom for point in points)) * error
    law = "amdahl" if is_strong else "gustafson"
    return ScalingFit(law, serial, (serial - half, serial + half), max(misfits) if spare else None)


def _line(
    places: Sequence[float], figures: Sequence[float], weights: Sequence[float]
) -> tuple[float, float, tuple[float, float, float]]:
    """Weighted least squares a + b x: a, b, and the variances of both with their covariance."""
    total = sum(weights)
    first = sum(w * x for w, x in zip(weights, places, strict=True))
    second = sum(w * x * x for w, x in zip(weights, places, strict=True))
    mean = sum(w * y for w, y in zip(weights, figures, strict=True))
    cross = sum(w * x * y for w, x, y in zip(weights, places, figures, strict=True))
    determinant = total * second - first * first
    a = (second * mean - first * cross) / determinant
    b = (total * cross - first * mean) / determinant
    return a, b, (second / determinant, total / determinant, -first / determinant)


def percentile_95(values: Sequence[float]) -> float:
    """The 95th percentile, between neighbours by proportion."""
    ordered = sorted(values)
    place = 0.95 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median_over_ranks(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Of each step, the median of what all ranks took."""
    return [median(step) for step in zip(*ranks, strict=True)]
