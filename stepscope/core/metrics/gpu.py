"""Metrics of GPUs and NVSwitches: our name, unit, help, and DCGM's field where it has one.

Values are in base units (watts, bytes, hertz, ratios of 0 to 1) whatever the source gives. DCGM's names and scales are
those of its 4.6 (dcgmlib/dcgm_fields.h, DcgmCacheManager.cpp): the names changed there, the units did not, so that
`DCGM_FI_DEV_GPU_UTIL_RATIO` is still a percentage, while the ratios of `DCGM_FI_PROF_` are ratios.

An SXid is to a switch what an XID is to a GPU; DCGM shows the last one forever.
"""

from __future__ import annotations

from stepscope.core.metrics import Dcgm, Metric, MetricKind, Unit

GPU = "stepscope_gpu_"
_MHZ, _PERCENT, _MIB, _MILLI, _NANO = 1e6, 0.01, 1048576.0, 1e-3, 1e-9
_WORKLOAD = ("namespace", "pod", "container", "pod_uid", "job", "vgpu")
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER


def _dcgm(name: str, new_name: str = "", scale: float = 1.0) -> Dcgm:
    return Dcgm(f"DCGM_FI_{name}", f"DCGM_FI_{new_name or name}", scale)


def _gauge(name: str, unit: Unit, text: str, dcgm: Dcgm | None = None, *labels: str) -> Metric:
    return Metric(GPU + name, _GAUGE, unit, text, dcgm, labels)


def _count(name: str, unit: Unit, text: str, dcgm: Dcgm | None = None, *labels: str) -> Metric:
    return Metric(GPU + name, _COUNTER, unit, text, dcgm, labels)


