"""Metrics of GPUs and NVSwitches: our name, unit, help, and DCGM's field where it has one.

Values are in base units (watts, bytes, hertz, ratios of 0 to 1) whatever the source reports. DCGM's names and scales
are those of DCGM 4.6 (dcgmlib/dcgm_fields.h, DcgmCacheManager.cpp): it renamed fields but kept their units, so
`DCGM_FI_DEV_GPU_UTIL_RATIO` is still a percentage, while the ratios of `DCGM_FI_PROF_` are ratios.

An SXid is to a switch what an XID is to a GPU; DCGM shows the latest one forever.
"""

from __future__ import annotations

from stepscope.core.metrics import DcgmField, DefaultSeries, Metric, MetricGroup
from stepscope.core.metrics.readings import GPU

_MHZ, _PERCENT, _MIB, _MILLI, _NANO = 1e6, 0.01, 1048576.0, 1e-3, 1e-9
_WORKLOAD = ("namespace", "pod", "container", "pod_uid", "job", "vgpu")
_gpu = MetricGroup(GPU).metric
_ALL, _NONZERO = DefaultSeries.ALL, DefaultSeries.NONZERO


def _field(name: str, new_name: str = "", scale: float = 1.0) -> DcgmField:
    return DcgmField(f"DCGM_FI_{name}", f"DCGM_FI_{new_name or name}", scale)


