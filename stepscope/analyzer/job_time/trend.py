"""Trend of a run's steps: whether they get longer, how fast, since when, and what grows with them."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.job_time.steps import Flags, Floats, JobSteps
from stepscope.core.documents.analysis import StepTrend

MIN_TREND_STEPS = 15
MIN_GROWTH = 0.2
"""Least growth from the first to the last fifth of the steps."""
MIN_SCORE = 4.0
"""Least score of Mann and Kendall's test, in standard deviations."""
MIN_FIGURE_GROWTH = 0.2
MIN_RANK_CORRELATION = 0.6
_ONSET_GROWTH = 0.1
MAX_TREND_STEPS = 1000
"""More are thinned out: the test compares all pairs."""


def step_trend(steps: JobSteps, rest_ms: Floats, settled: Flags) -> StepTrend | None:
    """The trend of the settled steps' own time; None where they do not get longer."""
    rows = np.flatnonzero(settled)
    if len(rows) < MIN_TREND_STEPS:
        return None
    rows = rows[:: _every(len(rows))]
    rest, index = rest_ms[rows], steps.index[rows].astype(np.float64)
    fifth = max(len(rows) // 5, 3)
    first, last = float(np.median(rest[:fifth])), float(np.median(rest[-fifth:]))
    if first <= 0 or last < first * (1.0 + MIN_GROWTH) or trend_score(rest) < MIN_SCORE:
        return None
    smooth = np.array(
        [np.median(rest[max(place - fifth // 2, 0) : place + fifth // 2 + 1]) for place in range(len(rest))]
    )
    ordinary = np.flatnonzero(smooth <= first * (1.0 + _ONSET_GROWTH))
    onset = min(int(ordinary[-1]) + 1, len(rows) - 1) if len(ordinary) else 0
    return StepTrend(
        ms_per_step=median_slope(index, rest),
        since_step=int(steps.index[rows[onset]]),
        first_ms=first,
        last_ms=last,
        grows_with=_growing(steps, rows, fifth),
    )


def trend_score(values: Floats) -> float:
    """Mann and Kendall's score: how many standard deviations the order of values is from none."""
    values = values[:: _every(len(values))]
    size = len(values)
    above = np.sign(values[None, :] - values[:, None])
    total = float(above[np.triu_indices(size, 1)].sum())
    spread = np.sqrt(size * (size - 1) * (2 * size + 5) / 18)
    return total / spread if spread else 0.0


def _every(size: int) -> int:
    """Every how many-th of so many values is compared with the others."""
    return max(-(-size // MAX_TREND_STEPS), 1)


def median_slope(x: Floats, y: Floats) -> float:
    """Theil and Sen's slope: the median over all pairs."""
    left, right = np.triu_indices(len(x), 1)
    run = x[right] - x[left]
    slopes = (y[right] - y[left])[run > 0] / run[run > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0


def _growing(steps: JobSteps, rows: np.typing.NDArray[np.intp], fifth: int) -> list[str]:
    """Names of the figures that grow over these steps."""
    names = []
    for name, values in steps.figures.items():
        known = values[rows][~np.isnan(values[rows])]
        if len(known) < MIN_TREND_STEPS // 2 or name.endswith("peak_bytes"):
            continue
        part = max(min(fifth, len(known) // 3), 1)
        first, last = float(np.mean(known[:part])), float(np.mean(known[-part:]))
        if last > max(first, 0.0) * (1 + MIN_FIGURE_GROWTH) and _rises(known):
            names.append(name)
    return names


def _rises(values: Floats) -> bool:
    order = np.argsort(np.argsort(values)).astype(np.float64)
    place = np.arange(len(values), dtype=np.float64)
    return bool(np.std(order) > 0 and np.corrcoef(order, place)[0, 1] >= MIN_RANK_CORRELATION)
