"""What does a window of samples say on average, and which of its figures cannot be believed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from stepscope.analyzer.fleet.bursts import Bursts, bursts_of
from stepscope.analyzer.fleet.limits import Limits
from stepscope.analyzer.fleet.samples import GpuFacts, HostUse, Sample

_PROFILING = ("engine", "sm", "tensor", "dram")
_MEANS = tuple(
    field.name for field in fields(Sample) if field.name not in ("time_ns", "throttle_reasons", "num_processes")
)
_STUCK = 0.95
_BUSY = 0.5
_EMPTY_MEMORY = 0.02


@dataclass(frozen=True, slots=True)
class Window:
    """A window's averages; what not all samples tell is the average of those that do.

    Attributes:
        samples: as they are believed: without figures that others contradict.
        facts, host: of the GPU, of its processes.
        mean: of each figure, None where no sample has it.
        power: of the limit; None where either is not known.
        dynamic_power: of what lies between idle and the limit, 0..1.
        bursts: of the work.
        is_silent: the profiling counters are all 0 while the GPU draws power: they do not count.
        is_stuck: the utilisation is 100 % while nothing else says that anything runs.
        is_contradictory: counters or utilisation are wrong, and power does not tell which.
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
        """Share of time in which any kernel ran: no pipe can have been active for longer."""
        mean = self.mean
        return None if mean.busy is None else max(mean.busy, mean.sm or 0.0, mean.tensor or 0.0)

    @property
    def seconds(self) -> float:
        """From the first sample to the last, and one distance more: rates are of the time before."""
        count = len(self.samples)
        if count < 2:
            return 0.0
        return (self.samples[-1].time_ns - self.samples[0].time_ns) / 1e9 * count / (count - 1)

    @property
    def is_held(self) -> bool | None:
        """Whether a process has the GPU; None where that is not known. Those of other containers are not listed."""
        if self.mean.num_processes:
            return True
        if self.mean.memory_used is None or not self.facts.memory_total:
            return None if self.mean.num_processes is None else False
        return self.mean.memory_used >= _EMPTY_MEMORY * self.facts.memory_total


def window_of(samples: Sequence[Sample], facts: GpuFacts, host: HostUse, limits: Limits) -> Window:
    """The window of some samples in the order of their time.

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


def _window(samples: Sequence[Sample], facts: GpuFacts, host: HostUse, limits: Limits) -> Window:
    last = samples[-1]
    means: dict[str, Any] = {name: _mean(samples, name) for name in _MEANS}
    mean = Sample(last.time_ns, num_processes=last.num_processes, **means)
    limit = facts.power_limit_watts
    power = dynamic = None
    if mean.power_watts is not None and limit:
        power = mean.power_watts / limit
        idle = facts.idle_watts / limit if facts.idle_watts is not None else limits.idle_power
        dynamic = min(1.0, max(0.0, (power - idle) / (1 - idle))) if idle < 1 else None
    return Window(tuple(samples), facts, host, mean, power, dynamic, _bursts(samples))


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
    """Of how many samples something holds, 0..1."""
    return sum(map(is_so, samples)) / len(samples)


def _without(samples: Sequence[Sample], *names: str) -> tuple[Sample, ...]:
    nothing: dict[str, Any] = dict.fromkeys(names)
    return tuple(replace(sample, **nothing) for sample in samples)
