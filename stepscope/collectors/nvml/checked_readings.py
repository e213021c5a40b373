"""Readings of one GPU with each value checked: NVML sentinels and impossible values are missing, with a reason."""

from __future__ import annotations

import math

from stepscope.core.metrics import Unit
from stepscope.core.metrics.gpu import BY_NAME, GPU
from stepscope.core.metrics.readings import Collection, Finding, Labels, Missing, MissingReason, Reading

_SENTINELS = frozenset({2**32 - 1, -(2**31), -(2**63)})
"""NVML_VALUE_NOT_AVAILABLE of 32 bits, and the least that a signed number can be."""
_LEAST_SENTINEL = 2**63 - 32
"""That of 64 bits, and what comes out of a computation with it: nothing counts so far."""
_LOWEST_PERFORMANCE = 15
"""Of the states; NVML_PSTATE_UNKNOWN is 32."""
_PERFORMANCE = GPU + "performance_state"
_HIGHEST_CLAMPED = 2.0
"""Ratios over 1 happen: counters of a MIG instance are scaled by the whole GPU's (1.294 in NVIDIA/DCGM#152). What is
far over is no measurement."""
_METRIC_OF_SHORT_NAME = {name.removeprefix(GPU): name for name in BY_NAME}
_RATIOS = frozenset(name for name, metric in BY_NAME.items() if metric.unit is Unit.RATIO)
_TEMPERATURES = frozenset(name for name, metric in BY_NAME.items() if metric.unit is Unit.CELSIUS)


def is_sentinel(raw: float) -> bool:
    """Whether NVML says with it that it has no value."""
    return raw in _SENTINELS or raw >= _LEAST_SENTINEL


class GpuReadings:
    """Readings of one GPU or MIG instance, as they come."""

    def __init__(self, labels: Labels, time_ns: int) -> None:
        self.labels = labels
        self.time_ns = time_ns
        self.readings: list[Reading] = []
        self.missing: list[Missing] = []
        self.findings: list[Finding] = []

    def add(self, name: str, raw: float, scale: float = 1.0, further: Labels = ()) -> None:
        """One value.

        Args:
            name: of the metric, without the prefix of GPUs' metrics.
            raw: as NVML gives it.
            scale: what makes it a value in base units.
            further: labels beside the GPU's own.
        """
        metric = _METRIC_OF_SHORT_NAME.get(name) or GPU + name
        labels = self._with(further)
        value = raw * scale if scale >= 1.0 else raw / round(1.0 / scale)  # 71.722, not 71.72200000000001
        checked = value if 0.0 <= value <= 1.0 and not is_sentinel(raw) else self._checked(metric, raw, value, labels)
        if checked is not None:
            self.readings.append(Reading(metric, checked, labels, self.time_ns))

    def refuse(self, name: str, raw: float) -> None:
        """One metric has a sentinel for a value."""
        self.miss(name, MissingReason.UNREADABLE, _sentinel_detail(raw))

    def miss(self, name: str, reason: MissingReason, detail: str = "", further: Labels = ()) -> None:
        """One metric has no value; a name of "" is all of them."""
        self.missing.append(Missing(GPU + name if name else "", self._with(further), reason, detail))

    def note(self, code: str, message: str, further: Labels = ()) -> None:
        """One finding."""
        self.findings.append(Finding(code, message, self._with(further), self.time_ns))

    def collection(self) -> Collection:
        """All of it."""
        return Collection(tuple(self.readings), tuple(self.missing), tuple(self.findings))

    def _checked(self, metric: str, raw: float, value: float, labels: Labels) -> float | None:
        """The value, or what it is taken for; None where it is none, which is said."""
        if is_sentinel(raw) or not math.isfinite(value):
            detail = _sentinel_detail(raw)
        elif (value < 0.0 and metric not in _TEMPERATURES) or (metric == _PERFORMANCE and value > _LOWEST_PERFORMANCE):
            detail = f"NVML answers {raw:g}, which cannot be"
        elif value <= 1.0 or metric not in _RATIOS:
            return value
        elif value > _HIGHEST_CLAMPED:
            detail = f"NVML answers {raw:g}, which cannot be"
        else:
            message = f"{metric} is {value:.3f}, over 1, and is taken for 1"
            self.findings.append(Finding("clamped", message, labels, self.time_ns))
            return 1.0
        self.missing.append(Missing(metric, labels, MissingReason.UNREADABLE, detail))
        return None

    def _with(self, further: Labels) -> Labels:
        return tuple(sorted((*self.labels, *further))) if further else self.labels


def _sentinel_detail(raw: float) -> str:
    return f"NVML answers {raw}: it has no value"
