"""Statistics of a difference: estimate, confidence interval and Student's t, by one rule for every figure.

Unit of replication: the run. Steps of one run share nodes, clocks and neighbours, so a thousand of them say little
about the next run. With four or more runs the spread between runs is measured from them (Welch's t-test on the runs'
figures). With fewer it is assumed, and added to the noise within each run.

Noise within a run: from the medians (or means) of consecutive blocks of steps, not from single steps. Single steps are
correlated; counting them as independent would make the interval several times too narrow. Where a run has so few
steps that a block is one or two of them, their correlation is allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.core.documents.comparison import Change, Difference

_MAX_T = 1e6
_NORMAL_FROM = 1e6
"""Degrees of freedom from which the normal distribution is used: t differs from it by less than 2e-6 relative, and the
logarithms in the beta function, differences of large numbers, lose more precision than that from about 1e8."""
_MAX_TERMS = 300
_TINY = 1e-300
_EPSILON = 1e-14


def probability_within(t: float, freedom: float) -> float:
    """P(|T| < t) of Student's t distribution; of the normal distribution above 1e6 degrees of freedom."""
    if freedom > _NORMAL_FROM:
        return math.erf(t / math.sqrt(2))
    return 1.0 - _regularised_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def two_sided_t(level: float, freedom: float) -> float:
    """The t with P(|T| > t) = level, to 1e-9 relative; at most 1e6. Degrees of freedom may be infinite."""
    low, high = 0.0, _MAX_T
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


LEVEL = 0.05
"""Significance level: share of comparisons without any change that report one."""

MIN_EFFECT = 0.01
"""Smallest share of the step that is called a change, however significant: nobody acts on less."""

MIN_RUNS_TO_MEASURE = 4
"""Runs of both sides together from which the spread between runs is measured: two degrees of freedom remain."""

NUM_BLOCKS = 10
"""Blocks per run: longer blocks are less correlated, fewer blocks give a wider interval."""

SHORT_BLOCKS, LONG_BLOCKS = 20, 5
"""Numbers of blocks by which drift shows. The means of blocks that are four times longer vary a quarter as much where
steps are independent, and as much where the machine drifts (clocks, other tenants of the host); then a longer run does
not tell its mean any better, and the next run may be anywhere in between."""
MIN_STEPS_FOR_DRIFT = 3 * SHORT_BLOCKS

NEIGHBOURS_ALIKE = 2.0
"""Excess variance of a mean of correlated steps: a correlation of 1/2 from step to step makes it three times that of
independent steps. The excess fades as blocks grow."""

MAX_RUNS_ADVISED = 100

Figures = tuple[Sequence["RunFigure"], Sequence["RunFigure"]]
"""One figure per run, for both sides."""

Average = Callable[[npt.NDArray[np.float64]], Any]
"""np.median or np.mean."""


@dataclass(frozen=True, slots=True)
class RunFigure:
    """Figure of one compared run, the variance of its noise within the run, and its freedom (0 if unknown)."""

    value: float
    variance: float = 0.0
    freedom: float = 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """Estimated difference b - a between two sides of runs.

    Attributes:
        a, b: mean figure of each side.
        error: standard error of b - a.
        freedom: degrees of freedom of `error`.
        run_spread: standard deviation of one run's figure between runs, including noise within the run.
        is_measured: whether `run_spread` is measured from the runs rather than assumed.
    """

    a: float
    b: float
    error: float
    freedom: float
    run_spread: float
    is_measured: bool

    def less_certain(self, error: float) -> Effect:
        """The same difference with one more error, which spreads measured between runs have already."""
        if self.is_measured or error <= 0:
            return self
        total = math.hypot(self.error, error)
        freedom = self.freedom * (total / self.error) ** 4 if self.error > 0 else math.inf
        return replace(self, error=total, freedom=freedom)

    def half_width(self, level: float = LEVEL) -> float:
        """Half the width of the confidence interval at confidence 1 - level."""
        return two_sided_t(level, self.freedom) * self.error if self.error > 0 else 0.0


def summarise_steps(steps: Sequence[float] | npt.NDArray[np.float64], average: Average = np.median) -> RunFigure:
    """Figure of a run and its noise, from its step durations in order."""
    values = np.asarray(steps, dtype=float)
    blocks = [float(average(block)) for block in np.array_split(values, min(NUM_BLOCKS, len(values)))]
    variance = float(np.var(blocks, ddof=1)) / len(blocks) if len(blocks) > 1 else 0.0
    variance *= correlation_of_blocks(len(values))
    return RunFigure(float(average(values)), variance, float(len(blocks) - 1))


def estimate_steps(
    a: Sequence[Sequence[float] | npt.NDArray[np.float64]],
    b: Sequence[Sequence[float] | npt.NDArray[np.float64]],
    average: Average,
    *,
    assumed_spread: float,
) -> Effect:
    """Estimate the difference of a figure of the steps of both sides, with what drift within the runs adds."""
    factor = drift_factor([*a, *b], average)
    figures = [[summarise_steps(run, average) for run in side] for side in (a, b)]
    if factor > 1.0:
        figures = [[replace(run, variance=factor * run.variance) for run in side] for side in figures]
    return estimate_difference(*figures, assumed_spread=assumed_spread)


