"""How long must something be wrong, or well again, for an episode to begin or end?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.config.health import Thresholds


@dataclass(frozen=True, slots=True)
class Patience:
    """Hysteresis in time, seconds.

    Attributes:
        enter: how long it must be bad for an episode to begin.
        leave: how long it must be good for it to end.
    """

    enter: float
    leave: float


def patience_of(thresholds: Thresholds) -> dict[str, Patience]:
    """For each code that is not an XID's; these begin at once and end after `xid_leave_seconds`."""
    errors = Patience(0.0, thresholds.leave_seconds)
    answers = Patience(thresholds.hung_seconds, 60.0)
    return {
        # does it answer?
        "gpu_lost": Patience(0.0, 60.0),
        "gpu_hung": answers,
        "gpu_stalls": errors,
        "gpu_unreadable": answers,
        "recovery_action": Patience(0.0, 60.0),
        "dcgm_health": Patience(0.0, 60.0),
        "profiling_silent": Patience(0.0, 60.0),
        "busy_without_process": Patience(0.0, 60.0),
        # memory
        "ecc_uncorrected": Patience(5.0, 0.0),  # an XID that says that it was contained comes first
        "ecc_corrected_rate": errors,
        "row_remap_failed": Patience(0.0, 0.0),
        "row_remap_pending": Patience(0.0, 0.0),
        "remapped_rows": Patience(0.0, 0.0),
        "retired_pages": Patience(0.0, 0.0),
        "retired_pages_pending": Patience(0.0, 0.0),
        # PCIe
        "pcie_replays": errors,
        "pcie_downgrade": Patience(thresholds.load_seconds, 60.0),
        # NVLink
        "nvlink_crc_errors": errors,
        "nvlink_replays": errors,
        "nvlink_recoveries": errors,
        "nvlink_errors": errors,
        "nvlink_bit_errors": errors,
        "nvlink_down": Patience(thresholds.hung_seconds, 60.0),
        "fabric_state": Patience(thresholds.fabric_seconds, 60.0),
        "fabric_unhealthy": Patience(thresholds.hung_seconds, 60.0),
        # heat and power
        "thermal_violation": errors,
        "temperature_margin": Patience(10.0, 120.0),
        "hardware_slowdown": errors,
        # what an XID tells
        "xid_earlier": Patience(0.0, 0.0),
        "xid_repeats": Patience(0.0, thresholds.repeats_seconds),
        # the machine
        "driver_mismatch": Patience(0.0, 0.0),
        "driver_hung": answers,
        "driver_failed": answers,
        "driver_gone": answers,
        "gpu_count": Patience(60.0, 60.0),
        "infiniband_port_down": Patience(10.0, thresholds.port_leave_seconds),
        "infiniband_port_flaps": Patience(0.0, thresholds.port_leave_seconds),
    }
