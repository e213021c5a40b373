"""What a measured device answers, and the timing of runs on it. Imports no torch: the parent reads the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Protocol


class UnsupportedError(Exception):
    """A preflight's device cannot do it, and need not: the check is skipped. The message says why."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device that a preflight's worker sees.

    Attributes:
        index: among those visible to the process.
        name, uuid: as the driver has them; empty where unknown.
    """

    index: int
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """Software versions and visible devices of a preflight's worker."""

    versions: dict[str, str]
    devices: list[DeviceFacts]


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration of a preflight's measurement.

    Attributes:
        warm_seconds: until clocks have risen and caches are filled; these runs do not count.
        seconds: to measure.
        min_runs, max_runs: bounds of the number of runs, whatever their time.
    """

    warm_seconds: float
    seconds: float
    min_runs: int
    max_runs: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of a preflight's measurement, and errors in its result.

    Attributes:
        seconds: of the median run.
        spread: interquartile range over the median.
        num_runs: that were timed.
        num_wrong: bytes or sums that came out wrong.
    """

    seconds: float
    spread: float
    num_runs: int
    num_wrong: int = 0


@dataclass(frozen=True, slots=True)
class ProductErrors:
    """Errors in a preflight's matrix products.

    Attributes:
        num_repeats: of the same product.
        num_differing: repeats that are not bit for bit the first.
        num_wrong: elements of a product of whole numbers that are not the exact result.
    """

    num_repeats: int
    num_differing: int
    num_wrong: int


_TRIAL_RUNS = 3
"""Their time gives the number of runs that the pace allows."""


class Stopwatch(Protocol):
    """Clock for a preflight's runs on a device."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """Seconds of each run, queued one behind the other."""
        ...


def time_runs(stopwatch: Stopwatch, work: Callable[[], object], pace: Pace) -> Timing:
    """Time a preflight's measurement after a warm-up, which loads kernels, raises clocks and fills caches."""
    stopwatch.times(work, 1)
    trial = median(stopwatch.times(work, _TRIAL_RUNS))
    stopwatch.times(work, num_runs_of(trial, pace.warm_seconds, 1, pace.max_runs))
    num_runs = num_runs_of(trial, pace.seconds, pace.min_runs, pace.max_runs)
    return timing_of(stopwatch.times(work, num_runs))


def num_runs_of(run_seconds: float, seconds: float, least: int, most: int) -> int:
    """Number of runs of a preflight's measurement that fill these seconds, within bounds."""
    return max(least, min(most, round(seconds / run_seconds) if run_seconds > 0 else most))


def timing_of(times: Sequence[float]) -> Timing:
    """Median time of a preflight's runs in seconds, and the interquartile range over it."""
    middle = median(times)
    if len(times) < 4 or middle <= 0:
        return Timing(middle, 0.0, len(times))
    low, _, high = quantiles(times, n=4)
    return Timing(middle, (high - low) / middle, len(times))
