"""What is asked of a GPU now and then: limits, links, memory errors, energy, what it needs."""

from __future__ import annotations

import ctypes

from stepscope.collectors.nvml.binding import Handle, Nvml
from stepscope.collectors.nvml.gathering import Gathering
from stepscope.collectors.nvml.queries import Query, single

_MHZ, _MILLI, _PERCENT = 1e6, 1e-3, 0.01
_SM, _MEMORY, _VIDEO = 1, 2, 3
_SHUTDOWN, _SLOWDOWN = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOAD, _LIFETIME = 0, 1
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
_BANKS = ("max", "high", "partial", "low", "none")
_FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
_FABRIC_ASPECTS = (("bandwidth", 0), ("route_recovery", 2), ("route", 4), ("access_timeout_recovery", 6))
"""Two bits each of the health mask: 1 = it is so (unhealthy), 2 = it is not so, 0 = not supported."""
MOST_NVLINKS = 18


def _percentage(name: str, function: str) -> Query:
    def ask(nvml: Nvml, handle: Handle, into: Gathering) -> None:
        used, _ = getattr(nvml, function)(handle)
        into.add(name, used, _PERCENT)

    return Query((name,), ask)


def _bar1(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    window = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    into.add("bar1_used_bytes", window.bar1Used)
    into.add("bar1_total_bytes", window.bar1Total)


def _ecc_mode(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    current, _ = nvml.nvmlDeviceGetEccMode(handle)
    into.add("ecc_enabled", current)


def _remapped_rows(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    into.add("remapped_rows_corrected_total", corrected)
    into.add("remapped_rows_uncorrected_total", uncorrected)
    into.add("row_remap_pending", pending)
    into.add("row_remap_failed", failed)


def _banks(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    counts = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    for availability in _BANKS:
        into.add("row_remap_banks", getattr(counts, availability), further=(("availability", availability),))


def _retired(name: str, cause: int) -> Query:
    def ask(nvml: Nvml, handle: Handle, into: Gathering) -> None:
        into.add(name, len(nvml.nvmlDeviceGetRetiredPages(handle, cause)))

    return Query((name,), ask)


def _nvlinks(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    """State of each link. A GPU has as many as answer; that it has none is told by the first."""
    states = [nvml.nvmlDeviceGetNvLinkState(handle, 0)]
    for link in range(1, MOST_NVLINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break
    for link, state in enumerate(states):
        into.add("nvlink_up", state, further=(("link", str(link)),))
    num_up = sum(1 for state in states if state)
    into.add("nvlink_links", num_up, further=(("state", "up"),))
    into.add("nvlink_links", len(states) - num_up, further=(("state", "down"),))


def _fabric(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    """State of the registration with the fabric (NVSwitch systems from Hopper on)."""
    info = nvml.c_nvmlGpuFabricInfoV_t()
    info.version = nvml.nvmlGpuFabricInfo_v2
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))  # the binding passes it on as it is
    state = _FABRIC_STATES[info.state] if info.state < len(_FABRIC_STATES) else f"state_{info.state}"
    if state == "completed" and info.status:
        state = "failed"
    for known in dict.fromkeys((*_FABRIC_STATES[1:], "failed", state)):
        into.add("fabric_state", 1 if known == state else 0, further=(("state", known),))
    for aspect, shift in _FABRIC_ASPECTS:
        told = info.healthMask >> shift & 3
        if told:
            into.add("fabric_health", 0 if told == 1 else 1, further=(("aspect", aspect),))


def _mig_mode(nvml: Nvml, handle: Handle, into: Gathering) -> None:
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    into.add("mig_enabled", current)


def _ecc(name: str, kind: int, period: int) -> Query:
    return single(name, "nvmlDeviceGetTotalEccErrors", kind, period)


QUERIES: tuple[Query, ...] = (
    # half of all that a reading costs (5.4 ms on an H200), and nothing is lost: it counts up
    single("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=_MILLI),
    single("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=_MILLI),
    single("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", scale=_MILLI),
    single("sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", _SM, scale=_MHZ),
    single("memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", _MEMORY, scale=_MHZ),
    single("video_clock_hertz", "nvmlDeviceGetClockInfo", _VIDEO, scale=_MHZ),
    single("temperature_margin_celsius", "nvmlDeviceGetMarginTemperature"),
    single("temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    single("temperature_shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
    single("fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=_PERCENT),
    _percentage("encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization"),
    _percentage("decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization"),
    Query(("bar1_used_bytes", "bar1_total_bytes"), _bar1),
    single("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    single("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    single("pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    single("pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    single("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"),
    Query(("nvlink_up", "nvlink_links"), _nvlinks),
    Query(("fabric_state", "fabric_health"), _fabric),
    Query(("ecc_enabled",), _ecc_mode),
    _ecc("ecc_corrected_errors_total", _CORRECTED, _SINCE_LOAD),
    _ecc("ecc_uncorrected_errors_total", _UNCORRECTED, _SINCE_LOAD),
    _ecc("ecc_lifetime_corrected_errors_total", _CORRECTED, _LIFETIME),
    _ecc("ecc_lifetime_uncorrected_errors_total", _UNCORRECTED, _LIFETIME),
    Query(
        (
            "remapped_rows_corrected_total",
            "remapped_rows_uncorrected_total",
            "row_remap_pending",
            "row_remap_failed",
        ),
        _remapped_rows,
    ),
    Query(("row_remap_banks",), _banks),
    _retired("retired_pages_corrected_total", _SINGLE_BIT),
    _retired("retired_pages_uncorrected_total", _DOUBLE_BIT),
    single("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    Query(("mig_enabled",), _mig_mode),
)
