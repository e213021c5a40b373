"""NVML calls for each GPU: tables of the fast poll (activity) and the slow poll (limits, links, errors, energy).

A `NvmlQuery` is one call; where the GPU does not support it, its `fallback` is made instead, or it is not repeated.
Field values (`nvmlDeviceGetFieldValues`) are read many with one call, each with an error code of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from stepscope.collectors.nvml import binding
from stepscope.collectors.nvml.library import fields_to_ask
from stepscope.collectors.nvml.nvlinks import ALL_LINKS, read_fabric, read_fabric_without_summary
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.gpu import THROTTLE_REASONS
from stepscope.core.metrics.readings import GPU, Labels, MissingReason, with_labels


@dataclass(frozen=True, slots=True)
class NvmlQuery:
    """One call of NVML.

    Attributes:
        names: metrics that it gives, without the prefix of GPU metrics.
        ask: makes the call and adds its values.
        fallback: query to make where the GPU does not support this one.
    """

    names: tuple[str, ...]
    ask: Callable[[binding.Nvml, binding.Handle, binding.GpuReadings], None]
    fallback: NvmlQuery | None = None


def single_value_query(name: str, function: str, *arguments: int, scale: float = 1.0) -> NvmlQuery:
    """A call of NVML that returns one number."""

    def ask(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        into.add_raw(name, getattr(nvml, function)(handle, *arguments), scale)

    return NvmlQuery((name,), ask)


def several_values_query(
    function: str, *values: tuple[str, str | int, float], arguments: tuple[int, ...] = ()
) -> NvmlQuery:
    """A call of NVML that returns a structure or a tuple.

    Args:
        values: name of a metric, member or index of its value in the answer, factor to base units.
    """

    def ask(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        answer = getattr(nvml, function)(handle, *arguments)
        for name, member, scale in values:
            into.add_raw(name, getattr(answer, member) if isinstance(member, str) else answer[member], scale)

    return NvmlQuery(tuple(name for name, _, _ in values), ask)


class QueryTable:
    """NVML's queries of one GPU; one that is not supported is replaced by its fallback, or not made again."""

    def __init__(self, queries: tuple[NvmlQuery, ...]) -> None:
        self._queries = list(queries)
        self._unsupported: list[tuple[str, NoValue]] = []

    def read(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        dropped = []
        for index, query in enumerate(self._queries):
            current: NvmlQuery | None = query
            while current is not None:
                try:
                    current.ask(nvml, handle, into)
                    break
                except Exception as error:
                    why = binding.nvml_reason_of_error(nvml, error)
                    if why.reason is not MissingReason.NOT_SUPPORTED:
                        into.miss(current.names, why)
                        break
                    if current.fallback is None:
                        dropped.append(index)
                        self._unsupported += [(name, why) for name in current.names]
                    else:
                        self._queries[index] = current.fallback
                    current = current.fallback
        for index in reversed(dropped):
            del self._queries[index]
        for name, why in self._unsupported:
            into.add(name, why)


_MHZ, _KIB, _PERCENT, _MILLI, _NANO = 1e6, 1024.0, 0.01, 1e-3, 1e-9
_SM, _MEMORY, _VIDEO = 1, 2, 3
_MEMORY_V2 = 40 | 2 << 24
"""Version tag of nvmlMemory_v2_t."""


MEMORY = several_values_query(
    "nvmlDeviceGetMemoryInfo",
    ("memory_total_bytes", "total", 1.0),
    ("memory_used_bytes", "used", 1.0),
    ("memory_free_bytes", "free", 1.0),
    ("memory_reserved_bytes", "reserved", 1.0),
    arguments=(_MEMORY_V2,),
)
"""Version 2 of the call: version 1 counts memory reserved by the driver as used (912 MB of an idle A100)."""


def _memory_v1(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    into.add_raw("memory_total_bytes", memory.total)
    into.add_raw("memory_free_bytes", memory.free)
    detail = "this driver counts its own reserved memory as used: R510 or newer separates them"
    into.miss(("memory_used_bytes", "memory_reserved_bytes"), NoValue(MissingReason.NOT_SUPPORTED, detail))


_THROTTLE = GPU + "throttle_reason"


@lru_cache(maxsize=1024)
def _with_reason(labels: Labels, reason: str) -> Labels:
    return with_labels(labels, reason=reason)


def _throttle_query(function: str, fallback: NvmlQuery | None = None) -> NvmlQuery:
    def ask(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        bits = getattr(nvml, function)(handle)
        if binding.is_nvml_sentinel(bits):
            into.add("throttle_reason", binding.nvml_sentinel_reason(bits))
            return
        for bit, reason in THROTTLE_REASONS:
            into.add_labelled(_THROTTLE, 1.0 if bits & bit else 0.0, _with_reason(into.labels, reason))

    return NvmlQuery(("throttle_reason",), ask, fallback)


FAST_POLL_QUERIES: tuple[NvmlQuery, ...] = (
    single_value_query("power_watts", "nvmlDeviceGetPowerUsage", scale=_MILLI),
    single_value_query("sm_clock_hertz", "nvmlDeviceGetClockInfo", _SM, scale=_MHZ),
    single_value_query("memory_clock_hertz", "nvmlDeviceGetClockInfo", _MEMORY, scale=_MHZ),
    single_value_query("performance_state", "nvmlDeviceGetPerformanceState"),
    single_value_query("temperature_celsius", "nvmlDeviceGetTemperature", 0),
    several_values_query(
        "nvmlDeviceGetUtilizationRates",
        ("utilization_ratio", "gpu", _PERCENT),
        ("memory_bandwidth_busy_ratio", "memory", _PERCENT),
    ),
    replace(MEMORY, fallback=NvmlQuery(MEMORY.names, _memory_v1)),
    _throttle_query(
        "nvmlDeviceGetCurrentClocksEventReasons", fallback=_throttle_query("nvmlDeviceGetCurrentClocksThrottleReasons")
    ),
)


_SHUTDOWN, _SLOWDOWN = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOAD, _LIFETIME = 0, 1
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
_BANKS = ("max", "high", "partial", "low", "none")


def _row_remap_banks(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    counts = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    for availability in _BANKS:
        into.add_raw("row_remap_banks", getattr(counts, availability), availability=availability)


def _retired(name: str, cause: int) -> NvmlQuery:
    def ask(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        into.add_raw(name, len(nvml.nvmlDeviceGetRetiredPages(handle, cause)))

    return NvmlQuery((name,), ask)


def _sram(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    """Errors of the memory on the die, which rows cannot be replaced of."""
    status = nvml.nvmlDeviceGetSramEccErrorStatus(handle)
    into.add_raw("sram_corrected_errors_total", status.volatileCor)
    into.add_raw("sram_uncorrected_errors_total", status.volatileUncParity + status.volatileUncSecDed)
    into.add_raw("sram_lifetime_uncorrected_errors_total", status.aggregateUncParity + status.aggregateUncSecDed)
    into.add_raw("sram_threshold_exceeded", status.bThresholdExceeded)


def _ecc(name: str, kind: int, period: int) -> NvmlQuery:
    return single_value_query(name, "nvmlDeviceGetTotalEccErrors", kind, period)


_FABRIC = ("fabric_state", "fabric_health")
_SRAM = (
    *("sram_corrected_errors_total", "sram_uncorrected_errors_total"),
    *("sram_lifetime_uncorrected_errors_total", "sram_threshold_exceeded"),
)
SLOW_POLL_QUERIES: tuple[NvmlQuery, ...] = (
    # half of the cost of a reading (5.4 ms on an H200); a counter, so that nothing is lost between polls
    single_value_query("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=_MILLI),
    single_value_query("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=_MILLI),
    single_value_query("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", scale=_MILLI),
    single_value_query("sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", _SM, scale=_MHZ),
    single_value_query("memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", _MEMORY, scale=_MHZ),
    single_value_query("video_clock_hertz", "nvmlDeviceGetClockInfo", _VIDEO, scale=_MHZ),
    single_value_query("temperature_margin_celsius", "nvmlDeviceGetMarginTemperature"),
    single_value_query("temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    single_value_query("temperature_shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
    single_value_query("fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=_PERCENT),
    several_values_query("nvmlDeviceGetEncoderUtilization", ("encoder_utilization_ratio", 0, _PERCENT)),
    several_values_query("nvmlDeviceGetDecoderUtilization", ("decoder_utilization_ratio", 0, _PERCENT)),
    several_values_query(
        "nvmlDeviceGetBAR1MemoryInfo", ("bar1_used_bytes", "bar1Used", 1.0), ("bar1_total_bytes", "bar1Total", 1.0)
    ),
    single_value_query("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    single_value_query("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    single_value_query("pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    single_value_query("pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    single_value_query("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"),
    NvmlQuery(_FABRIC, read_fabric, fallback=NvmlQuery(_FABRIC, read_fabric_without_summary)),
    several_values_query("nvmlDeviceGetEccMode", ("ecc_enabled", 0, 1.0)),
    _ecc("ecc_corrected_errors_total", _CORRECTED, _SINCE_LOAD),
    _ecc("ecc_uncorrected_errors_total", _UNCORRECTED, _SINCE_LOAD),
    _ecc("ecc_lifetime_corrected_errors_total", _CORRECTED, _LIFETIME),
    _ecc("ecc_lifetime_uncorrected_errors_total", _UNCORRECTED, _LIFETIME),
    several_values_query(
        "nvmlDeviceGetRemappedRows",
        ("remapped_rows_corrected_total", 0, 1.0),
        ("remapped_rows_uncorrected_total", 1, 1.0),
        ("row_remap_pending", 2, 1.0),
        ("row_remap_failed", 3, 1.0),
    ),
    NvmlQuery(_SRAM, _sram),
    NvmlQuery(("row_remap_banks",), _row_remap_banks),
    _retired("retired_pages_corrected_total", _SINGLE_BIT),
    _retired("retired_pages_uncorrected_total", _DOUBLE_BIT),
    single_value_query("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    several_values_query("nvmlDeviceGetMigMode", ("mig_enabled", 0, 1.0)),
)


@dataclass(frozen=True, slots=True)
class NvmlField:
    """One field value of NVML.

    Attributes:
        name: of the metric, without the prefix of GPU metrics.
        ids: its id in NVML, then ids to use where that is not supported, each with its scale to base units.
        scope: of the field in NVML; 0 for most.
        add: adds a value that is not a single number of the metric.
    """

    name: str
    ids: tuple[tuple[int, float], ...]
    scope: int = 0
    add: Callable[[binding.GpuReadings, float], None] | None = None


# fmt: off
FAST_POLL_FIELDS = (
    NvmlField("power_instant_watts", ((186, _MILLI),)),
    NvmlField("memory_temperature_celsius", ((82, 1.0),)),
    # DATA counts payload in KiB, up to NVLink 4; XMIT and RCV count bytes, from NVLink 5 on
    NvmlField("nvlink_transmit_bytes_total", ((138, _KIB), (202, 1.0)), ALL_LINKS),
    NvmlField("nvlink_receive_bytes_total", ((139, _KIB), (204, 1.0)), ALL_LINKS),
    # no PCIe bytes: 197 and 198 have 32 bits, and overflow thirteen times a second at 55 GB/s
)


def _recovery(into: binding.GpuReadings, value: float) -> None:
    actions = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
               "system_reboot")
    action = actions[int(value)] if 0 <= value < len(actions) else f"action_{int(value)}"
    into.add("recovery_action", 1, action=action)


SLOW_POLL_FIELDS = (
    NvmlField("power_violation_seconds_total", ((74, _NANO),)),
    NvmlField("thermal_violation_seconds_total", ((75, _NANO),)),
    NvmlField("sync_boost_violation_seconds_total", ((76, _NANO),)),
    NvmlField("board_limit_violation_seconds_total", ((77, _NANO),)),
    NvmlField("low_utilization_violation_seconds_total", ((78, _NANO),)),
    NvmlField("reliability_violation_seconds_total", ((79, _NANO),)),
    NvmlField("recovery_action", ((230, 1.0),), add=_recovery),
)
# fmt: on


class FieldBatch:
    """Fields that NVML reads with one call; one that is not supported is replaced by its next id, or not read again."""

    def __init__(self, fields: tuple[NvmlField, ...]) -> None:
        self._wanted = [(field, 0) for field in fields]
        self._asked: tuple[list[tuple[int, int]], Any] = [], None
        self._unsupported: list[tuple[str, NoValue]] = []

    def read(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        if self._wanted:
            again = self._ask(nvml, handle, into, self._wanted)
            while again:
                again = self._ask(nvml, handle, into, again)
        for name, why in self._unsupported:
            into.add(name, why)

    def _ask(
        self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings, wanted: list[tuple[NvmlField, int]]
    ) -> list[tuple[NvmlField, int]]:
        """Read these fields; returns those to be read by another id."""
        ids = [(field.ids[way][0], field.scope) for field, way in wanted]
        if ids != self._asked[0]:
            self._asked = ids, fields_to_ask(ids)
        values = self._asked[1]
        try:
            nvml.nvmlDeviceGetFieldValues(handle, values)
        except Exception as error:
            into.miss([field.name for field, _ in wanted], binding.nvml_reason_of_error(nvml, error))
            return []
        again = []
        for (field, way), value in zip(tuple(wanted), values, strict=True):
            answer = binding.field_value(value)
            if not isinstance(answer, NoValue):
                if field.add is None:
                    into.add_raw(field.name, answer, field.ids[way][1])
                else:
                    field.add(into, answer)
                continue
            if answer.reason is not MissingReason.NOT_SUPPORTED:
                into.add(field.name, answer)
                continue
            index = next(index for index, (other, _) in enumerate(self._wanted) if other is field)
            if way + 1 < len(field.ids):
                self._wanted[index] = (field, way + 1)
                again.append((field, way + 1))
            else:
                del self._wanted[index]
                self._unsupported.append((field.name, answer))
        return again
