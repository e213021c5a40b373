"""NVML field values (`nvmlDeviceGetFieldValues`): one call reads many, each with an error code of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml.binding import (
    INVALID_ARGUMENT,
    Handle,
    Nvml,
    reason_of_code,
    reason_of_error,
    struct_member,
)
from stepscope.collectors.nvml.gpu_readings import GpuReadings, is_sentinel, sentinel_reason
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import MissingReason

ALL_LINKS = 2**32 - 1
"""Scope of a field that is counted by link: the sum of all."""

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t by nvmlValueType_t."""

_KIB, _MILLI, _NANO = 1024.0, 1e-3, 1e-9


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        name: of the metric, without the prefix of GPU metrics.
        ids: its id in NVML, then ids to use where that is not supported, each with its scale to base units.
        scope: of the field in NVML; 0 for most.
        add: adds a value that is not a single number of the metric.
    """

    name: str
    ids: tuple[tuple[int, float], ...]
    scope: int = 0
    add: Callable[[GpuReadings, float], None] | None = None


# fmt: off
FAST_POLL_FIELDS = (
    Field("power_instant_watts", ((186, _MILLI),)),
    Field("memory_temperature_celsius", ((82, 1.0),)),
    # DATA counts payload in KiB, up to NVLink 4; XMIT and RCV count bytes, from NVLink 5 on
    Field("nvlink_transmit_bytes_total", ((138, _KIB), (202, 1.0)), ALL_LINKS),
    Field("nvlink_receive_bytes_total", ((139, _KIB), (204, 1.0)), ALL_LINKS),
    # no PCIe bytes: 197 and 198 have 32 bits, and overflow thirteen times a second at 55 GB/s
)


def _recovery(into: GpuReadings, value: float) -> None:
    actions = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
               "system_reboot")
    action = actions[int(value)] if 0 <= value < len(actions) else f"action_{int(value)}"
    into.add("recovery_action", 1, action=action)


def _error_ratio(name: str) -> Callable[[GpuReadings, float], None]:
    def add(into: GpuReadings, value: float) -> None:
        mantissa, exponent = int(value) >> 8 & 0xF, int(value) & 0xFF
        no_error = (mantissa, exponent) == (15, 255)  # the smallest that can be written
        into.add_raw(name, 0.0 if no_error else mantissa * 10.0**-exponent)

    return add


SLOW_POLL_FIELDS = (
    Field("power_violation_seconds_total", ((74, _NANO),)),
    Field("thermal_violation_seconds_total", ((75, _NANO),)),
    Field("sync_boost_violation_seconds_total", ((76, _NANO),)),
    Field("board_limit_violation_seconds_total", ((77, _NANO),)),
    Field("low_utilization_violation_seconds_total", ((78, _NANO),)),
    Field("reliability_violation_seconds_total", ((79, _NANO),)),
    Field("nvlink_crc_flit_errors_total", ((38, 1.0),)),
    Field("nvlink_crc_data_errors_total", ((45, 1.0),)),
    Field("nvlink_replay_errors_total", ((52, 1.0),)),
    Field("nvlink_recovery_errors_total", ((59, 1.0),)),
    Field("nvlink_effective_bit_error_ratio", ((220, 1.0),), ALL_LINKS,
          _error_ratio("nvlink_effective_bit_error_ratio")),
    Field("nvlink_symbol_error_ratio", ((222, 1.0),), ALL_LINKS, _error_ratio("nvlink_symbol_error_ratio")),
    Field("nvlink_receive_errors_total", ((208, 1.0),), ALL_LINKS),
    Field("nvlink_integrity_errors_total", ((211, 1.0),), ALL_LINKS),
    Field("nvlink_recoveries_total", ((215, 1.0),), ALL_LINKS),
    Field("nvlink_recoveries_failed_total", ((214, 1.0),), ALL_LINKS),
    Field("recovery_action", ((230, 1.0),), add=_recovery),
)
# fmt: on


class FieldBatch:
    """Fields that are read with one call; one that is not supported is replaced by its next id, or not read again."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self._wanted = [(field, 0) for field in fields]
        self._unsupported: list[tuple[str, NoValue]] = []

    def read(self, nvml: Nvml, handle: Handle, into: GpuReadings) -> None:
        """Read all fields once."""
        if self._wanted:
            again = self._ask(nvml, handle, into, self._wanted)
            while again:
                again = self._ask(nvml, handle, into, again)
        for name, why in self._unsupported:
            into.add(name, why)

    def _ask(
        self, nvml: Nvml, handle: Handle, into: GpuReadings, wanted: list[tuple[Field, int]]
    ) -> list[tuple[Field, int]]:
        """Read these fields; returns those to be read by another id."""
        try:
            values = nvml.nvmlDeviceGetFieldValues(
                handle,
                [(field.ids[way][0], field.scope) if field.scope else field.ids[way][0] for field, way in wanted],
            )
        except Exception as error:
            into.miss([field.name for field, _ in wanted], reason_of_error(nvml, error))
            return []
        again = []
        for (field, way), value in zip(tuple(wanted), values, strict=True):
            code = struct_member(value, "nvmlReturn")
            if code == 0:
                _add_value(field, way, value, into)
                continue
            why = reason_of_code(code)
            if code != INVALID_ARGUMENT and why.reason is not MissingReason.NOT_SUPPORTED:  # an unknown id is invalid
                into.add(field.name, why)
                continue
            index = next(index for index, (other, _) in enumerate(self._wanted) if other is field)
            if way + 1 < len(field.ids):
                self._wanted[index] = (field, way + 1)
                again.append((field, way + 1))
            else:
                del self._wanted[index]
                is_known = why.reason is MissingReason.NOT_SUPPORTED
                self._unsupported.append((field.name, why if is_known else NoValue(MissingReason.NOT_SUPPORTED)))
        return again


def _add_value(field: Field, way: int, value: Any, into: GpuReadings) -> None:
    kind = struct_member(value, "valueType")
    if kind >= len(_MEMBERS):
        into.add(field.name, NoValue(MissingReason.UNREADABLE, f"NVML reports a value of the unknown type {kind}"))
        return
    number = getattr(struct_member(value, "value"), _MEMBERS[kind])
    if field.add is None:
        into.add_raw(field.name, number, field.ids[way][1])
    elif is_sentinel(number):
        into.add(field.name, sentinel_reason(number))
    else:
        field.add(into, number)
