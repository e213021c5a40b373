"""DCGM fields: the metric of each field of a page, and the scale of its value.

Three spellings: DCGM's own, those of DCGM 4.6 (both in `core.metrics.gpu`), and those of dcgm-exporter 1.x
(etc/1.x-compatibility-metrics.csv). The 1.x violation counters are left out: their unit changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.collectors.dcgm_exporter.entities import Kind
from stepscope.core.metrics import Metric
from stepscope.core.metrics.gpu import BY_DCGM_NAME, FABRIC_METRICS, GPU
from stepscope.core.metrics.host import CPU_METRICS_OF_DCGM
from stepscope.core.metrics.readings import Labels, labels_of

_VERSION_1 = {
    "dcgm_sm_clock": "sm_clock_hertz",
    "dcgm_memory_clock": "memory_clock_hertz",
    "dcgm_memory_temp": "memory_temperature_celsius",
    "dcgm_gpu_temp": "temperature_celsius",
    "dcgm_power_usage": "power_watts",
    "dcgm_total_energy_consumption": "energy_joules_total",
    "dcgm_pcie_replay_counter": "pcie_replays_total",
    "dcgm_gpu_utilization": "utilization_ratio",
    "dcgm_mem_copy_utilization": "memory_bandwidth_busy_ratio",
    "dcgm_enc_utilization": "encoder_utilization_ratio",
    "dcgm_dec_utilization": "decoder_utilization_ratio",
    "dcgm_xid_errors": "xid_last",
    "dcgm_fb_free": "memory_free_bytes",
    "dcgm_fb_used": "memory_used_bytes",
    "dcgm_ecc_sbe_volatile_total": "ecc_corrected_errors_total",
    "dcgm_ecc_dbe_volatile_total": "ecc_uncorrected_errors_total",
    "dcgm_ecc_sbe_aggregate_total": "ecc_lifetime_corrected_errors_total",
    "dcgm_ecc_dbe_aggregate_total": "ecc_lifetime_uncorrected_errors_total",
    "dcgm_retired_pages_sbe": "retired_pages_corrected_total",
    "dcgm_retired_pages_dbe": "retired_pages_uncorrected_total",
    "dcgm_retired_pages_pending": "retired_pages_pending",
    "dcgm_nvlink_flit_crc_error_count_total": "nvlink_crc_flit_errors_total",
    "dcgm_nvlink_data_crc_error_count_total": "nvlink_crc_data_errors_total",
    "dcgm_nvlink_replay_error_count_total": "nvlink_replay_errors_total",
    "dcgm_nvlink_recovery_error_count_total": "nvlink_recovery_errors_total",
    "dcgm_nvlink_bandwidth_total": "nvlink_data_bytes_per_second",
}
_LINK_ERROR = re.compile(
    r"DCGM_FI_DEV_NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_"
    r"(?:COUNT_L(\d+)|L(\d+)_TOTAL|(PER_LINK_TOTAL|COUNT_TOTAL|TOTAL))"
)


@dataclass(frozen=True, slots=True)
class FieldMeaning:
    """Meaning of a field.

    Attributes:
        metric: name of our metric.
        scale: our value = its value x scale.
        further: labels taken from the field's name.
    """

    metric: str
    scale: float
    further: Labels = ()


def _all_meanings() -> dict[str, FieldMeaning]:
    rows: list[Metric] = [*BY_DCGM_NAME.values(), *FABRIC_METRICS, *CPU_METRICS_OF_DCGM]
    known = {}
    for metric in rows:
        if metric.dcgm:
            for name in (metric.dcgm.name, metric.dcgm.new_name):
                known[name] = FieldMeaning(metric.name, metric.dcgm.scale)
    by_metric = {meaning.metric: meaning for meaning in known.values()}
    known |= {name: by_metric[GPU + metric] for name, metric in _VERSION_1.items()}
    first_profiling = {name.lower(): meaning for name, meaning in known.items() if name.startswith("DCGM_FI_PROF_")}
    return known | first_profiling


_MEANINGS = _all_meanings()
LINK_ERRORS = "nvlink_link_errors_total"


_XID = re.compile(r"[0-9]{1,6}", re.ASCII)
THROTTLE_FIELDS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_CLOCK_EVENTS = {
    "gpu_idle": "idle",
    "clocks_setting": "application_clocks",
    "power_cap": "software_power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sw_thermal": "software_thermal",
    "hw_thermal": "hardware_thermal",
    "hw_power_brake": "hardware_power_brake",
}
"""dcgm-exporter's words where they differ from ours."""


def meaning_of(field: str, kind: Kind, labels: Mapping[str, str]) -> FieldMeaning | None:
    """Meaning of a sample's field, None where we have no such metric.

    Args:
        field: its name on the page.
        kind: of the sample's entity. DCGM has one name for an NVLink's errors and for those of all links of a GPU.
        labels: of the sample, normalized.
    """
    if kind is Kind.NONE:
        return None
    if field.startswith("DCGM_EXP_"):
        return _exporter_series(field, labels)
    if kind in (Kind.GPU, Kind.GPU_LINK):
        match = _LINK_ERROR.fullmatch(field)
        if match and (kind is Kind.GPU_LINK or not match[4]):
            further = {"kind": match[1].lower(), "link": match[2] or match[3]}
            return FieldMeaning(GPU + LINK_ERRORS, 1.0, labels_of(**{k: v for k, v in further.items() if v}))
    meaning = _MEANINGS.get(field)
    return meaning if meaning and (kind is Kind.GPU) == meaning.metric.startswith(GPU) else None


def _exporter_series(field: str, labels: Mapping[str, str]) -> FieldMeaning | None:
    """Series that dcgm-exporter makes itself, which differ in their labels."""
    milliseconds = labels.get("windowsizeinms", "")
    has_window = milliseconds.isdecimal() and len(milliseconds) < 16
    window = {"window_seconds": f"{int(milliseconds) / 1000:g}"} if has_window else {}
    xid = labels.get("xid", "")
    if field == "DCGM_EXP_XID_ERRORS_COUNT" and _XID.fullmatch(xid):  # without the label it is a 0 for all XIDs
        return FieldMeaning(GPU + "xid_recent", 1.0, labels_of(xid=xid, **window))
    if field == "DCGM_EXP_CLOCK_EVENTS_COUNT" and labels.get("clockevent"):
        event = labels["clockevent"]
        return FieldMeaning(GPU + "throttle_recent", 1.0, labels_of(reason=_CLOCK_EVENTS.get(event, event), **window))
    if field == "DCGM_EXP_GPU_HEALTH_STATUS" and labels.get("healthwatch"):
        further = labels_of(watch=labels["healthwatch"].lower(), error=labels.get("healtherrorcode", ""))
        return FieldMeaning(GPU + "dcgm_health_status", 1.0, further)
    if field == "DCGM_EXP_P2P_STATUS" and labels.get("peergpu"):
        further = labels_of(peer=labels["peergpu"], status=labels.get("linkstatus", ""))
        return FieldMeaning(GPU + "p2p_status", 1.0, further)
    return None
