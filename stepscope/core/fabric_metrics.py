"""What is measured of the NVSwitches of a machine?

An SXid is to a switch what an XID is to a GPU; DCGM shows the last one for ever.
"""

from __future__ import annotations

from stepscope.core.metrics import Dcgm, Metric, MetricKind, Unit

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
