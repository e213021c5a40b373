"""Counters message of the agent to a training process: samples of the process's own GPUs and host.

Metrics have the names of the catalogues in `core.metrics` without the prefix of their table (`power_watts`), and their
units. A value is None where the metric was not read at that time; a metric that has no values is in `missing` with its
`MissingReason`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from stepscope.core.protocol.fields import MAX_NUMBER, Word, whole_number_between

COUNTERS = "counters"
"""In `wants` of a hello: the process takes this message."""
COUNTERS_SECONDS = 10.0
"""From one message to the next."""
MAX_SAMPLES = 128
"""Of one GPU or host in a message."""
MAX_OTHERS = 8
GPU_COUNTERS = (
    "sm_clock_hertz",
    "sm_clock_max_hertz",
    "memory_clock_hertz",
    "power_watts",
    "power_limit_watts",
    "energy_joules_total",
    "performance_state",
    "power_violation_seconds_total",
    "thermal_violation_seconds_total",
    "temperature_celsius",
    "memory_temperature_celsius",
    "utilization_ratio",
    "memory_bandwidth_busy_ratio",
    "graphics_engine_active_ratio",
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "memory_used_bytes",
    "memory_free_bytes",
    "pcie_transmit_bytes_per_second",
    "pcie_receive_bytes_per_second",
    "pcie_link_generation",
    "pcie_link_width",
    "nvlink_transmit_bytes_per_second",
    "nvlink_receive_bytes_per_second",
)
"""Metrics of a GPU that its ranks get."""


def _read_samples(value: Any) -> tuple[float | None, ...]:
    """Read a list of finite numbers and nulls."""
    if not isinstance(value, list) or len(value) > MAX_SAMPLES:
        raise ValueError(f"must be a list of at most {MAX_SAMPLES} numbers")
    for one in value:
        if one is not None and (isinstance(one, bool) or not isinstance(one, (int, float)) or not math.isfinite(one)):
            raise ValueError("must hold finite numbers and nulls")
    return tuple(None if one is None else float(one) for one in value)


Samples = Annotated[tuple[float | None, ...], _read_samples]


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Counters message: another process of the same user on the GPU.

    Attributes:
        pid: in the agent's namespace.
        memory_bytes: None where the driver does not report it.
    """

    pid: Annotated[int, whole_number_between(1, MAX_NUMBER)]
    uid: int
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """Counters message: one GPU or MIG instance.

    Attributes:
        uuid: GPU-... or MIG-...
        times_ns: of the samples, ns since the epoch by the agent's clock, rising.
        values: by metric, one a time.
        throttle_reasons: 1 and 0 by reason, one a time, of the reasons that held at any of them; None is unknown.
        age_ms: of the newest sample when the message was made; None without one.
        other_processes, other_memory_bytes: what other processes have on it; None is unknown.
        others: those of the same user, at most MAX_OTHERS; of other users' nothing but the sums above.
        process_memory_bytes: what the process itself has on it; None is unknown.
        missing: reason by metric.
    """

    uuid: Word
    times_ns: tuple[int, ...]
    values: dict[str, Samples]
    throttle_reasons: dict[str, Samples] | None = None
    age_ms: float | None = None
    other_processes: int | None = None
    other_memory_bytes: float | None = None
    missing: dict[str, Word] = field(default_factory=dict)
    others: tuple[OtherProcess, ...] = ()
    process_memory_bytes: float | None = None

    def __post_init__(self) -> None:
        _check_lengths(self.times_ns, self.values | (self.throttle_reasons or {}))


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counters message: the machine, the process and its cgroup.

    Attributes:
        times_ns, values, age_ms, missing: see `GpuCounters`.
    """

    times_ns: tuple[int, ...]
    values: dict[str, Samples]
    age_ms: float | None = None
    missing: dict[str, Word] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_lengths(self.times_ns, self.values)


@dataclass(frozen=True, slots=True)
class Counters:
    """Message of the agent to training, every 10 s to processes that want it: samples since the last one.

    Attributes:
        time_ns: when it was made, by the agent's clock.
        seconds: since the last one; None for the first.
        gpus: those on which the driver knows the process.
        host: None where it is not read yet.
        num_left_out: samples that did not fit into the message, the oldest.
        missing: reason why there is no "gpu" or "host".
    """

    type: ClassVar[str] = COUNTERS
    time_ns: int
    seconds: float | None = None
    gpus: tuple[GpuCounters, ...] = ()
    host: HostCounters | None = None
    num_left_out: int = 0
    missing: dict[str, Word] = field(default_factory=dict)


def _check_lengths(times_ns: tuple[int, ...], values: Mapping[str, tuple[float | None, ...]]) -> None:
    if any(len(samples) != len(times_ns) for samples in values.values()):
        raise ValueError("must have as many values as times")
