"""Can this value be?"""

from __future__ import annotations

from stepscope.core.gpu_metrics import GPU
from stepscope.core.metrics import Metric, Unit
from stepscope.core.readings import MissingReason

STALE_SECONDS = 95.0
"""Three of dcgm-exporter's default intervals (30 s). What is older is the past."""
_HIGHEST_CLAMPED = 2.0
"""Ratios over 1 happen: counters of a MIG instance are scaled by the whole GPU's (1.294 in NVIDIA/DCGM#152). What is
far over is no measurement."""
_NO_SENSOR_AT_ZERO = frozenset({GPU + "memory_temperature_celsius"})
"""Boards without the sensor tell 0."""


def judged(metric: Metric, value: float) -> tuple[float | tuple[MissingReason, str], str]:
    """The value as it may be shown or why there is none, and what is to be told of it (empty: nothing).

    Args:
        metric: of a catalogue.
        value: in base units.
    """
    if metric.name in _NO_SENSOR_AT_ZERO and value == 0.0:
        return (MissingReason.NOT_SUPPORTED, "0 °C: the board has no such sensor"), ""
    if value < 0.0 and metric.unit is not Unit.CELSIUS:
        return (MissingReason.UNREADABLE, f"the page says {value:g}, which cannot be"), ""
    if metric.unit is Unit.RATIO and value > 1.0:
        if value > _HIGHEST_CLAMPED:
            return (MissingReason.UNREADABLE, f"the page says {value:g}, which cannot be a share"), ""
        return 1.0, f"{metric.name} is {value:.3f}, over 1, and is taken for 1"
    return value, ""
