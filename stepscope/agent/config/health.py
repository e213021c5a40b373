"""From which values on does the agent say that something is wrong? Where each comes from: docs/health.md."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.config.keys import key


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds and times of health, `[health]` in the file."""

    expected_gpus: int = key(0, "How many GPUs there must be; 0: as many as there are.", least=0)
    # memory
    corrected_errors_per_second: float = key(
        1.0, "Corrected memory errors that are a warning, averaged over a minute.", least=0.0
    )
    corrected_errors_critical_per_second: float = key(1000.0, "The rate of them that is critical.", least=0.0)
    remapped_rows: int = key(512, "Memory rows replaced after errors that could not be corrected.", least=1)
    retired_pages: int = key(63, "Memory pages retired, before Ampere.", least=1)
    retired_pages_uncorrected: int = key(
        15, "Those retired after double bit errors, if more than one came this week.", least=0
    )
    # links
    pcie_replays_factor: float = key(1.0, "PCIe replays: times DCGM's limit for generation and width.", least=0.01)
    nvlink_crc_per_second: float = key(1.0, "Wrong NVLink checksums that are a warning.", least=0.0)
    nvlink_crc_critical_per_second: float = key(100.0, "The rate of them that is critical.", least=0.0)
    nvlink_errors_per_minute: float = key(1.0, "Other errors of NVLinks.", least=0.01)
    nvlink_effective_error_ratio: float = key(1e-12, "NVLink 5: wrong bits after correction.", least=0.0)
    nvlink_symbol_error_ratio: float = key(
        1.5e-237, "NVLink 5: wrong symbols; the default is its smallest, a zero.", least=0.0
    )
    # heat and power
    thermal_seconds_per_minute: float = key(0.0, "More time slowed by heat than this is a warning.", least=0.0)
    temperature_margin_celsius: float = key(0.0, "Degrees left up to the slowdown.")
    slowdown_per_minute: float = key(0.6, "Share of minutes with a slowdown by the hardware.", least=0.01)
    slowdown_minutes: int = key(10, "Over how many minutes.", least=1)
    busy_ratio: float = key(0.5, "Utilisation from which a GPU is under load.", least=0.0, most=1.0)
    # XIDs
    repeats: int = key(3, "Processes that met XID 13 or 31 on one GPU, which may be the GPU's fault then.", least=2)
    repeats_seconds: float = key(86_400.0, "Over how long they are counted.", least=1.0)
    # times
    hung_seconds: float = key(30.0, "How long a GPU, driver or link may not answer.", least=0.0)
    stalls_per_minute: float = key(
        0.3, "Share of 10 minutes in which a GPU stalled and then answered again.", least=0.01
    )
    load_seconds: float = key(60.0, "How long a PCIe link must be slow under load.", least=0.0)
    fabric_seconds: float = key(120.0, "How long a GPU may take to join the NVLink fabric.", least=0.0)
    leave_seconds: float = key(300.0, "How long no error must come for an episode to end.", least=0.0)
    xid_leave_seconds: float = key(600.0, "The same for XIDs that need no reset.", least=0.0)
    port_leave_seconds: float = key(600.0, "How long an InfiniBand port must be up again.", least=0.0)
    stale_seconds: float = key(60.0, "Age from which a value proves nothing.", least=1.0)


WARNS_BEFORE = {
    "health.corrected_errors_per_second": "health.corrected_errors_critical_per_second",
    "health.nvlink_crc_per_second": "health.nvlink_crc_critical_per_second",
}
"""Of each warning's key the one of the critical rate, which must not be less: what is critical is not passed over."""
