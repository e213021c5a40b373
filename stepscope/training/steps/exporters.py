"""Export of step metrics to OpenTelemetry, Weights & Biases and MLflow, from a queue on a separate thread.

The training code opens the library's run or provider; the exporters only use what is open. A library is chosen by
`profile(export=...)` or STEPSCOPE_EXPORT and is never imported here. A new exporter is a class with the methods of
`Exporter` and an entry in `chosen_exporters`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from stepscope.core.text.numbers import counted, form
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_LOOK_EVERY_NS = 1_000_000_000
_MAX_WAITING = 10_000
_CLOSES_WITHIN_SECONDS = 5.0


class StepExport:
    """Export of settled training steps, queued for a thread of its own; what finds no place in the queue is counted.

    Args:
        says_what_is_missing: whether to say once that nothing is open to export to; one rank does.
    """

    def __init__(self, exporters: Iterable[Exporter], *, says_what_is_missing: bool) -> None:
        self._exporters = list(exporters)
        self._says_what_is_missing = says_what_is_missing
        self._found: list[Exporter] = []
        self._looked_ns = 0
        self._waiting: deque[StepRecord] = deque()
        self._num_dropped = 0
        self._failed: set[str] = set()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        """Queue the steps, where there is something to export them to."""
        record = records[-1]
        if abs(record.end_ns - self._looked_ns) >= _LOOK_EVERY_NS:
            self._looked_ns = record.end_ns
            self._look()
        if not self._found:
            return
        room = max(_MAX_WAITING - len(self._waiting), 0)
        self._num_dropped += len(records[room:])
        self._waiting.extend(records[:room])
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stepscope-export", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Export what is queued, within seconds."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSES_WITHIN_SECONDS)
        num_lost = self._num_dropped + len(self._waiting)
        if num_lost:
            names = ", ".join(exporter.package for exporter in self._found)
            logger.warning(
                "%s %s not exported to %s, which is too slow",
                counted(num_lost, "step"),
                form(num_lost, "was", "were"),
                names,
            )

    def _look(self) -> None:
        for exporter in self._exporters:
            if exporter.look():
                if exporter not in self._found:
                    self._found = [*self._found, exporter]
            elif exporter not in self._found and self._says_what_is_missing:
                logger.warning("steps are exported to %s once %s is called", exporter.package, exporter.remedy)
        self._says_what_is_missing = False

    def _run(self) -> None:
        while not self._is_closing.wait(_EVERY_SECONDS):
            self._export()
        self._export()

    def _export(self) -> None:
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for exporter in self._found if records else []:
            try:
                exporter.export(records)
            except Exception as error:  # whatever a library or its server raises
                if exporter.package not in self._failed:
                    self._failed.add(exporter.package)
                    name = exporter.package
                    logger.warning("steps are not exported to %s for now: %s: %s", name, type(error).__name__, error)


VARIABLE = "STEPSCOPE_EXPORT"


def chosen_exporters(asked: str | Iterable[str] | None, run: str, rank: int) -> list[Exporter]:
    """Exporters of step metrics by name; one that is not known or not installed costs one warning, of rank 0.

    Args:
        asked: names (otel, wandb, mlflow), in one text with commas between them as well; None: see STEPSCOPE_EXPORT.
    """
    if asked is None:
        asked = os.environ.get(VARIABLE, "")
    makers: dict[str, Callable[[], Exporter]] = {
        "otel": lambda: OpenTelemetryExporter(run, rank),
        "wandb": WandbExporter,
        "mlflow": MlflowExporter,
    }
    exporters: list[Exporter] = []
    level = logging.WARNING if rank == 0 else logging.DEBUG
    for name in dict.fromkeys(asked.replace(",", " ").split() if isinstance(asked, str) else asked):
        if name not in makers:
            logger.log(level, "export knows %s, not %r", ", ".join(makers), name)
            continue
        exporter = makers[name]()
        if _is_installed(exporter.package):
            exporters.append(exporter)
        else:
            logger.log(level, "nothing is exported to %s: the package %s is not installed", name, exporter.package)
    return exporters


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # its parent is missing
        return False


class Exporter(Protocol):
    """Exporter of steps to one library, into what the training code has opened with it; it opens nothing itself.

    Attributes:
        package: the package that has to be installed.
        remedy: what opens it.
    """

    package: str
    remedy: str

    def look(self) -> bool:
        """On the training thread, in microseconds: whether something is open, which is remembered."""

    def export(self, records: Sequence[StepRecord]) -> None:
        """On a thread of its own, with at least one step, after `look` has found something once."""


def step_numbers(record: StepRecord) -> dict[str, float]:
    """Finite numbers of a step by name: times in ms, then its figures."""
    numbers = {"step_ms": record.duration_ns / 1e6, "data_wait_ms": record.data_wait_ns / 1e6}
    numbers |= {f"phase_{name}_ms": duration_ns / 1e6 for name, duration_ns in record.phases.items()}
    figures = {name: float(value) for name, value in record.figures.items() if math.isfinite(value)}
    return numbers | figures | {"num_anomalies": float(len(record.anomalies))}


class OpenTelemetryExporter:
    """Exports steps to OpenTelemetry: histogram `stepscope.step.duration` (s), counter `stepscope.anomalies`, gauges.

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
            newest |= step_numbers(record)
        for name, value in newest.items():
            if name not in {"step_ms", "num_anomalies"}:
                self._gauge(name).set(value, self._attributes)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge(f"stepscope.{name}")
        return self._gauges[name]


class WandbExporter:
    """Exports steps to Weights & Biases: `stepscope/...` over `stepscope/step`, beside what the training code logs.

    The newest figures join the run's open row, which the next `run.log` of the training code or the run's end writes. A
    row of our own would count the run's step up, and W&B drops what is logged later for a lower step.
    """

    package = "wandb"
    remedy = "wandb.init"

    def __init__(self) -> None:
        self._run: Any = None
        self._defined: Any = None

    def look(self) -> bool:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not None:
            self._run = run
        return run is not None

    def export(self, records: Sequence[StepRecord]) -> None:
        if self._defined is not self._run:
            self._run.define_metric("stepscope/*", step_metric="stepscope/step")
            self._defined = self._run
        newest: dict[str, float] = {}
        for record in records:
            newest |= step_numbers(record)
        row = {f"stepscope/{name}": value for name, value in newest.items()}
        self._run.log({"stepscope/step": records[-1].index, **row}, commit=False)


_MAX_METRICS = 1000  # of one request, by MLflow's REST interface


class MlflowExporter:
    """Exports steps to MLflow: `stepscope/...`, about a request a second, so of very short steps only some, evenly."""

    package = "mlflow"
    remedy = "mlflow.start_run"

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._client: Any = None

    def look(self) -> bool:
        mlflow: Any = sys.modules.get("mlflow")
        run = mlflow.active_run() if mlflow is not None else None  # known to the thread that has begun it alone
        if run is not None:
            self._run_id = run.info.run_id
        return run is not None

    def export(self, records: Sequence[StepRecord]) -> None:
        mlflow: Any = sys.modules["mlflow"]
        if self._client is None:
            self._client = mlflow.MlflowClient()
        metrics: list[Any] = []
        each = -(-sum(len(step_numbers(record)) for record in records) // _MAX_METRICS)
        for record in records[::each]:
            metrics += [
                mlflow.entities.Metric(f"stepscope/{name}", value, record.end_ns // 1_000_000, record.index)
                for name, value in step_numbers(record).items()
            ]
        self._client.log_batch(self._run_id, metrics=metrics[:_MAX_METRICS])
