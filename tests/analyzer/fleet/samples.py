"""Samples of GPUs in known states, with the figures that two H100s showed (docs/explanation/fleet-class.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepscope.analyzer.fleet import GpuFacts, GpuSample

H100 = GpuFacts("NVIDIA H100 80GB HBM3", 700.0, 1.98e9, 85e9, None, True)
COMPUTING = GpuSample(
    0, 1.0, 0.5, 680.0, 1.8e9, frozenset({"software_power_cap"}), 0.95, 0.82, 0.47, 0.39, 0.04, 16e9, 1e6, 80e6, 20e9, 1
)
STREAMING = replace(COMPUTING, memory_busy=0.95, power_watts=570.0, sm=0.9, tensor=0.1, dram=0.74)
WAITING = replace(COMPUTING, memory_busy=0.17, power_watts=280.0, sm=0.3, tensor=0.13, dram=0.1, link_bytes=350e6)
SPINNING = replace(
    COMPUTING, memory_busy=0.0, power_watts=142.0, clock_hertz=1.98e9, throttle_reasons=frozenset(), engine=1.0,
    sm=0.12, tensor=0.0, dram=0.0, vector=0.0, link_bytes=0.0, pcie_transmit=0.7e6, pcie_receive=0.7e6,
)  # fmt: skip
STARVED = replace(
    COMPUTING, utilization=0.3, memory_busy=0.12, power_watts=270.0, engine=0.29, sm=0.23, tensor=0.13, dram=0.12
)
LAUNCHING = replace(
    COMPUTING, utilization=0.1, memory_busy=0.0, power_watts=137.0, engine=0.1, sm=0.005, tensor=0.0, dram=0.001
)
HELD = replace(
    SPINNING, utilization=0.0, power_watts=121.0, engine=0.0, sm=0.0, memory_used=3e9, link_bytes=0.0
)  # fmt: skip
SAVING = replace(HELD, pcie_transmit=1e9, pcie_receive=0.5e6)
PROFILING: dict[str, Any] = dict.fromkeys(("engine", "sm", "tensor", "dram", "vector"))
"""What is missing without profiling counters."""


def series(*samples: GpuSample, seconds: float = 1.0, count: int | None = None) -> list[GpuSample]:
    """The samples one after the other, repeated up to `count`."""
    count = len(samples) if count is None else count
    return [replace(samples[at % len(samples)], time_ns=int((at + 1) * seconds * 1e9)) for at in range(count)]
