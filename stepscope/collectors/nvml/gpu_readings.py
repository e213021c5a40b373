"""Readings of one GPU as NVML reports them: its sentinels and impossible values become missing, with a reason."""

from __future__ import annotations

import math

from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder, scaled
from stepscope.core.metrics.gpu import BY_NAME, GPU
from stepscope.core.metrics.readings import Labels, MissingReason

_SENTINELS = frozenset({2**32 - 1, -(2**31), -(2**63)})
"""NVML_VALUE_NOT_AVAILABLE of 32 bits, and the least that a signed number can be."""
_MIN_SENTINEL = 2**63 - 32
"""That of 64 bits, and what comes out of a computation with it: nothing counts so far."""
_LOWEST_PERFORMANCE_STATE = 15
"""NVML_PSTATE_UNKNOWN is 32."""
_PERFORMANCE_STATE = GPU + "performance_state"
_METRIC_OF_SHORT_NAME = {name.removeprefix(GPU): name for name in BY_NAME}


def is_sentinel(raw: float) -> bool:
    """Whether NVML uses this number for "no value"."""
    return raw in _SENTINELS or raw >= _MIN_SENTINEL


def sentinel_reason(raw: float) -> NoValue:
    """Why a metric has no value whose raw number is a sentinel."""
    return NoValue(MissingReason.UNREADABLE, f"NVML reports {raw}: it has no value")


class GpuReadings(ReadingsBuilder):
    """Readings of one GPU or MIG instance; metrics are named without the prefix of GPU metrics."""

    def __init__(self, labels: Labels, time_ns: int) -> None:
        super().__init__(time_ns, labels, prefix=GPU)

    def add_raw(self, name: str, raw: float, scale: float = 1.0, /, **further: str | int) -> None:
        """Add a number as NVML reports it.

        Args:
            raw: unchecked.
            scale: factor to base units.
            further: labels beside the GPU's own.
        """
        metric = _METRIC_OF_SHORT_NAME.get(name) or GPU + name
        labels = self.with_labels(further) if further else self.labels
        value = scaled(raw, scale)
        is_plausible = 0.0 <= value <= 1.0 and not is_sentinel(raw)
        self.add_labelled(metric, value if is_plausible else self._checked_raw(metric, raw, value, labels), labels)

    def _checked_raw(self, metric: str, raw: float, value: float, labels: Labels) -> float | NoValue:
        if is_sentinel(raw) or not math.isfinite(value):
            return sentinel_reason(raw)
        if metric == _PERFORMANCE_STATE and value > _LOWEST_PERFORMANCE_STATE:
            return NoValue(MissingReason.UNREADABLE, f"NVML reports {raw:g}, which is not possible")
        return self.checked(metric, value, labels, source="NVML reports", raw=raw)