# fmt: off
GPU_METRICS: tuple[Metric, ...] = (
    # what it is
    _gpu("info", "Name, driver and other facts of the GPU as labels; always 1.",
         "name", "architecture", "pci_bus_id", "minor_number", "serial", "vbios", "driver", "cuda", default=_ALL),
    _gpu("up", "1: the GPU answers. 0: it is lost, hangs or access is refused; label reason.", "reason", default=_ALL),
    _gpu("mig_enabled", "1: MIG mode is on.", dcgm=_field("DEV_MIG_MODE"), default=_NONZERO),
    # power and energy
    _gpu("power_watts", "Power draw of the board; from Ampere on the average of the last second.",
         dcgm=_field("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS"), default=_ALL),
    _gpu("power_instant_watts", "Instantaneous power draw of the board.",
         dcgm=_field("DEV_POWER_USAGE_INSTANT", "DEV_BOARD_POWER_RAW_WATTS")),
    _gpu("power_limit_watts", "Power limit that the driver enforces: the lowest of all limits.",
         dcgm=_field("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"), default=_ALL),
    _gpu("power_limit_default_watts", "Default power limit of the board.",
         dcgm=_field("DEV_POWER_MGMT_LIMIT_DEF", "DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS")),
    _gpu("energy_joules_total", "Energy consumed since the driver was loaded.",
         dcgm=_field("DEV_TOTAL_ENERGY_CONSUMPTION", scale=_MILLI), default=_ALL),
    # clocks
    _gpu("sm_clock_hertz", "SM clock, as it is set.", dcgm=_field("DEV_SM_CLOCK", scale=_MHZ), default=_ALL),
    _gpu("sm_clock_max_hertz", "Maximum SM clock.", dcgm=_field("DEV_MAX_SM_CLOCK", scale=_MHZ), default=_ALL),
    _gpu("memory_clock_hertz", "Memory clock.", dcgm=_field("DEV_MEM_CLOCK", scale=_MHZ)),
    _gpu("memory_clock_max_hertz", "Maximum memory clock.", dcgm=_field("DEV_MAX_MEM_CLOCK", scale=_MHZ)),
    _gpu("video_clock_hertz", "Clock of the video engines.", dcgm=_field("DEV_VIDEO_CLOCK", scale=_MHZ)),
    _gpu("performance_state", "Performance state, from 0 (highest) to 15 (lowest).",
         dcgm=_field("DEV_PSTATE", "DEV_GPU_PSTATE")),
    _gpu("throttle_reason", "1: the clocks are reduced for this reason now.", "reason", default=_NONZERO),
    _gpu("power_violation_seconds_total", "Time throttled by the power limit.",
         dcgm=_field("DEV_POWER_VIOLATION", scale=_NANO)),
    _gpu("thermal_violation_seconds_total", "Time throttled by temperature.",
         dcgm=_field("DEV_THERMAL_VIOLATION", scale=_NANO)),
    _gpu("sync_boost_violation_seconds_total", "Time throttled by sync boost, to match the other GPUs of the group.",
         dcgm=_field("DEV_SYNC_BOOST_VIOLATION", scale=_NANO)),
    _gpu("board_limit_violation_seconds_total", "Time throttled by a limit of the board.",
         dcgm=_field("DEV_BOARD_LIMIT_VIOLATION", scale=_NANO)),
    _gpu("low_utilization_violation_seconds_total", "Time throttled because of low utilization.",
         dcgm=_field("DEV_LOW_UTIL_VIOLATION", scale=_NANO)),
    _gpu("reliability_violation_seconds_total", "Time throttled by the voltage reliability limit.",
         dcgm=_field("DEV_RELIABILITY_VIOLATION", scale=_NANO)),
    # temperature
    _gpu("temperature_celsius", "Temperature of the GPU.", dcgm=_field("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS"),
         default=_ALL),
    _gpu("memory_temperature_celsius", "Temperature of the memory.",
         dcgm=_field("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS"), default=_ALL),
    _gpu("temperature_margin_celsius", "Temperature margin to the nearest slowdown threshold.",
         dcgm=_field("DEV_GPU_TEMP_LIMIT", "DEV_GPU_TEMP_MARGIN_CELSIUS")),
    _gpu("temperature_slowdown_celsius", "Temperature at which the hardware throttles the clocks.",
         dcgm=_field("DEV_SLOWDOWN_TEMP", "DEV_GPU_TEMP_SLOWDOWN_CELSIUS")),
    _gpu("temperature_shutdown_celsius", "Temperature at which the GPU shuts down.",
         dcgm=_field("DEV_SHUTDOWN_TEMP", "DEV_GPU_TEMP_SHUTDOWN_CELSIUS")),
    _gpu("fan_speed_ratio", "Intended fan speed, of its maximum.", dcgm=_field("DEV_FAN_SPEED", scale=_PERCENT)),
    # memory
    _gpu("memory_total_bytes", "Total memory of the GPU.", dcgm=_field("DEV_FB_TOTAL", scale=_MIB), default=_ALL),
    _gpu("memory_used_bytes", "Allocated memory, without the part reserved by driver and firmware.",
         dcgm=_field("DEV_FB_USED", scale=_MIB), default=_ALL),
    _gpu("memory_free_bytes", "Free memory of the GPU.", dcgm=_field("DEV_FB_FREE", scale=_MIB)),
    _gpu("memory_reserved_bytes", "Memory reserved by driver and firmware.",
         dcgm=_field("DEV_FB_RESERVED", scale=_MIB)),
    _gpu("memory_unified", "1: the GPU shares the host's memory; its used memory is the sum over its processes."),
    _gpu("bar1_used_bytes", "Used BAR1 memory: the window through which the host maps GPU memory.",
         dcgm=_field("DEV_BAR1_USED", scale=_MIB)),
    _gpu("bar1_total_bytes", "Size of BAR1, the window through which the host maps GPU memory; not additional memory.",
         dcgm=_field("DEV_BAR1_TOTAL", scale=_MIB)),
    # utilisation as nvidia-smi shows it
    _gpu("utilization_ratio", "Share of time in which any kernel ran; no measure of how well the GPU is used.",
         dcgm=_field("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO", _PERCENT), default=_ALL),
    _gpu("memory_bandwidth_busy_ratio", "Share of time in which memory was read or written; not its fill level.",
         dcgm=_field("DEV_MEM_COPY_UTIL", scale=_PERCENT), default=_ALL),
    _gpu("encoder_utilization_ratio", "Utilization of the video encoder.",
         dcgm=_field("DEV_ENC_UTIL", scale=_PERCENT)),
    _gpu("decoder_utilization_ratio", "Utilization of the video decoder.",
         dcgm=_field("DEV_DEC_UTIL", scale=_PERCENT)),
    # profiling counters: GPM on Hopper and newer, DCGM's PROF fields elsewhere
    _gpu("graphics_engine_active_ratio", "Share of time in which a compute or graphics engine was active.",
         dcgm=_field("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"), default=_ALL),
    _gpu("sm_active_ratio", "Share of SM cycles with a warp resident, over all SMs.",
         dcgm=_field("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"), default=_ALL),
    _gpu("sm_occupancy_ratio", "Resident warps as a share of the maximum, over all SMs.",
         dcgm=_field("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO")),
    _gpu("tensor_active_ratio", "Share of cycles in which any tensor core pipe was active.",
         dcgm=_field("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"), default=_ALL),
    _gpu("tensor_hmma_active_ratio", "Share of cycles in which the tensor core pipe for 16-bit floats was active.",
         dcgm=_field("PROF_PIPE_TENSOR_HMMA_ACTIVE", "PROF_HMMA_UTIL_RATIO")),
    _gpu("tensor_imma_active_ratio", "Share of cycles in which the tensor core pipe for integers was active.",
         dcgm=_field("PROF_PIPE_TENSOR_IMMA_ACTIVE", "PROF_IMMA_UTIL_RATIO")),
    _gpu("tensor_dfma_active_ratio", "Share of cycles in which the tensor core pipe for doubles was active.",
         dcgm=_field("PROF_PIPE_TENSOR_DFMA_ACTIVE", "PROF_DFMA_UTIL_RATIO")),
    _gpu("dram_active_ratio", "Share of cycles in which DRAM transferred data.",
         dcgm=_field("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"), default=_ALL),
    _gpu("fp64_active_ratio", "Share of cycles in which the FP64 pipe (no tensor core) was active.",
         dcgm=_field("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO"), default=_ALL),
    _gpu("fp32_active_ratio", "Share of cycles in which the FP32 pipe was active.",
         dcgm=_field("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO"), default=_ALL),
    _gpu("fp16_active_ratio", "Share of cycles in which the FP16 pipe (no tensor core) was active.",
         dcgm=_field("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO"), default=_ALL),
    _gpu("integer_active_ratio", "Share of cycles in which the integer pipe was active.",
         dcgm=_field("PROF_PIPE_INT_ACTIVE", "PROF_INT_UTIL_RATIO"), default=_ALL),
    # PCIe; transmit is from the GPU to the host
    _gpu("pcie_transmit_bytes_per_second", "PCIe traffic from the GPU, headers included.",
         dcgm=_field("PROF_PCIE_TX_BYTES"), default=_ALL),
    _gpu("pcie_receive_bytes_per_second", "PCIe traffic to the GPU, headers included.",
         dcgm=_field("PROF_PCIE_RX_BYTES"), default=_ALL),
    _gpu("pcie_transmit_bytes_total", "PCIe traffic from the GPU since the driver was loaded.",
         dcgm=_field("PROF_PCIE_TX_BYTES_TOTAL")),
    _gpu("pcie_receive_bytes_total", "PCIe traffic to the GPU since the driver was loaded.",
         dcgm=_field("PROF_PCIE_RX_BYTES_TOTAL")),
    _gpu("pcie_replays_total", "PCIe replays.", dcgm=_field("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"),
         default=_ALL),
    _gpu("pcie_link_generation", "Current PCIe generation; low while the GPU is idle.",
         dcgm=_field("DEV_PCIE_LINK_GEN")),
    _gpu("pcie_link_width", "Current number of PCIe lanes.", dcgm=_field("DEV_PCIE_LINK_WIDTH")),
    _gpu("pcie_link_generation_max", "Highest PCIe generation that both GPU and host support.",
         dcgm=_field("DEV_PCIE_MAX_LINK_GEN")),
    _gpu("pcie_link_width_max", "Largest number of PCIe lanes that both GPU and host support.",
         dcgm=_field("DEV_PCIE_MAX_LINK_WIDTH")),
    # NVLink
    _gpu("nvlink_transmit_bytes_per_second", "Traffic sent over all NVLinks, data and protocol.",
         dcgm=_field("PROF_NVLINK_TX_BYTES"), default=_ALL),
    _gpu("nvlink_receive_bytes_per_second", "Traffic received over all NVLinks, data and protocol.",
         dcgm=_field("PROF_NVLINK_RX_BYTES"), default=_ALL),
    _gpu("nvlink_data_bytes_per_second", "Data in both directions over all NVLinks, as DCGM calculates it.",
           # a rate, though dcgm-exporter types it a counter; KiB/s divided by 1000 (DcgmCacheManager.cpp:14476)
           dcgm=_field("DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_NVLINK_THROUGHPUT_TOTAL", 1024e3), default=_ALL),
    _gpu("nvlink_transmit_bytes_total", "Data sent over all NVLinks since the driver was loaded.",
         dcgm=_field("DEV_NVLINK_COUNT_TX_BYTES", "DEV_NVLINK_TX_BYTES_TOTAL")),
    _gpu("nvlink_receive_bytes_total", "Data received over all NVLinks since the driver was loaded.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_BYTES", "DEV_NVLINK_RX_BYTES_TOTAL")),
    _gpu("nvlink_links", "NVLinks in this state.", "state", default=_NONZERO),
    _gpu("nvlink_up", "1: the NVLink is up.", "link"),
    _gpu("nvlink_crc_flit_errors_total", "CRC errors of flow control units, up to NVLink 4.",
         dcgm=_field("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL"), default=_ALL),
    _gpu("nvlink_crc_data_errors_total", "CRC errors of data, up to NVLink 4.",
         dcgm=_field("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_DATA_ERROR_TOTAL")),
    _gpu("nvlink_replay_errors_total", "NVLink replays.",
         dcgm=_field("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_REPLAY_ERROR_TOTAL"), default=_ALL),
    _gpu("nvlink_recovery_errors_total", "NVLink recoveries.",
         dcgm=_field("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_RECOVERY_ERROR_TOTAL")),
    _gpu("nvlink_crc_errors_total", "CRC errors of the NVLinks' data layer, up to NVLink 4.",
         dcgm=_field("DEV_NVLINK_ERROR_DL_CRC", "DEV_NVLINK_CRC_ERROR_TOTAL")),
    _gpu("nvlink_link_errors_total", "Errors of one NVLink by kind; by NVML only of links that have had any.",
         "link", "kind"),
    _gpu("p2p_status", "NVLink peer-to-peer status to a peer. 0: available, else why not; label status.",
         "peer", "status"),
    # from NVLink 5 on
    _gpu("nvlink_effective_bit_error_ratio", "NVLink bit error ratio after correction.",
         dcgm=_field("DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", "DEV_NVLINK_EFFECTIVE_BER_RATIO")),
    _gpu("nvlink_symbol_error_ratio", "NVLink symbol error ratio.",
         dcgm=_field("DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", "DEV_NVLINK_SYMBOL_BER_RATIO")),
    _gpu("nvlink_receive_errors_total", "NVLink packets received with errors.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_ERRORS", "DEV_NVLINK_RX_ERROR_TOTAL")),
    _gpu("nvlink_integrity_errors_total", "Events in which the errors of an NVLink exceeded its threshold.",
         dcgm=_field("DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "DEV_NVLINK_INTEGRITY_ERROR_TOTAL")),
    _gpu("nvlink_recoveries_total", "Events in which an NVLink went into recovery.",
         dcgm=_field("DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", "DEV_NVLINK_RECOVERY_EVENT_TOTAL")),
    _gpu("nvlink_recoveries_failed_total", "NVLink recoveries that failed and took the link down.",
         dcgm=_field("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "DEV_NVLINK_RECOVERY_FAILED_TOTAL")),
    _gpu("nvlink_malformed_packets_total", "NVLink packets received that are malformed.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "DEV_NVLINK_RX_PACKET_MALFORMED_TOTAL")),
    _gpu("nvlink_dropped_packets_total", "NVLink packets received and dropped because a buffer was full.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", "DEV_NVLINK_RX_PACKET_DROPPED_TOTAL")),
    _gpu("nvlink_remote_errors_total", "NVLink packets received that the sender had marked as wrong.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_REMOTE_ERRORS", "DEV_NVLINK_RX_REMOTE_ERROR_TOTAL")),
    _gpu("nvlink_general_errors_total", "NVLink packets received with a wrong header.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_GENERAL_ERRORS", "DEV_NVLINK_RX_GENERAL_ERROR_TOTAL")),
    _gpu("nvlink_effective_errors_total", "Errors in NVLink packets that correction left.",
         dcgm=_field("DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", "DEV_NVLINK_EFFECTIVE_ERROR_TOTAL")),
    _gpu("nvlink_symbol_errors_total", "Errors in symbols received over NVLink.",
         dcgm=_field("DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL")),
    _gpu("fabric_state", "1: the NVLink fabric registration is in this state.", "state"),
    _gpu("fabric_health", "1: this aspect of the NVLink fabric is healthy. 0: it is not.", "aspect"),
    # memory errors
    _gpu("ecc_enabled", "1: ECC is on.", dcgm=_field("DEV_ECC_CURRENT", "DEV_ECC_MODE")),
    _gpu("ecc_corrected_errors_total", "Corrected ECC errors since the driver was loaded.",
         dcgm=_field("DEV_ECC_SBE_VOL_TOTAL"), default=_ALL),
    _gpu("ecc_uncorrected_errors_total", "Uncorrected ECC errors since the driver was loaded.",
         dcgm=_field("DEV_ECC_DBE_VOL_TOTAL"), default=_ALL),
    _gpu("ecc_lifetime_corrected_errors_total", "Corrected ECC errors in the GPU's lifetime.",
         dcgm=_field("DEV_ECC_SBE_AGG_TOTAL")),
    _gpu("ecc_lifetime_uncorrected_errors_total", "Uncorrected ECC errors in the GPU's lifetime.",
         dcgm=_field("DEV_ECC_DBE_AGG_TOTAL")),
    _gpu("sram_corrected_errors_total", "Corrected ECC errors of the memory on the die since the driver was loaded.",
         dcgm=_field("DEV_ECC_SBE_VOL_SRM")),
    _gpu("sram_uncorrected_errors_total", "Uncorrected errors of the memory on the die since the driver was loaded.",
         dcgm=_field("DEV_ECC_DBE_VOL_SRM")),
    _gpu("sram_lifetime_uncorrected_errors_total", "Uncorrected errors of the memory on the die in the GPU's lifetime.",
         dcgm=_field("DEV_ECC_DBE_AGG_SRM")),
    _gpu("sram_threshold_exceeded", "1: the memory on the die had more errors than NVIDIA allows; replace the GPU.",
         dcgm=_field("DEV_THRESHOLD_SRM", "DEV_SRAM_EXCEEDED")),
    _gpu("remapped_rows_corrected_total", "Memory rows remapped after corrected errors.",
         dcgm=_field("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL")),
    _gpu("remapped_rows_uncorrected_total", "Memory rows remapped after uncorrected errors.",
         dcgm=_field("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL")),
    _gpu("row_remap_pending", "1: a row will be remapped at the next reset.", dcgm=_field("DEV_ROW_REMAP_PENDING")),
    _gpu("row_remap_failed", "1: a row could not be remapped; replace the GPU.",
         dcgm=_field("DEV_ROW_REMAP_FAILURE", "DEV_ROW_REMAP_FAILED")),
    _gpu("row_remap_banks", "Memory banks by their remaining spare rows.", "availability"),
    _gpu("retired_pages_corrected_total", "Pages retired after repeated single bit errors, before Ampere.",
         dcgm=_field("DEV_RETIRED_SBE", "DEV_PAGE_RETIRED_SBE_TOTAL")),
    _gpu("retired_pages_uncorrected_total", "Pages retired after double bit errors, before Ampere.",
         dcgm=_field("DEV_RETIRED_DBE", "DEV_PAGE_RETIRED_DBE_TOTAL")),
    _gpu("retired_pages_pending", "1: pages will be retired at the next reboot.",
         dcgm=_field("DEV_RETIRED_PENDING", "DEV_PAGE_RETIRED_PENDING")),
    # events and what to do
    _gpu("xid_errors_total", "XID errors since the agent started.", "xid", default=_ALL),
    _gpu("xid_last_timestamp_seconds", "Time of the latest XID of this number, since the epoch.", "xid", default=_ALL),
    _gpu("xid_last", "Number of the latest XID, kept for ever, as DCGM shows it; use xid_errors_total to count.",
         dcgm=_field("DEV_XID_ERRORS", "DEV_XID_ERROR")),
    _gpu("xid_recent", "XIDs of this number within the window, as DCGM counts them.", "xid", "window_seconds"),
    _gpu("throttle_recent", "Samples with this throttle reason within the window, as DCGM counts them.",
         "reason", "window_seconds"),
    _gpu("dcgm_health_status", "DCGM's own health status. 0: pass. 10: warning. 20: failure.", "watch", "error"),
    _gpu("recovery_action", "1: the driver requests this action to recover the GPU.", "action"),
    # who uses it
    _gpu("processes", "Processes with a context on the GPU.", "kind", default=_NONZERO),
    _gpu("process_memory_bytes", "GPU memory of a process.", "pid", "kind"),
    _gpu("process_sm_utilization_ratio", "Share of time in which kernels of a process ran.", "pid"),
    _gpu("workload_info", "Pod or job that has the GPU, as labels; always 1.", *_WORKLOAD, default=_ALL),
    _gpu("workload_utilization_ratio", "A pod's share of the utilization, on GPUs shared by pods.", *_WORKLOAD),
    _gpu("workload_memory_bytes", "GPU memory of a pod, on GPUs shared by pods.", *_WORKLOAD),
)
# fmt: on

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in GPU_METRICS}
BY_DCGM_NAME: dict[str, Metric] = {
    name: metric for metric in GPU_METRICS if metric.dcgm for name in (metric.dcgm.name, metric.dcgm.new_name)
}
"""By the old and the new name of each DCGM field."""

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
"""Profiling counters (NVML's GPM, DCGM's PROF fields), which all become unavailable together."""

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
"""Bits of nvmlClocksEventReasons, also in DCGM, and the label `reason` of the metric throttle_reason.

Throttling by the software power cap is normal under load; hardware reasons are not.
"""


