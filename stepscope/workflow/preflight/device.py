"""Interface of a device to measure, and how a run on it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Protocol


class UnsupportedError(Exception):
    """This device cannot do it, and need not: the check is skipped. The message says why."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Which device is it?

    Attributes:
        index: among those visible to the process.
        name, uuid: as the driver has them; empty where unknown.
        num_sms: of the GPU; 0 on the CPU.
        memory_bytes: of the GPU; 0 on the CPU.
    """

    index: int
    name: str
    uuid: str
    num_sms: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is something run before it counts, and then?

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
    """How long did a run take?

    Attributes:
        seconds: the median run.
        spread: interquartile range over the median.
        num_runs: how many were timed.
    """

    seconds: float
    spread: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class Products:
    """Were matrix products right?

    Attributes:
        num_repeats: how often the same product was made again.
        num_differing: of these, how many were not bit for bit the first.
        num_wrong: elements of a product of whole numbers that are not the exact result.
    """

    num_repeats: int
    num_differing: int
    num_wrong: int


class Device(Protocol):
    """One device, or all that a process sees. Every call may raise UnsupportedError; anything else is its failure."""

    def describe(self, beside: str) -> tuple[dict[str, str], list[DeviceFacts]]:
        """Versions of the software, and the devices that this process sees.

        Args:
            beside: address on PCI of a GPU, next to which this process shall run from now on; empty: anywhere.
        """
        ...

    def copy(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """Copy within the device's memory; time, and bytes that came wrong."""
        ...

    def upload(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """Copy from pinned host memory to the device; time, and bytes that came wrong."""
        ...

    def download(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """Copy from the device to pinned host memory; time, and bytes that came wrong."""
        ...

    def multiply(self, dtype: str, size: int, pace: Pace) -> Timing:
        """Multiply two square matrices of normally distributed numbers.

        Args:
            dtype: a word of `core.preflight.DTYPES`.
            size: rows and columns.
            pace: how long.
        """
        ...

    def check_products(self, dtype: str, size: int, num_repeats: int) -> Products:
        """Make the same product again and again, and one whose exact result is known."""
        ...

    def copy_to_peer(self, source: int, target: int, num_bytes: int, pace: Pace) -> tuple[Timing, bool, int]:
        """Copy from one visible device to another: time, whether they reach each other directly, wrong bytes."""
        ...

    def join(self, rank: int, world_size: int, path: str, seconds: float) -> None:
        """Meet the other processes of a group through a file."""
        ...

    def all_reduce(self, num_bytes: int, num_warm: int, num_runs: int) -> tuple[Timing, int]:
        """Sum up over the group: time, and elements that are not the exact sum."""
        ...


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
