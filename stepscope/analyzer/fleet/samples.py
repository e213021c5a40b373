"""Samples of a GPU and windows of them: means, bursts, and counters that contradict others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from stepscope.analyzer.fleet.thresholds import Limits


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a GPU or MIG instance; ratios are 0..1, rates are means since the previous sample.

    Attributes:
        time_ns: ns since the epoch.
        utilization: share of time in which any kernel ran, as nvidia-smi reports it.
        memory_busy: share of time in which memory was read or written, as nvidia-smi reports it.
        power_watts, clock_hertz: of the board, of the SMs.
        throttle_reasons: names of `core.gpu_metrics.THROTTLE_REASONS`; None if they are unknown.
        engine, sm, tensor, dram, vector: profiling counters; `vector` is the busiest of the other pipes.
        link_bytes: over NVLink, bytes/s, the busier direction.
        pcie_transmit, pcie_receive: from and to the GPU, bytes/s.
        memory_used: bytes.
        num_processes: number of processes on the GPU.
    """

    time_ns: int
    utilization: float | None = None
    memory_busy: float | None = None
    power_watts: float | None = None
    clock_hertz: float | None = None
    throttle_reasons: frozenset[str] | None = None
    engine: float | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    vector: float | None = None
    link_bytes: float | None = None
    pcie_transmit: float | None = None
    pcie_receive: float | None = None
    memory_used: float | None = None
    num_processes: float | None = None

    @property
    def busy(self) -> float | None:
        """Share of time in which any kernel ran, by the engine's counter if there is one."""
        return self.utilization if self.engine is None else self.engine


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Constants of a GPU.

    Attributes:
        name: from the driver.
        power_limit_watts: enforced limit, or that of the data sheet.
        clock_max_hertz: highest clock of the SMs.
        memory_total: bytes.
        idle_watts: with clocks up and nothing to do, if that was observed.
        has_links: whether it has NVLinks; None if unknown.
    """

    name: str = ""
    power_limit_watts: float | None = None
    clock_max_hertz: float | None = None
    memory_total: float | None = None
    idle_watts: float | None = None
    has_links: bool | None = None


@dataclass(frozen=True, slots=True)
class HostUse:
    """Use of the host by the processes on a GPU, mean of the window.

    Attributes:
        cpus: CPUs kept busy, all threads, divided by the number of processes.
        stopped_cpus: CPUs lost to throttling of their cgroup.
        io_wait: share of time in which a thread of their cgroup (or of the machine) waited for a disk.
        network_bytes: of the machine's InfiniBand ports, bytes/s, the busier direction.
        data_wait: share of training steps that waited for data, if training reports it.
    """

    cpus: float | None = None
    stopped_cpus: float | None = None
    io_wait: float | None = None
    network_bytes: float | None = None
    data_wait: float | None = None


_FULL, _EMPTY = 0.5, 0.05
_MIN_SAMPLES = 8
"""Smallest number of samples in which bursts are looked for."""
_AS_GOOD = 0.9
_REPEATS = 0.4
"""Autocorrelation from which a series is periodic."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """Work with pauses of whole samples.

    Attributes:
        duty: share of samples with work.
        empty: share of samples without work.
        period_seconds: between bursts; None if they are not periodic.
    """

    duty: float
    empty: float
    period_seconds: float | None


def bursts_of(activity: Sequence[float], seconds_between: float) -> Bursts | None:
    """Bursts of an equally spaced series of activity (0..1); None if there are none, or too few samples."""
    if len(activity) < _MIN_SAMPLES or max(activity) < _FULL:
        return None
    empty = sum(value < _EMPTY for value in activity) / len(activity)
    if not 0.1 <= empty <= 0.95:
        return None
    lag = _period(activity)
    duty = sum(value >= _EMPTY for value in activity) / len(activity)
    return Bursts(duty, empty, None if lag is None else lag * seconds_between)


def _period(activity: Sequence[float]) -> int | None:
    """Period in samples: the first lag with nearly the highest autocorrelation after a negative one; None without."""
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


_PROFILING = ("engine", "sm", "tensor", "dram")
_MEANS = tuple(
    field.name for field in fields(Sample) if field.name not in ("time_ns", "throttle_reasons", "num_processes")
)
_STUCK = 0.95
_BUSY = 0.5
_EMPTY_MEMORY = 0.02


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """Means of a window of samples; a figure that some samples lack is the mean of the others.

    Attributes:
        samples: without figures that others contradict.
        facts, host: of the GPU and its processes.
        mean: of each figure, None if no sample has it.
        power: share of the limit; None if either is unknown.
        dynamic_power: share of the range from idle power to the limit, 0..1.
        bursts: of the work.
        is_silent: the profiling counters are all 0 while the GPU draws power, so they do not count.
        is_stuck: utilization is 100 % while nothing else shows that anything runs.
        is_contradictory: counters or utilization are wrong, and power does not show which.
    """

    samples: tuple[Sample, ...]
    facts: GpuFacts
    host: HostUse
    mean: Sample
    power: float | None
    dynamic_power: float | None
    bursts: Bursts | None
    is_silent: bool = False
    is_stuck: bool = False
    is_contradictory: bool = False

    @property
    def busy(self) -> float | None:
        """Share of time in which any kernel ran, at least that of each pipe."""
        mean = self.mean
        return None if mean.busy is None else max(mean.busy, mean.sm or 0.0, mean.tensor or 0.0)

    @property
    def seconds(self) -> float:
        """Duration of the window, including the interval before the first sample, which its rates cover."""
        count = len(self.samples)
        if count < 2:
            return 0.0
        return (self.samples[-1].time_ns - self.samples[0].time_ns) / 1e9 * count / (count - 1)

    @property
    def is_held(self) -> bool | None:
        """Whether a process holds the GPU, by memory use where processes of other containers are not listed; None if
        unknown."""
        if self.mean.num_processes:
            return True
        if self.mean.memory_used is None or not self.facts.memory_total:
            return None if self.mean.num_processes is None else False
        return self.mean.memory_used >= _EMPTY_MEMORY * self.facts.memory_total


def window_of(samples: Sequence[Sample], facts: GpuFacts, host: HostUse, limits: Limits) -> SampleWindow:
    """Window of samples in order of time, without contradictory counters.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("a window needs a sample")
    whole = _window(samples, facts, host, limits)
    counters = [value for name in _PROFILING if (value := getattr(whole.mean, name)) is not None]
    utilization, power = whole.mean.utilization, whole.power
    draws = None if power is None else power >= limits.high_power
    if counters and max(counters) <= limits.spin_activity and utilization is not None and utilization >= _BUSY:
        if draws:
            return replace(_window(_without(samples, *_PROFILING, "vector"), facts, host, limits), is_silent=True)
        if draws is False:
            return replace(_window(_without(samples, "utilization"), facts, host, limits), is_stuck=True)
        return replace(whole, is_contradictory=True)
    if not counters and utilization is not None and utilization >= _STUCK and not draws and whole.is_held is False:
        return replace(_window(_without(samples, "utilization"), facts, host, limits), is_stuck=True)
    return whole


