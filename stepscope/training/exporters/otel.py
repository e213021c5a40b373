"""Step metrics for OpenTelemetry, through the meter provider that the process has set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from stepscope.training.exporters.metrics import numbers_of
from stepscope.training.steps.telemetry import StepRecord


class OpenTelemetryExporter:
    """Histogram `stepscope.step.duration` (s) and counter `stepscope.anomalies` of all steps, gauges of the newest.

    Args:
        run, rank: attributes of every point.
    """

    package = "opentelemetry.sdk"
    remedy = "opentelemetry.metrics.set_meter_provider"

    def __init__(self, run: str, rank: int) -> None:
        self._attributes = {"stepscope.run": run, "stepscope.rank": rank}
        self._meter: Any = None
        self._duration: Any = None
        self._anomalies: Any = None
        self._gauges: dict[str, Any] = {}

    def look(self) -> bool:
        metrics: Any = sys.modules.get("opentelemetry.metrics")
        if self._meter is not None or metrics is None:
            return self._meter is not None
        provider = metrics.get_meter_provider()
        if type(provider).__name__ == "_ProxyMeterProvider":  # the API's stand-in while none is set
            return False
        self._meter = meter = provider.get_meter("stepscope")
        self._duration = meter.create_histogram("stepscope.step.duration", unit="s", description="Time of a step")
        self._anomalies = meter.create_counter("stepscope.anomalies", description="Signs that training goes wrong")
        return True

    def export(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._duration.record(record.duration_ns / 1e9, self._attributes)
            for anomaly in record.anomalies:
                self._anomalies.add(1, self._attributes | {"kind": anomaly.kind})
        newest: dict[str, float] = {}
        for record in records:
            newest |= numbers_of(record)
        for name, value in newest.items():
            if name not in {"step_ms", "num_anomalies"}:
                self._gauge(name).set(value, self._attributes)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge(f"stepscope.{name}")
        return self._gauges[name]
