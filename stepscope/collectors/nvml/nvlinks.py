"""NVLinks of one GPU by NVML: which are up, their errors, and the state of the fabric.

DCGM reads the errors of all links with one field each, up to NVLink 4 also of single links (fields 161 to 163, and
`nvmlDeviceGetNvLinkErrorCounter`). Which of these a driver answers depends on the GPU: what has no field of all links
is the sum over the links.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from stepscope.collectors.nvml import binding
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.hardware.fabric import fabric_health, fabric_states, fabric_summary
from stepscope.core.metrics.readings import MissingReason

MAX_NVLINKS = 18
ALL_LINKS = 2**32 - 1
"""Scope of a field that is counted by link: the sum of all."""


_Key = tuple[int, int]
"""A field's id and scope."""
_NO_SUCH = (binding.NOT_SUPPORTED, binding.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True)
class _Counter:
    """One count of errors.

    Attributes:
        metric: name without the prefix of GPU metrics.
        kind: label of its count of a single link.
        total: NVML's field of all links and its scope; None: there is none.
        of_link: NVML's field of one link, which is its scope; None: there is none.
        number: nvmlNvLinkErrorCounter_t; None: it has none.
    """

    metric: str
    kind: str
    total: _Key | None
    of_link: int | None
    number: int | None = None


_COUNTERS = (
    _Counter("nvlink_replay_errors_total", "replay", (52, 0), 161, 0),
    _Counter("nvlink_recovery_errors_total", "recovery", (59, 0), 162, 1),
    _Counter("nvlink_crc_errors_total", "crc", None, 163),
    _Counter("nvlink_crc_flit_errors_total", "crc_flit", (38, 0), None, 2),
    _Counter("nvlink_crc_data_errors_total", "crc_data", (45, 0), None, 3),
    # from NVLink 5 on
    *(
        _Counter(f"nvlink_{kind}_total", kind, (field, ALL_LINKS), field)
        for field, kind in (
            *((206, "malformed_packets"), (207, "dropped_packets"), (208, "receive_errors"), (209, "remote_errors")),
            *((210, "general_errors"), (211, "integrity_errors"), (214, "recoveries_failed"), (215, "recoveries")),
            *((219, "effective_errors"), (221, "symbol_errors")),
        )
    ),
)
_RATIOS = (("nvlink_effective_bit_error_ratio", 220), ("nvlink_symbol_error_ratio", 222))
_STATES = ("nvlink_up", "nvlink_links")