U = Unit
# fmt: off
GPU_METRICS: tuple[Metric, ...] = (
    # what it is
    _gauge("info", U.NONE, "1; its labels say what GPU this is.", None,
           "name", "architecture", "pci_bus_id", "minor_number", "serial", "vbios", "driver", "cuda"),
    _gauge("up", U.NONE, "1: the GPU answers. 0: it is lost, hangs or is refused; label reason.", None, "reason"),
    _gauge("mig_enabled", U.NONE, "1: the GPU is split into MIG instances.", _dcgm("DEV_MIG_MODE")),
    # power and energy
    _gauge("power_watts", U.WATTS, "Power of the board; an average of the last second from Ampere on.",
           _dcgm("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS")),
    _gauge("power_instant_watts", U.WATTS, "Power of the board at this moment.",
           _dcgm("DEV_POWER_USAGE_INSTANT", "DEV_BOARD_POWER_RAW_WATTS")),
    _gauge("power_limit_watts", U.WATTS, "Power limit that the driver enforces, the lowest of all limits.",
           _dcgm("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS")),
    _gauge("power_limit_default_watts", U.WATTS, "Power limit after power on.",
           _dcgm("DEV_POWER_MGMT_LIMIT_DEF", "DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS")),
    _count("energy_joules_total", U.JOULES, "Energy used since the driver was loaded.",
           _dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", scale=_MILLI)),
    # clocks
    _gauge("sm_clock_hertz", U.HERTZ, "Clock of the SMs, as it is set.", _dcgm("DEV_SM_CLOCK", scale=_MHZ)),
    _gauge("sm_clock_max_hertz", U.HERTZ, "Highest clock of the SMs.", _dcgm("DEV_MAX_SM_CLOCK", scale=_MHZ)),
    _gauge("memory_clock_hertz", U.HERTZ, "Clock of the memory.", _dcgm("DEV_MEM_CLOCK", scale=_MHZ)),
    _gauge("memory_clock_max_hertz", U.HERTZ, "Highest clock of the memory.", _dcgm("DEV_MAX_MEM_CLOCK", scale=_MHZ)),
    _gauge("video_clock_hertz", U.HERTZ, "Clock of the video engines.", _dcgm("DEV_VIDEO_CLOCK", scale=_MHZ)),
    _gauge("performance_state", U.NONE, "0: highest. 15: lowest.", _dcgm("DEV_PSTATE", "DEV_GPU_PSTATE")),
    _gauge("throttle_reason", U.NONE, "1: the clocks are lower for this reason now.", None, "reason"),
    _count("power_violation_seconds_total", U.SECONDS, "Time under the power limit.",
           _dcgm("DEV_POWER_VIOLATION", scale=_NANO)),
    _count("thermal_violation_seconds_total", U.SECONDS, "Time slowed by temperature.",
           _dcgm("DEV_THERMAL_VIOLATION", scale=_NANO)),
    _count("sync_boost_violation_seconds_total", U.SECONDS, "Time slowed to stay with the other GPUs of its group.",
           _dcgm("DEV_SYNC_BOOST_VIOLATION", scale=_NANO)),
    _count("board_limit_violation_seconds_total", U.SECONDS, "Time slowed by a limit of the board.",
           _dcgm("DEV_BOARD_LIMIT_VIOLATION", scale=_NANO)),
    _count("low_utilization_violation_seconds_total", U.SECONDS, "Time slowed for want of work.",
           _dcgm("DEV_LOW_UTIL_VIOLATION", scale=_NANO)),
    _count("reliability_violation_seconds_total", U.SECONDS, "Time slowed by the reliability limit of the voltage.",
           _dcgm("DEV_RELIABILITY_VIOLATION", scale=_NANO)),
    # temperature
    _gauge("temperature_celsius", U.CELSIUS, "Temperature of the GPU.",
           _dcgm("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS")),
    _gauge("memory_temperature_celsius", U.CELSIUS, "Temperature of the memory.",
           _dcgm("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS")),
    _gauge("temperature_margin_celsius", U.CELSIUS, "Degrees left up to the nearest slowdown threshold.",
           _dcgm("DEV_GPU_TEMP_LIMIT", "DEV_GPU_TEMP_MARGIN_CELSIUS")),
    _gauge("temperature_slowdown_celsius", U.CELSIUS, "Temperature at which the hardware slows down.",
           _dcgm("DEV_SLOWDOWN_TEMP", "DEV_GPU_TEMP_SLOWDOWN_CELSIUS")),
    _gauge("temperature_shutdown_celsius", U.CELSIUS, "Temperature at which the GPU shuts down.",
           _dcgm("DEV_SHUTDOWN_TEMP", "DEV_GPU_TEMP_SHUTDOWN_CELSIUS")),
    _gauge("fan_speed_ratio", U.RATIO, "Intended speed of the fan.", _dcgm("DEV_FAN_SPEED", scale=_PERCENT)),
    # memory
    _gauge("memory_total_bytes", U.BYTES, "Memory of the GPU.", _dcgm("DEV_FB_TOTAL", scale=_MIB)),
    _gauge("memory_used_bytes", U.BYTES, "Memory in use, without what the driver keeps for itself.",
           _dcgm("DEV_FB_USED", scale=_MIB)),
    _gauge("memory_free_bytes", U.BYTES, "Memory that can be allocated.", _dcgm("DEV_FB_FREE", scale=_MIB)),
    _gauge("memory_reserved_bytes", U.BYTES, "Memory that driver and firmware keep.",
           _dcgm("DEV_FB_RESERVED", scale=_MIB)),
    _gauge("memory_unified", U.NONE, "1: the GPU has no memory of its own, used is the sum of its processes."),
    _gauge("bar1_used_bytes", U.BYTES, "Used part of the window through which the host sees the memory.",
           _dcgm("DEV_BAR1_USED", scale=_MIB)),
    _gauge("bar1_total_bytes", U.BYTES, "Window through which the host sees the memory; no memory beside it.",
           _dcgm("DEV_BAR1_TOTAL", scale=_MIB)),
    # utilisation as nvidia-smi shows it
    _gauge("utilization_ratio", U.RATIO, "Share of time in which any kernel ran; tells nothing of how well.",
           _dcgm("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO", _PERCENT)),
    _gauge("memory_bandwidth_busy_ratio", U.RATIO, "Share of time in which memory was read or written; no fill level.",
           _dcgm("DEV_MEM_COPY_UTIL", scale=_PERCENT)),
    _gauge("encoder_utilization_ratio", U.RATIO, "Use of the video encoder.", _dcgm("DEV_ENC_UTIL", scale=_PERCENT)),
    _gauge("decoder_utilization_ratio", U.RATIO, "Use of the video decoder.", _dcgm("DEV_DEC_UTIL", scale=_PERCENT)),
    # profiling counters: GPM on Hopper and newer, DCGM's PROF fields elsewhere
    _gauge("graphics_engine_active_ratio", U.RATIO, "Share of time in which a compute or graphics engine was active.",
           _dcgm("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO")),
    _gauge("sm_active_ratio", U.RATIO, "Share of SM cycles with a warp resident, over all SMs.",
           _dcgm("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO")),
    _gauge("sm_occupancy_ratio", U.RATIO, "Resident warps of the possible ones, over all SMs.",
           _dcgm("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO")),
    _gauge("tensor_active_ratio", U.RATIO, "Share of cycles in which any tensor core pipe was active.",
           _dcgm("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO")),
    _gauge("tensor_hmma_active_ratio", U.RATIO, "The same of the pipe for 16-bit and narrower floats.",
           _dcgm("PROF_PIPE_TENSOR_HMMA_ACTIVE", "PROF_HMMA_UTIL_RATIO")),
    _gauge("tensor_imma_active_ratio", U.RATIO, "The same of the pipe for integers.",
           _dcgm("PROF_PIPE_TENSOR_IMMA_ACTIVE", "PROF_IMMA_UTIL_RATIO")),
    _gauge("tensor_dfma_active_ratio", U.RATIO, "The same of the pipe for doubles.",
           _dcgm("PROF_PIPE_TENSOR_DFMA_ACTIVE", "PROF_DFMA_UTIL_RATIO")),
    _gauge("dram_active_ratio", U.RATIO, "Share of cycles in which memory moved data.",
           _dcgm("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO")),
    _gauge("fp64_active_ratio", U.RATIO, "Share of cycles in which the FP64 pipe (no tensor core) was active.",
           _dcgm("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO")),
    _gauge("fp32_active_ratio", U.RATIO, "Share of cycles in which the FP32 pipe was active.",
           _dcgm("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO")),
    _gauge("fp16_active_ratio", U.RATIO, "Share of cycles in which the FP16 pipe (no tensor core) was active.",
           _dcgm("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO")),
    _gauge("integer_active_ratio", U.RATIO, "Share of cycles in which the integer pipe was active.",
           _dcgm("PROF_PIPE_INT_ACTIVE", "PROF_INT_UTIL_RATIO")),
    # PCIe; transmit is from the GPU to the host
    _gauge("pcie_transmit_bytes_per_second", U.BYTES_PER_SECOND, "From the GPU over PCIe, headers included.",
           _dcgm("PROF_PCIE_TX_BYTES")),
    _gauge("pcie_receive_bytes_per_second", U.BYTES_PER_SECOND, "To the GPU over PCIe, headers included.",
           _dcgm("PROF_PCIE_RX_BYTES")),
    _count("pcie_transmit_bytes_total", U.BYTES, "From the GPU over PCIe since the driver was loaded.",
           _dcgm("PROF_PCIE_TX_BYTES_TOTAL")),
    _count("pcie_receive_bytes_total", U.BYTES, "To the GPU over PCIe since the driver was loaded.",
           _dcgm("PROF_PCIE_RX_BYTES_TOTAL")),
    _count("pcie_replays_total", U.NONE, "Packets sent again over PCIe.",
           _dcgm("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL")),
    _gauge("pcie_link_generation", U.NONE, "PCIe generation now; low while idle.", _dcgm("DEV_PCIE_LINK_GEN")),
    _gauge("pcie_link_width", U.NONE, "PCIe lanes now.", _dcgm("DEV_PCIE_LINK_WIDTH")),
    _gauge("pcie_link_generation_max", U.NONE, "Highest PCIe generation of GPU and host together.",
           _dcgm("DEV_PCIE_MAX_LINK_GEN")),
    _gauge("pcie_link_width_max", U.NONE, "Most PCIe lanes of GPU and host together.",
           _dcgm("DEV_PCIE_MAX_LINK_WIDTH")),
    # NVLink
    _gauge("nvlink_transmit_bytes_per_second", U.BYTES_PER_SECOND, "Sent over all NVLinks, data and protocol.",
           _dcgm("PROF_NVLINK_TX_BYTES")),
    _gauge("nvlink_receive_bytes_per_second", U.BYTES_PER_SECOND, "Received over all NVLinks, data and protocol.",
           _dcgm("PROF_NVLINK_RX_BYTES")),
    _gauge("nvlink_data_bytes_per_second", U.BYTES_PER_SECOND, "Data both ways over all NVLinks, as DCGM works it out.",
           # a rate, though dcgm-exporter types it a counter; KiB/s divided by 1000 (DcgmCacheManager.cpp:14476)
           _dcgm("DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_NVLINK_THROUGHPUT_TOTAL", 1024e3)),
    _count("nvlink_transmit_bytes_total", U.BYTES, "Data sent over all NVLinks since the driver was loaded.",
           _dcgm("DEV_NVLINK_COUNT_TX_BYTES", "DEV_NVLINK_TX_BYTES_TOTAL")),
    _count("nvlink_receive_bytes_total", U.BYTES, "Data received over all NVLinks since the driver was loaded.",
           _dcgm("DEV_NVLINK_COUNT_RX_BYTES", "DEV_NVLINK_RX_BYTES_TOTAL")),
    _gauge("nvlink_links", U.NONE, "NVLinks in this state.", None, "state"),
    _gauge("nvlink_up", U.NONE, "1: the link is up.", None, "link"),
    _count("nvlink_crc_flit_errors_total", U.NONE, "Flow control units with a wrong checksum, up to NVLink 4.",
           _dcgm("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL")),
    _count("nvlink_crc_data_errors_total", U.NONE, "Data with a wrong checksum, up to NVLink 4.",
           _dcgm("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_DATA_ERROR_TOTAL")),
    _count("nvlink_replay_errors_total", U.NONE, "Packets sent again over NVLink.",
           _dcgm("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_REPLAY_ERROR_TOTAL")),
    _count("nvlink_recovery_errors_total", U.NONE, "Recoveries of an NVLink.",
           _dcgm("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_RECOVERY_ERROR_TOTAL")),
    _count("nvlink_link_errors_total", U.NONE, "Errors of one NVLink; those of all are in the metrics above.", None,
           "link", "kind"),
    _gauge("p2p_status", U.NONE, "Can it reach the peer over NVLink? 0: yes, else why not; label status.", None,
           "peer", "status"),
    # from NVLink 5 on
    _gauge("nvlink_effective_bit_error_ratio", U.RATIO, "Wrong bits after correction, of all received over NVLink.",
           _dcgm("DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", "DEV_NVLINK_EFFECTIVE_BER_RATIO")),
    _gauge("nvlink_symbol_error_ratio", U.RATIO, "Wrong symbols, of all received over NVLink.",
           _dcgm("DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", "DEV_NVLINK_SYMBOL_BER_RATIO")),
    _count("nvlink_receive_errors_total", U.NONE, "Packets received with errors over NVLink.",
           _dcgm("DEV_NVLINK_COUNT_RX_ERRORS", "DEV_NVLINK_RX_ERROR_TOTAL")),
    _count("nvlink_integrity_errors_total", U.NONE, "Times that errors of an NVLink passed its threshold.",
           _dcgm("DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "DEV_NVLINK_INTEGRITY_ERROR_TOTAL")),
    _count("nvlink_recoveries_total", U.NONE, "Times that an NVLink left its work to recover.",
           _dcgm("DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", "DEV_NVLINK_RECOVERY_EVENT_TOTAL")),
    _count("nvlink_recoveries_failed_total", U.NONE, "Recoveries that failed and took the NVLink down.",
           _dcgm("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "DEV_NVLINK_RECOVERY_FAILED_TOTAL")),
    _gauge("fabric_state", U.NONE, "1: the state of the NVLink fabric's registration.", None, "state"),
    _gauge("fabric_health", U.NONE, "1: this of the fabric is healthy. 0: it is not.", None, "aspect"),
    # memory errors
    _gauge("ecc_enabled", U.NONE, "1: ECC is on.", _dcgm("DEV_ECC_CURRENT", "DEV_ECC_MODE")),
    _count("ecc_corrected_errors_total", U.NONE, "Memory errors corrected since the driver was loaded.",
           _dcgm("DEV_ECC_SBE_VOL_TOTAL")),
    _count("ecc_uncorrected_errors_total", U.NONE, "Memory errors not corrected since the driver was loaded.",
           _dcgm("DEV_ECC_DBE_VOL_TOTAL")),
    _count("ecc_lifetime_corrected_errors_total", U.NONE, "Memory errors corrected in the GPU's life.",
           _dcgm("DEV_ECC_SBE_AGG_TOTAL")),
    _count("ecc_lifetime_uncorrected_errors_total", U.NONE, "Memory errors not corrected in the GPU's life.",
           _dcgm("DEV_ECC_DBE_AGG_TOTAL")),
    _count("remapped_rows_corrected_total", U.NONE, "Memory rows replaced after corrected errors.",
           _dcgm("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL")),
    _count("remapped_rows_uncorrected_total", U.NONE, "Memory rows replaced after errors that were not corrected.",
           _dcgm("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL")),
    _gauge("row_remap_pending", U.NONE, "1: a row is replaced at the next reset.", _dcgm("DEV_ROW_REMAP_PENDING")),
    _gauge("row_remap_failed", U.NONE, "1: a row could not be replaced; the GPU is to be exchanged.",
           _dcgm("DEV_ROW_REMAP_FAILURE", "DEV_ROW_REMAP_FAILED")),
    _gauge("row_remap_banks", U.NONE, "Memory banks by what spare rows they have left.", None, "availability"),
    _count("retired_pages_corrected_total", U.NONE, "Pages retired after repeated single bit errors, before Ampere.",
           _dcgm("DEV_RETIRED_SBE", "DEV_PAGE_RETIRED_SBE_TOTAL")),
    _count("retired_pages_uncorrected_total", U.NONE, "Pages retired after double bit errors, before Ampere.",
           _dcgm("DEV_RETIRED_DBE", "DEV_PAGE_RETIRED_DBE_TOTAL")),
    _gauge("retired_pages_pending", U.NONE, "1: pages are retired at the next reboot.",
           _dcgm("DEV_RETIRED_PENDING", "DEV_PAGE_RETIRED_PENDING")),
    # events and what to do
    _count("xid_errors_total", U.NONE, "XID errors since the agent started.", None, "xid"),
    _gauge("xid_last_timestamp_seconds", U.SECONDS, "When this XID came last.", None, "xid"),
    _gauge("xid_last", U.NONE, "The last XID, for ever, as DCGM shows it; count by xid_errors_total.",
           _dcgm("DEV_XID_ERRORS", "DEV_XID_ERROR")),
    _gauge("xid_recent", U.NONE, "XIDs of this number in the last while, as DCGM counts them.", None,
           "xid", "window_seconds"),
    _gauge("throttle_recent", U.NONE, "Samples with this throttle reason in the last while, as DCGM counts them.", None,
           "reason", "window_seconds"),
    _gauge("dcgm_health_status", U.NONE, "DCGM's own judgement. 0: pass. 10: warning. 20: failure.", None,
           "watch", "error"),
    _gauge("recovery_action", U.NONE, "1: what the driver asks for to recover the GPU.", None, "action"),
    # who uses it
    _gauge("processes", U.NONE, "Processes that hold the GPU.", None, "kind"),
    _gauge("process_memory_bytes", U.BYTES, "Memory that a process holds.", None, "pid", "kind"),
    _gauge("process_sm_utilization_ratio", U.RATIO, "Share of time in which a process's kernels ran.", None, "pid"),
    _gauge("workload_info", U.NONE, "1; its labels say which pod or job has the GPU.", None, *_WORKLOAD),
    _gauge("workload_utilization_ratio", U.RATIO, "A pod's share of the utilization, on GPUs that pods share.", None,
           *_WORKLOAD),
    _gauge("workload_memory_bytes", U.BYTES, "Memory that a pod holds, on GPUs that pods share.", None, *_WORKLOAD),
)
# fmt: on

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in GPU_METRICS}
BY_DCGM_NAME: dict[str, Metric] = {
    name: metric for metric in GPU_METRICS if metric.dcgm for name in (metric.dcgm.name, metric.dcgm.new_name)
}
"""Both spellings of each of DCGM's fields."""

PROFILING_METRICS = frozenset(
    GPU + name
    for name in (
        *("graphics_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "dram_active_ratio"),
        *("tensor_active_ratio", "tensor_hmma_active_ratio", "tensor_imma_active_ratio", "tensor_dfma_active_ratio"),
        *("fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio", "integer_active_ratio"),
        *("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"),
        *("nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second"),
    )
)
"""Counters for profiling, NVML's GPM and DCGM's PROF fields: they stop together."""

THROTTLE_REASONS = (
    (0x1, "idle"),
    (0x2, "application_clocks"),
    (0x4, "software_power_cap"),
    (0x8, "hardware_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "software_thermal"),
    (0x40, "hardware_thermal"),
    (0x80, "hardware_power_brake"),
    (0x100, "display_clocks"),
)
"""Bits of nvmlClocksEventReasons, which DCGM passes on, in the words of the metric throttle_reason's label.

A cap on power is normal under load; hardware reasons are not.
"""


SWITCH = "stepscope_nvswitch_"
_FIELD = "DCGM_FI_DEV_NVSWITCH_"

# fmt: off
_LINK_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    ("replay", "LINK_REPLAY_ERRORS", "LINK_REPLAY_ERROR_TOTAL", "Packets sent again over a link of the switch."),
    ("recovery", "LINK_RECOVERY_ERRORS", "LINK_RECOVERY_ERROR_TOTAL", "Recoveries of a link of the switch."),
    ("flit", "LINK_FLIT_ERRORS", "LINK_FLIT_ERROR_TOTAL", "Wrong flow control units of a link of the switch."),
    ("crc", "LINK_CRC_ERRORS", "LINK_CRC_ERROR_TOTAL", "Wrong checksums of a link of the switch."),
    ("ecc", "LINK_ECC_ERRORS", "LINK_ECC_ERROR_TOTAL", "Bits of a link of the switch that ECC mended."),
)
FABRIC_METRICS: tuple[Metric, ...] = (
    Metric(SWITCH + "temperature_celsius", MetricKind.GAUGE, Unit.CELSIUS, "Temperature of the switch.",
           Dcgm(_FIELD + "TEMPERATURE_CURRENT", _FIELD + "TEMP_CELSIUS"), ("switch",)),
    Metric(SWITCH + "sxid_fatal_last", MetricKind.GAUGE, Unit.NONE, "The last fatal SXid, for ever; 0 without.",
           Dcgm(_FIELD + "FATAL_ERRORS", "DCGM_FI_DEV_SXID_FATAL_ERROR"), ("switch",)),
    Metric(SWITCH + "sxid_nonfatal_last", MetricKind.GAUGE, Unit.NONE, "The last SXid that is not fatal; 0 without.",
           Dcgm(_FIELD + "NON_FATAL_ERRORS", "DCGM_FI_DEV_SXID_NON_FATAL_ERROR"), ("switch",)),
    Metric(SWITCH + "sxid_errors_total", MetricKind.COUNTER, Unit.NONE, "SXid errors since the agent started.", None,
           ("pci_bus_id", "sxid", "severity")),
    *(Metric(f"{SWITCH}link_{kind}_errors_total", MetricKind.COUNTER, Unit.NONE, text,
             Dcgm(_FIELD + old, _FIELD + new), ("link", "switch")) for kind, old, new, text in _LINK_ERRORS),
)
# fmt: on
