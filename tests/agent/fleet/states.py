"""States of an agent's sources as they come, second by second."""

from __future__ import annotations

from stepscope.agent.polling import SourceState
from stepscope.core.metrics.readings import GPU, Collection, Labels, Reading, labels_of, with_labels

SECOND = 1_000_000_000
GPU0 = labels_of(gpu=0, uuid="GPU-0")
GPU1 = labels_of(gpu=1, uuid="GPU-1")
COMPUTING = {
    "utilization_ratio": 1.0,
    "memory_bandwidth_busy_ratio": 0.5,
    "power_watts": 680.0,
    "power_limit_watts": 700.0,
    "sm_clock_hertz": 1.8e9,
    "sm_clock_max_hertz": 1.98e9,
    "memory_used_bytes": 20e9,
    "memory_total_bytes": 85e9,
    "graphics_engine_active_ratio": 0.95,
    "sm_active_ratio": 0.82,
    "tensor_active_ratio": 0.47,
    "dram_active_ratio": 0.39,
    "nvlink_transmit_bytes_per_second": 16e9,
    "nvlink_receive_bytes_per_second": 15e9,
    "pcie_transmit_bytes_per_second": 1e6,
    "pcie_receive_bytes_per_second": 80e6,
}
WAITING = {
    **COMPUTING, "power_watts": 280.0, "sm_active_ratio": 0.3, "tensor_active_ratio": 0.13, "dram_active_ratio": 0.1
}  # fmt: skip
SPINNING = {
    **WAITING,
    "power_watts": 142.0,
    "memory_bandwidth_busy_ratio": 0.0,
    "graphics_engine_active_ratio": 1.0,
    "sm_active_ratio": 0.12,
    "tensor_active_ratio": 0.0,
    "dram_active_ratio": 0.0,
    "nvlink_transmit_bytes_per_second": 0.0,
    "nvlink_receive_bytes_per_second": 0.0,
}


def of_gpu(labels: Labels, values: dict[str, float], time_ns: int) -> list[Reading]:
    """Readings of one GPU, held by one process."""
    readings = [Reading(GPU + name, value, labels, time_ns) for name, value in values.items()]
    info = with_labels(labels, name="NVIDIA H100 80GB HBM3")
    held = with_labels(labels, kind="compute")
    return [*readings, Reading(GPU + "info", 1, info, time_ns), Reading(GPU + "processes", 1, held, time_ns)]


def state(name: str, readings: list[Reading], time_ns: int) -> SourceState:
    """A source that answered."""
    return SourceState(name, Collection(tuple(readings)), time_ns, 0.01, num_collections=1)