class Nvlinks:
    """Reader of one GPU's NVLinks, which asks only what its driver answers.

    A link that is down may answer no more: its last count stays part of the sum.
    """

    def __init__(self) -> None:
        self._no_links: NoValue | None = None
        self._up: set[int] = set()
        self._unsupported: dict[_Key, NoValue] = {}
        self._counts: dict[_Counter, dict[int, int]] = {}

    def read(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        if self._no_links is None:
            self._read_states(nvml, handle, into)
        if self._no_links is not None:
            into.miss(_STATES, self._no_links)
        links = sorted(self._up)
        wanted: list[_Key] = [one.total for one in _COUNTERS if one.total is not None]
        wanted += [(one.of_link, link) for one in _COUNTERS if one.of_link is not None for link in links]
        wanted += [(field, scope) for _, field in _RATIOS for scope in (ALL_LINKS, *links)]
        answers = self._fields(nvml, handle, wanted)
        for counter in _COUNTERS:
            self._add_count(counter, self._of_links(nvml, handle, counter, answers), answers, into)
        for metric, field in _RATIOS:
            of_links = [_error_ratio(one) for link in links if isinstance(one := answers[field, link], int)]
            total = answers[field, ALL_LINKS]
            if isinstance(total, int):
                into.add_raw(metric, _error_ratio(total))
            elif of_links:
                into.add_raw(metric, max(of_links))
            else:
                into.add(metric, total)

    def _read_states(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        """State of each link. A GPU has as many links as answer; the first one's error says that it has none."""
        states = []
        self._up = set()
        for link in range(MAX_NVLINKS):
            try:
                states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
            except Exception as error:
                why = binding.nvml_reason_of_error(nvml, error)
                if link and getattr(error, "value", None) in _NO_SUCH:
                    break
                if why.reason is MissingReason.NOT_SUPPORTED:
                    self._no_links = why
                else:
                    into.miss(_STATES, why)
                return
        self._up = {link for link, state in enumerate(states) if state}
        for link, state in enumerate(states):
            into.add_raw("nvlink_up", state, link=link)
        into.add_raw("nvlink_links", len(self._up), state="up")
        into.add_raw("nvlink_links", len(states) - len(self._up), state="down")

    def _of_links(
        self, nvml: binding.Nvml, handle: binding.Handle, counter: _Counter, answers: dict[_Key, int | NoValue]
    ) -> dict[int, int]:
        """The count of each link that is up and has one: NVML's counter where there is no field of all or of one."""
        found = {link: answers.get((counter.of_link or 0, link)) for link in self._up}
        known = {link: count for link, count in found.items() if isinstance(count, int)}
        total = answers[counter.total] if counter.total is not None else None
        if known or counter.number is None or isinstance(total, int):
            return known
        for link in sorted(self._up):
            key = (-1 - counter.number, link)  # no field's
            if key in self._unsupported:
                continue
            try:
                count = nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter.number)
            except Exception as error:
                why = binding.nvml_reason_of_error(nvml, error)
                if why.reason is MissingReason.NOT_SUPPORTED:
                    self._unsupported[key] = why
                continue
            if not binding.is_nvml_sentinel(count):
                known[link] = count
        return known

    def _add_count(
        self,
        counter: _Counter,
        of_links: dict[int, int],
        answers: dict[_Key, int | NoValue],
        into: binding.GpuReadings,
    ) -> None:
        counts = self._counts.setdefault(counter, {})
        counts |= of_links
        for link, count in sorted(counts.items()):
            if count:
                into.add_raw("nvlink_link_errors_total", count, link=link, kind=counter.kind)
        total = answers[counter.total] if counter.total is not None else NoValue(MissingReason.NOT_SUPPORTED)
        if isinstance(total, int):
            into.add_raw(counter.metric, total)
        elif counts:
            into.add_raw(counter.metric, sum(counts.values()))
        else:
            into.add(counter.metric, total)

    def _fields(self, nvml: binding.Nvml, handle: binding.Handle, wanted: list[_Key]) -> dict[_Key, int | NoValue]:
        """Field values, or why there is none."""
        asked = [one for one in wanted if one not in self._unsupported]
        answers: dict[_Key, int | NoValue] = {one: why for one in wanted if (why := self._unsupported.get(one))}
        if not asked:
            return answers
        try:
            values = nvml.nvmlDeviceGetFieldValues(handle, asked)
        except Exception as error:
            return answers | dict.fromkeys(asked, binding.nvml_reason_of_error(nvml, error))
        for one, value in zip(asked, values, strict=True):
            answer = binding.field_value(value)
            if isinstance(answer, NoValue) and answer.reason is MissingReason.NOT_SUPPORTED:
                self._unsupported[one] = answer
            answers[one] = answer if isinstance(answer, NoValue) else int(answer)
        return answers


def _error_ratio(packed: int) -> float:
    """NVML's error ratio: 4 bits of mantissa and 8 of the exponent to 10."""
    mantissa, exponent = packed >> 8 & 0xF, packed & 0xFF
    no_error = (mantissa, exponent) == (15, 255)  # the smallest that can be written
    return 0.0 if no_error else mantissa * 10.0**-exponent


def read_fabric(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    """State and health of the registration with the fabric (NVSwitch systems from Hopper on)."""
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    info.version = nvml.nvmlGpuFabricInfo_v3
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))  # passed on unchanged by the binding
    _add_fabric(info.state, info.status, fabric_health(info.healthMask) | fabric_summary(info.healthSummary), into)


def read_fabric_without_summary(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    """The same from an older driver."""
    info = nvml.c_nvmlGpuFabricInfoV_t()
    info.version = nvml.nvmlGpuFabricInfo_v2
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    _add_fabric(info.state, info.status, fabric_health(info.healthMask), into)


def _add_fabric(state: int, status: int, health: dict[str, float], into: binding.GpuReadings) -> None:
    for name, value in fabric_states(state, has_failed=bool(status)).items():
        into.add("fabric_state", value, state=name)
    for aspect, value in health.items():
        into.add("fabric_health", value, aspect=aspect)
