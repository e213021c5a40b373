"""How is a run timed? Warmed up, many times, by the device's own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Protocol

from stepscope.workflow.preflight.device import Pace, Timing

_TRIAL_RUNS = 3
"""By whose time it is told how many runs the pace allows."""


class Stopwatch(Protocol):
    """Times runs one by one."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """Seconds of each run, queued one behind the other."""
        ...


def time_runs(stopwatch: Stopwatch, work: Callable[[], object], pace: Pace) -> Timing:
    """Run, and time the runs after the first ones: those load kernels, raise clocks and fill caches."""
    stopwatch.times(work, 1)
    trial = median(stopwatch.times(work, _TRIAL_RUNS))
    stopwatch.times(work, num_runs_of(trial, pace.warm_seconds, 1, pace.max_runs))
    num_runs = num_runs_of(trial, pace.seconds, pace.min_runs, pace.max_runs)
    return timing_of(stopwatch.times(work, num_runs))


def num_runs_of(run_seconds: float, seconds: float, least: int, most: int) -> int:
    """How many runs fill these seconds, within bounds."""
    return max(least, min(most, round(seconds / run_seconds) if run_seconds > 0 else most))


def timing_of(times: Sequence[float]) -> Timing:
    """The times as one: median, and the interquartile range over it.

    Args:
        times: seconds, at least one.
    """
    middle = median(times)
    if len(times) < 4 or middle <= 0:
        return Timing(middle, 0.0, len(times))
    low, _, high = quantiles(times, n=4)
    return Timing(middle, (high - low) / middle, len(times))
