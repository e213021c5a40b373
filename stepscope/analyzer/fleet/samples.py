"""Samples of a GPU and windows of them: thresholds, means, bursts, and counters that contradict others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class FleetThresholds:
    """Thresholds of the fleet classes; ratios are of time or of a peak, 0..1.

    "Recorded" means 2 H100s (SXM, 700 W) in real training at 5 samples a second; the figures are in
    docs/explanation/fleet-class.md.
    """

    min_loss: float = 0.25
    """Threshold of a loss. Traces use 0.1; the estimates here are off by up to 0.1."""
    compute_density: float = 0.85
    """SM over engine activity of large kernels; recorded: 0.82 to 0.94."""
    waiting_density: float = 0.12
    """The same for a waiting communication kernel; recorded: 1, 16 and 24 of 132 SMs."""
    compute_tensor: float = 0.45
    """Tensor activity while bfloat16 training computes; recorded: 0.46 to 0.50, large products alone 0.67."""
    compute_dram: float = 0.72
    """Memory activity while memory-bound kernels run; recorded: 0.72 to 0.74. Some 0.8 is the practical peak."""
    compute_power: float = 0.95
    """Share of the range from idle power to the limit while computing; recorded, without the driver's averaging: 0.78
    (large products alone, memory-bound) to 1.1 (clocks not capped yet)."""
    waiting_power: float = 0.05
    """The same while communication kernels poll; recorded: 0 to 0.09, depending on their SMs."""
    power_seconds: float = 5.0
    """Shortest window with power of its own: the driver reports the mean of the last second."""
    idle_power: float = 0.175
    """Share of the limit with clocks up and nothing to do; recorded: 121 to 124 of 700 W."""
    high_power: float = 0.3
    """Share of the limit that neither an idle GPU nor polling kernels draw; recorded: at most 0.25."""
    idle_busy: float = 0.03
    """Share of time with kernels below which a GPU is idle; a job that launches tiny kernels one by one has 0.04 on an
    H100, 0.02 to 0.035 on an H200."""
    tiny_busy: float = 0.01
    """Share of time with kernels in every sample from which a GPU that a process holds is not idle."""
    memory_dram: float = 0.5
    """Memory activity while computing from which memory may be the limit; recorded: 0.42 (not), 0.77 (is)."""
    tensor_roof: float = 0.75
    """Tensor activity of training that large products bound; recorded 0.67 on H100s, 0.76 on H200s (alone: 0.94)."""
    dram_roof: float = 0.85
    """Memory activity of a copy; data sheets promise 1, measured peaks are 0.8 to 0.9."""
    memory_busy: float = 0.65
    """nvidia-smi's memory figure over its utilisation; recorded: 0.34 to 0.54 (computing), 0.95 and, on an H200, 0.73
    (memory-bound)."""
    small_kernels: float = 0.4
    """SM over engine activity below which kernels do not fill the GPU; recorded: 0.04 to 0.15 (launch-bound)."""
    copy_bytes: float = 200e6
    """Bytes/s over PCIe from which the host link works: pageable copies make 1 GB/s, a batch of tokens some kB."""
    peer_bytes: float = 30e6
    """Bytes/s over PCIe in each direction of a GPU whose peers lie beyond it: launches alone make 60 to 80 MB/s to the
    GPU, and under 15 MB/s back."""
    link_traffic: float = 1e6
    """Bytes/s over NVLink or network of a GPU that communicates at all; recorded between stages: 340 MB/s."""
    clock_low: float = 0.7
    """SM clock of its highest below which a busy GPU is slowed; recorded under a power cap: 0.87 to 1."""
    throttle_share: float = 0.2
    """Of samples with a hardware or thermal reason."""
    hang_seconds: float = 50.0
    """Polling this long without traffic is rarely a wait for a slow peer; NCCL's own watchdog waits 600 s."""
    hang_spread: float = 0.05
    """Range of power, as a share of the limit, below which it is constant."""
    hang_bytes: float = 60e6
    """Bytes/s over PCIe in each direction, or over the network's ports, of a GPU that does not hang: NCCL's proxy of a
    hung all-reduce polls at 27 MB/s (recorded, H200, TCP), a slow network of 1 Gbit/s moves 100."""
    spin_activity: float = 0.005
    """Tensor and memory activity of a kernel that only polls: recorded 0.000 to 0.001."""


LIMITS = FleetThresholds()


@dataclass(frozen=True, slots=True)
class GpuSample:
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