def drift_factor(runs: Sequence[Sequence[float] | npt.NDArray[np.float64]], average: Average) -> float:
    """Variance of a run's figure as growing blocks of steps foretell it, over that by independent blocks; 1 or more.

    The variance of means of blocks of length n falls as n to the power of -1 where steps are independent, more slowly
    where the machine drifts. The power is that of all runs together; a run is one block of all its steps.
    """
    known = [np.asarray(run, dtype=float) for run in runs if len(run) >= MIN_STEPS_FOR_DRIFT]
    variances = [
        sum(_block_variance(run, average, number) for run in known) / max(len(known), 1)
        for number in (SHORT_BLOCKS, NUM_BLOCKS, LONG_BLOCKS)
    ]
    short, middle, long = variances
    if min(variances) <= 0:
        return 1.0
    power = min(max(math.log(short / long) / math.log(SHORT_BLOCKS / LONG_BLOCKS), 0.0), 1.0)
    return float(max(long * LONG_BLOCKS**-power / (middle / NUM_BLOCKS), 1.0))


def _block_variance(steps: npt.NDArray[np.float64], average: Average, num_blocks: int) -> float:
    """Variance of the figures of blocks, as a share of the run's."""
    blocks = [float(average(block)) for block in np.array_split(steps, num_blocks)]
    level = float(average(steps))
    return float(np.var(blocks, ddof=1)) / level**2 if level > 0 else 0.0


def correlation_of_blocks(num_steps: int) -> float:
    """Factor by which correlation of steps raises the variance of a mean of blocks."""
    return 1.0 + NEIGHBOURS_ALIKE * min(NUM_BLOCKS, num_steps) / num_steps


def estimate_difference(a: Sequence[RunFigure], b: Sequence[RunFigure], *, assumed_spread: float) -> Effect:
    """Estimate the difference between two sides, one figure per run.

    `assumed_spread` is the standard deviation between runs, in the figure's unit, for when it cannot be measured.
    """
    means = [float(np.mean([run.value for run in side])) for side in (a, b)]
    is_measured = len(a) + len(b) >= MIN_RUNS_TO_MEASURE
    parts = _measured((a, b)) if is_measured else _assumed((a, b), assumed_spread)
    variance = sum(part for part, _ in parts)
    weights = sum(part * part / freedom for part, freedom in parts if part > 0 and freedom > 0)
    freedom = variance * variance / weights if weights > 0 else math.inf
    per_run = variance * len(a) * len(b) / (len(a) + len(b))
    return Effect(means[0], means[1], math.sqrt(variance), max(freedom, 1.0), math.sqrt(per_run), is_measured)


def judge_difference(
    estimated: Effect,
    *,
    smallest: float,
    rose: Change = Change.SLOWER,
    fell: Change = Change.FASTER,
    level: float = LEVEL,
) -> Difference:
    """Classify a difference between runs: a change only if it is significant and at least `smallest`."""
    change, half = estimated.b - estimated.a, estimated.half_width(level)
    is_change = abs(change) > half and abs(change) >= smallest
    return Difference(
        a=estimated.a,
        b=estimated.b,
        change=change,
        relative=change / estimated.a if estimated.a else None,
        interval=(change - half, change + half),
        smallest_visible=max(half, smallest),
        state=(rose if change > 0 else fell) if is_change else Change.NOT_SEEN,
    )


def needed_runs(estimated: Effect, margin: float, *, level: float = LEVEL) -> int | None:
    """Runs per side for an interval narrower than `margin` at the present spread; None above 100."""
    for runs in range(2, MAX_RUNS_ADVISED + 1):
        half = two_sided_t(level, 2 * runs - 2) * estimated.run_spread * math.sqrt(2 / runs)
        if half < abs(margin):
            return runs
    return None


def _measured(sides: Figures) -> list[tuple[float, float]]:
    """Variance of each side's mean and its degrees of freedom; a single run borrows the other side's spread."""
    a, b = sides
    if min(len(a), len(b)) == 1:
        several = max(sides, key=len)
        return [(_spread(several) * (1 / len(a) + 1 / len(b)), len(several) - 1.0)]
    return [(_spread(side) / len(side), len(side) - 1.0) for side in sides]


def _spread(side: Sequence[RunFigure]) -> float:
    """Variance of the runs' figures."""
    return float(np.var([run.value for run in side], ddof=1))


def _assumed(sides: Figures, spread: float) -> list[tuple[float, float]]:
    """Noise within the runs, and the assumed spread between them, each with its degrees of freedom.

    The noise of single steps or blocks is pooled over all runs: without a change it is the same on both sides, and two
    profiled steps per side are too few to distinguish two noise levels.
    """
    runs = [run for side in sides for run in side]
    freedom = sum(run.freedom for run in runs)
    pooled = sum(run.freedom * (run.freedom + 1) * run.variance for run in runs) / freedom if freedom else 0.0
    within = sum(pooled / (run.freedom + 1) / len(side) ** 2 for side in sides for run in side)
    between = sum(spread * spread / len(side) for side in sides)
    return [(within, freedom), (between, math.inf)]