def _window(samples: Sequence[Sample], facts: GpuFacts, host: HostUse, limits: Limits) -> SampleWindow:
    last = samples[-1]
    means: dict[str, Any] = {name: _mean(samples, name) for name in _MEANS}
    mean = Sample(last.time_ns, num_processes=last.num_processes, **means)
    limit = facts.power_limit_watts
    power = dynamic = None
    if mean.power_watts is not None and limit:
        power = mean.power_watts / limit
        idle = facts.idle_watts / limit if facts.idle_watts is not None else limits.idle_power
        dynamic = min(1.0, max(0.0, (power - idle) / (1 - idle))) if idle < 1 else None
    return SampleWindow(tuple(samples), facts, host, mean, power, dynamic, _bursts(samples))


def _bursts(samples: Sequence[Sample]) -> Bursts | None:
    activity = [sample.busy for sample in samples if sample.busy is not None]
    if len(activity) < 2:
        return None
    distance = (samples[-1].time_ns - samples[0].time_ns) / 1e9 / (len(samples) - 1)
    return bursts_of(activity, distance)


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return sum(values) / len(values) if values else None


def share_of(samples: Sequence[Sample], is_so: Callable[[Sample], bool]) -> float:
    """Share of samples for which a condition holds, 0..1."""
    return sum(map(is_so, samples)) / len(samples)


def _without(samples: Sequence[Sample], *names: str) -> tuple[Sample, ...]:
    nothing: dict[str, Any] = dict.fromkeys(names)
    return tuple(replace(sample, **nothing) for sample in samples)