SWITCH = "stepscope_nvswitch_"
_FIELD = "DCGM_FI_DEV_NVSWITCH_"
_switch = MetricGroup(SWITCH).metric

# fmt: off
_LINK_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    ("replay", "LINK_REPLAY_ERRORS", "LINK_REPLAY_ERROR_TOTAL", "Replays on a link of the switch."),
    ("recovery", "LINK_RECOVERY_ERRORS", "LINK_RECOVERY_ERROR_TOTAL", "Recoveries of a link of the switch."),
    ("flit", "LINK_FLIT_ERRORS", "LINK_FLIT_ERROR_TOTAL", "Errors of flow control units on a link of the switch."),
    ("crc", "LINK_CRC_ERRORS", "LINK_CRC_ERROR_TOTAL", "CRC errors on a link of the switch."),
    ("ecc", "LINK_ECC_ERRORS", "LINK_ECC_ERROR_TOTAL", "Errors on a link of the switch that ECC corrected."),
)
FABRIC_METRICS: tuple[Metric, ...] = (
    _switch("temperature_celsius", "Temperature of the switch.", "switch",
            dcgm=DcgmField(_FIELD + "TEMPERATURE_CURRENT", _FIELD + "TEMP_CELSIUS")),
    _switch("sxid_fatal_last", "Number of the latest fatal SXid, kept for ever; 0: none.", "switch",
            dcgm=DcgmField(_FIELD + "FATAL_ERRORS", "DCGM_FI_DEV_SXID_FATAL_ERROR")),
    _switch("sxid_nonfatal_last", "Number of the latest SXid that is not fatal; 0: none.", "switch",
            dcgm=DcgmField(_FIELD + "NON_FATAL_ERRORS", "DCGM_FI_DEV_SXID_NON_FATAL_ERROR")),
    _switch("sxid_errors_total", "SXid errors since the agent started.", "pci_bus_id", "sxid", "severity"),
    _switch("reset_required", "1: the switch must be reset.", "switch",
            dcgm=DcgmField(_FIELD + "RESET_REQUIRED", _FIELD + "RESET_REQUIRED")),
    _switch("link_status", "State of a link of the switch. 2: active. 1: safe. 0: off. 3: error.", "link", "switch",
            dcgm=DcgmField(_FIELD + "LINK_STATUS", _FIELD + "LINK_STATUS")),
    *(_switch(f"link_{kind}_errors_total", text, "link", "switch", dcgm=DcgmField(_FIELD + old, _FIELD + new))
      for kind, old, new, text in _LINK_ERRORS),
)
# fmt: on