SAMPLE_FIELDS = {
    "utilization_ratio": "utilization",
    "memory_bandwidth_busy_ratio": "memory_busy",
    "power_watts": "power_watts",
    "sm_clock_hertz": "clock_hertz",
    "graphics_engine_active_ratio": "engine",
    "sm_active_ratio": "sm",
    "tensor_active_ratio": "tensor",
    "dram_active_ratio": "dram",
    "pcie_transmit_bytes_per_second": "pcie_transmit",
    "pcie_receive_bytes_per_second": "pcie_receive",
    "memory_used_bytes": "memory_used",
}
"""Metrics that a GPU has once, and the field of the sample."""
VECTOR_METRICS = ("fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio", "integer_active_ratio")
"""Metrics of which the largest is the sample's `vector`."""


def largest_known(values: Mapping[str, float | None], names: Iterable[str]) -> float | None:
    """The largest of these metrics of a GPU; None without any."""
    return max((value for name in names if (value := values.get(name)) is not None), default=None)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Constants of a GPU that classification by counters needs.

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
    """Bursts of GPU work with pauses of whole samples.

    Attributes:
        duty: share of samples with work.
        empty: share of samples without work.
        period_seconds: between bursts; None if they are not periodic.
    """

    duty: float
    empty: float
    period_seconds: float | None


def bursts_of(activity: Sequence[float], seconds_between: float) -> Bursts | None:
    """Fleet class: bursts in equally spaced samples of GPU activity (0..1); None without any, or with few samples."""
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
    field.name for field in fields(GpuSample) if field.name not in ("time_ns", "throttle_reasons", "num_processes")
)
_FIGURES_OF = attrgetter(*_MEANS)
_STUCK = 0.95
_BUSY = 0.5
_EMPTY_MEMORY = 0.02


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """Means of a window of a GPU's samples; a figure that some samples lack is the mean of the others.

    Attributes:
        samples: without figures that others contradict.
        facts, host: of the GPU and its processes.
        limits: the thresholds that apply.
        mean: of each figure, None if no sample has it.
        power: share of the limit; None if either is unknown.
        dynamic_power: share of the range from idle power to the limit, 0..1.
        bursts: of the work.
        is_silent: the profiling counters are all 0 while the GPU draws power, so they do not count.
        is_stuck: utilization is 100 % while nothing else shows that anything runs.
        is_contradictory: counters or utilization are wrong, and power does not show which.
    """

    samples: tuple[GpuSample, ...]
    facts: GpuFacts
    host: HostUse
    limits: FleetThresholds
    mean: GpuSample
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


def sample_window(
    samples: Sequence[GpuSample], facts: GpuFacts, host: HostUse, limits: FleetThresholds
) -> SampleWindow:
    """Window of a GPU's samples in order of time, without contradictory counters.

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


def _window(samples: Sequence[GpuSample], facts: GpuFacts, host: HostUse, limits: FleetThresholds) -> SampleWindow:
    last = samples[-1]
    means: dict[str, Any] = {}
    for name, column in zip(_MEANS, zip(*map(_FIGURES_OF, samples), strict=True), strict=True):
        values = [value for value in column if value is not None]
        means[name] = sum(values) / len(values) if values else None
    mean = GpuSample(last.time_ns, num_processes=last.num_processes, **means)
    activity = [sample.busy for sample in samples if sample.busy is not None]
    distance = (last.time_ns - samples[0].time_ns) / 1e9 / max(len(samples) - 1, 1)
    bursts = bursts_of(activity, distance)
    limit = facts.power_limit_watts
    power = dynamic = None
    if mean.power_watts is not None and limit:
        power = mean.power_watts / limit
        idle = facts.idle_watts / limit if facts.idle_watts is not None else limits.idle_power
        dynamic = min(1.0, max(0.0, (power - idle) / (1 - idle))) if idle < 1 else None
    return SampleWindow(tuple(samples), facts, host, limits, mean, power, dynamic, bursts)


def share_of_samples(samples: Sequence[GpuSample], is_so: Callable[[GpuSample], bool]) -> float:
    """Share of a GPU's samples for which a condition holds, 0..1."""
    return sum(map(is_so, samples)) / len(samples)


def _without(samples: Sequence[GpuSample], *names: str) -> tuple[GpuSample, ...]:
    nothing: dict[str, Any] = dict.fromkeys(names)
    return tuple(replace(sample, **nothing) for sample in samples)
