"""Readings builder: values, missing metrics with their reasons and findings of one source, with plausibility checks."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from stepscope.core.metrics import MetricKind, Unit
from stepscope.core.metrics.gpu import BY_NAME, FABRIC_METRICS
from stepscope.core.metrics.host import CPU_METRICS_OF_DCGM
from stepscope.core.metrics.readings import (
    Collection,
    Finding,
    Labels,
    Missing,
    MissingReason,
    ReadingColumns,
    ReadingNames,
    Readings,
    readings_of,
)

_METRICS = {metric.name: metric for metric in (*BY_NAME.values(), *FABRIC_METRICS, *CPU_METRICS_OF_DCGM)}
_ABSOLUTE_ZERO_CELSIUS, _HOTTEST_CELSIUS = -273.15, 2.0**31
_FIRST_WRAPPED, _END_WRAPPED = 2**32 - 2**16, 2**32 - 1
"""Small negative numbers that were read as unsigned ones of 32 bits; -1 itself is NVML's "no value"."""
_MAX_CLAMPED = 2.0
"""Ratios over 1 happen: counters of a MIG instance are scaled by the whole GPU's (1.294 in NVIDIA/DCGM#152). What is
far over is not a measurement."""


class NoValue(NamedTuple):
    """Why a collector has no value.

    Attributes:
        detail: one line for people, with the file or the driver's own words; empty where the reason says it all.
    """

    reason: MissingReason
    detail: str = ""

    def of_all(self) -> Collection:
        """A collection without any value, for this reason."""
        return Collection(missing=(Missing("", (), self.reason, self.detail),))


class ReadingsBuilder:
    """Readings, missing metrics and findings of a collector, added one by one.

    Attributes:
        time_ns: time of the readings, ns since the epoch.
    """

    def __init__(self, time_ns: int, labels: Labels = (), *, prefix: str = "") -> None:
        """`prefix` is put before the names of metrics that `add` and `miss` are given."""
        self.time_ns = time_ns
        self.labels = labels
        self.missing: list[Missing] = []
        self.findings: list[Finding] = []
        self._prefix = prefix
        self._names: list[tuple[str, Labels]] = []
        self._values: list[float] = []
        self._times: dict[int, int] = {}

    def add(self, name: str, value: float | NoValue, /, **further: str | int) -> None:
        """Add a value in base units, or why there is none; a name of "" stands for all metrics.

        Args:
            further: labels beside those of all.
        """
        labels = self.with_labels(further) if further else self.labels
        self.add_labelled(self._prefix + name if name else "", value, labels)

    def add_labelled(self, metric: str, value: float | NoValue, labels: Labels, time_ns: int | None = None) -> None:
        """Add a value of a metric by its full name, with exactly these labels."""
        if isinstance(value, NoValue):
            self.missing.append(Missing(metric, labels, value.reason, value.detail))
        else:
            if time_ns is not None and time_ns != self.time_ns:
                self._times[len(self._values)] = time_ns
            self._names.append((metric, labels))
            self._values.append(value)

    def miss(self, names: Iterable[str], why: NoValue, /, **further: str | int) -> None:
        """Several metrics have no value for one reason."""
        for name in names:
            self.add(name, why, **further)

    def note(self, code: str, message: str, /, **further: str | int) -> None:
        self.findings.append(Finding(code, message, self.with_labels(further), self.time_ns))

    def checked(self, metric: str, value: float, labels: Labels, *, source: str, raw: float) -> float | NoValue:
        """The value if its unit allows it; a ratio slightly over 1 becomes 1, with a finding.

        A temperature below zero that was read as unsigned is what it was.

        Args:
            source: "NVML reports", "the page says"; followed by the raw number where that is not possible.
        """
        known = _METRICS.get(metric)
        unit = known.unit if known is not None else None
        is_wrapped = _FIRST_WRAPPED <= raw < _END_WRAPPED
        if is_wrapped and unit is Unit.CELSIUS:
            value, is_wrapped = raw - 2.0**32, False
        is_wrapped &= known is not None and known.kind is MetricKind.GAUGE and unit is not Unit.BYTES
        least, most = (_ABSOLUTE_ZERO_CELSIUS, _HOTTEST_CELSIUS) if unit is Unit.CELSIUS else (0.0, inf)
        if is_wrapped or not least <= value <= most or (value > _MAX_CLAMPED and unit is Unit.RATIO):
            return NoValue(MissingReason.UNREADABLE, f"{source} {raw:g}, which is not possible")
        if value <= 1.0 or unit is not Unit.RATIO:
            return value
        message = f"{metric} is {value:.3f}, over 1, and is clamped to 1"
        self.findings.append(Finding("clamped", message, labels, self.time_ns))
        return 1.0

    def collection(self) -> Collection:
        if self._times:
            times = [self._times.get(place, self.time_ns) for place in range(len(self._values))]
            readings = readings_of(self._names, self._values, times)
        else:
            readings = Readings((ReadingColumns(ReadingNames(self._names), self._values, self.time_ns),))
        return Collection(readings, tuple(self.missing), tuple(self.findings))

    def with_labels(self, further: dict[str, str | int]) -> Labels:
        return tuple(sorted((*self.labels, *[(name, str(value)) for name, value in further.items()])))


def scaled(value: float, scale: float) -> float:
    """A collector's value in base units: divided where the scale is below 1, for 71.722, not 71.72200000000001."""
    return value * scale if scale >= 1.0 else value / round(1.0 / scale)
