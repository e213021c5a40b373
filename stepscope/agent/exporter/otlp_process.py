"""Process that pushes pages of metrics by OpenTelemetry's own library. The agent runs it with its settings as argument.

It reads pages from its input, each behind a line `{"bytes": N, "time_ns": N}`, and answers each with a line
`{"ok": true, "points": N, "error": ""}`. Headers, certificates and compression come from OpenTelemetry's variables
(OTEL_EXPORTER_OTLP_HEADERS, ...).

Names stay as on the page and have no unit, so that Prometheus' receiver adds no suffix; counters are cumulative sums,
all else gauges. Resource: `service.name` "stepscope" and `service.instance.id` the machine, which Prometheus turns into
the labels `job` and `instance`.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from typing import Any, BinaryIO

from stepscope import __version__
from stepscope.core.process import signal_at_parent_death

SERVICE_NAME = "stepscope"
_MAX_MEMORY_BYTES = 2 << 30
"""Of its address space: a collector whose answer never ends is not held in memory."""


def metrics_data(page: str, time_ns: int, host: str) -> tuple[Any, int]:
    """The page in OpenTelemetry's form, and its number of points."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from prometheus_client.parser import text_string_to_metric_families

    resource_ = Resource(
        {
            "service.name": SERVICE_NAME,
            "service.version": __version__,
            "service.instance.id": host,
            "host.name": host,
        }
    )
    metrics, num_points = [], 0
    for family in text_string_to_metric_families(page):
        by_name: dict[str, list[Any]] = {}
        for sample in family.samples:
            point = export.NumberDataPoint(dict(sample.labels), 0, time_ns, float(sample.value))
            by_name.setdefault(sample.name, []).append(point)
            num_points += 1
        for name, points in by_name.items():
            data: Any = export.Gauge(points)
            if family.type == "counter":
                data = export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
            metrics.append(export.Metric(name, family.documentation, "", data))
    scope = export.ScopeMetrics(InstrumentationScope("stepscope.agent", __version__), metrics, "")
    return export.MetricsData([export.ResourceMetrics(resource_, [scope], "")]), num_points


class _LastLog(logging.Handler):
    """Keeps the library's last message: it returns no reason of a failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


def serve(settings: dict[str, Any], pages: BinaryIO, answers: BinaryIO) -> None:
    """Push the pages of a stream until it ends."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    log = _LastLog()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(log)
    logger.propagate = False
    exporter = OTLPMetricExporter(settings["endpoint"], timeout=settings["timeout"])
    while line := pages.readline():
        header = json.loads(line)
        page = pages.read(header["bytes"]).decode()
        data, num_points = metrics_data(page, header["time_ns"], settings["host"])
        log.message = ""
        is_ok = exporter.export(data) is MetricExportResult.SUCCESS
        error = "" if is_ok else " ".join(log.message.split())[:500]
        answers.write(json.dumps({"ok": is_ok, "points": num_points, "error": error}).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Push what the input brings."""
    signal_at_parent_death(signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    serve(json.loads(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
