"""What is asked of a GPU every time: what it does now."""

from __future__ import annotations

from stepscope.collectors.nvml.binding import Handle, Nvml
from stepscope.collectors.nvml.gathering import Gathering, is_sentinel
from stepscope.collectors.nvml.queries import Query, single
from stepscope.core.gpu_metrics import THROTTLE_REASONS
from stepscope.core.readings import MissingReason

_MHZ, _MILLI, _PERCENT = 1e6, 1e-3, 0.01
_SM, _MEMORY = 1, 2
_MEMORY_V2 = 40 | 2 << 24
"""Version tag of nvmlMemory_v2_t."""


def _utilization(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    into.add("utilization_ratio", rates.gpu, _PERCENT)
    into.add("memory_bandwidth_busy_ratio", rates.memory, _PERCENT)


def ask_memory(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    """Memory by the second version of the call: the first counts what the driver keeps as used (912 MB of an idle
    A100)."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, _MEMORY_V2)
    into.add("memory_total_bytes", memory.total)
    into.add("memory_used_bytes", memory.used)
    into.add("memory_free_bytes", memory.free)
    into.add("memory_reserved_bytes", memory.reserved)


MEMORY_NAMES = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")


def _memory_v1(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    into.add("memory_total_bytes", memory.total)
    into.add("memory_free_bytes", memory.free)
    detail = "this driver counts what it keeps for itself as used: R510 or newer tells them apart"
    into.miss("memory_used_bytes", MissingReason.NOT_SUPPORTED, detail)
    into.miss("memory_reserved_bytes", MissingReason.NOT_SUPPORTED, detail)


def _throttling(function: str) -> Query:
    def ask(nvml: Nvml, handle: Handle, into: Gathering) -> None:
        bits = getattr(nvml, function)(handle)
        if is_sentinel(bits):
            into.refuse("throttle_reason", bits)
            return
        for bit, reason in THROTTLE_REASONS:
            into.add("throttle_reason", 1 if bits & bit else 0, further=(("reason", reason),))

    return Query(("throttle_reason",), ask)


def _throttling_new() -> Query:
    new, old = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    return Query(("throttle_reason",), _throttling(new).ask, otherwise=_throttling(old))


QUERIES: tuple[Query, ...] = (
    single("power_watts", "nvmlDeviceGetPowerUsage", scale=_MILLI),
    single("sm_clock_hertz", "nvmlDeviceGetClockInfo", _SM, scale=_MHZ),
    single("memory_clock_hertz", "nvmlDeviceGetClockInfo", _MEMORY, scale=_MHZ),
    single("performance_state", "nvmlDeviceGetPerformanceState"),
    single("temperature_celsius", "nvmlDeviceGetTemperature", 0),
    Query(("utilization_ratio", "memory_bandwidth_busy_ratio"), _utilization),
    Query(MEMORY_NAMES, ask_memory, otherwise=Query(MEMORY_NAMES, _memory_v1)),
    _throttling_new(),
)
