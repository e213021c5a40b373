"""Names of metrics: of the agent's page, of the dashboard's, and of what training exports to other libraries."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stepscope.agent.exporter.exposition import CATALOGUE, LabelTexts, MetricFamilies, MetricSeries
from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage, dcgm_series
from stepscope.core.metrics import Metric
from stepscope.core.metrics.history import HISTORY_METRICS
from stepscope.core.metrics.readings import GPU_LABELS, Reading, labels_of
from stepscope.dashboard.api import make_api
from stepscope.store.runs import RunStore
from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.steps.exporters import MlflowExporter, OpenTelemetryExporter, WandbExporter
from stepscope.training.steps.telemetry import StepRecord
from tests.contract.samples import ANY_KEY, samples

_RECORD = StepRecord(
    1, 0, 1, phases={ANY_KEY: 1}, figures={ANY_KEY: 1.0}, anomalies=[one for one in samples(Anomaly) if one.value]
)


def metrics() -> dict[str, dict[str, str]]:
    """Where a metric is found -> its name -> its type, unit and labels."""
    return {
        "agent": {one.name: _row(one, CATALOGUE[one.name].labels) for one in _families(CATALOGUE.values())},
        "agent, of its process": _of_process(),
        "agent, labels of every GPU metric": dict.fromkeys(GPU_LABELS, "label"),
        "agent, DCGM's names": {one.name: one.kind for one in _dcgm(DcgmNames.OLD)},
        "agent, DCGM's new names": {one.name: one.kind for one in _dcgm(DcgmNames.NEW)},
        "agent, labels of DCGM's names": {
            name: "label" for one in _dcgm(DcgmNames.OLD) for labels in one.values for name, _ in labels
        },
        "read from a dcgm-exporter": _read_from_dcgm(),
        "dashboard": _dashboard(),
        "recorder of the metric history": {
            one.name: f"{one.kind} {{{', '.join(one.labels)}}}" for one in HISTORY_METRICS
        },
        "training, OpenTelemetry": _opentelemetry(),
        "training, Weights & Biases": _wandb(),
        "training, MLflow": _mlflow(),
    }


def _families(catalogue: Iterable[Metric]) -> list[MetricSeries]:
    families = MetricFamilies(LabelTexts())
    for metric in catalogue:
        families.add("test", metric.name, (), 1.0)
    return families.in_order()


def _row(series: MetricSeries, labels: Iterable[str]) -> str:
    kind = f"{series.kind} in {series.unit}" if series.unit else series.kind
    return f"{kind} {{{', '.join(sorted(labels))}}}"


def _of_process() -> dict[str, str]:
    families = MetricsPage(lambda: ()).collect()
    return {sample.name: one.type for one in families for sample in one.samples if sample.name.startswith("process_")}


def _dcgm(names: DcgmNames) -> list[MetricSeries]:
    gpu = labels_of(gpu=0, uuid="MIG-1", gpu_instance=1, compute_instance=0, mig_profile="1g.10gb")
    info = labels_of(gpu=0, uuid="GPU-1", pci_bus_id="0", minor_number=0, name="H100")
    readings = [Reading("stepscope_gpu_info", 1.0, info, 0), *(Reading(name, 1.0, gpu, 0) for name in CATALOGUE)]
    return dcgm_series(readings, names, hostname="node7")


def _read_from_dcgm() -> dict[str, str]:
    return {
        name: f"{one.name} x {one.dcgm.scale:g}"
        for one in CATALOGUE.values()
        if one.dcgm is not None
        for name in (one.dcgm.name, one.dcgm.new_name)
    }


def _dashboard() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        routes: list[Any] = list(make_api(RunStore(folder)).routes)
        page = next(route for route in routes if route.path == "/metrics").endpoint()
    text = bytes(page.body).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    labels = {
        name: re.findall(r'(\w+)="', pairs) for name, pairs in re.findall(r"^(\w+)(\{.*\})? \S+$", text, re.MULTILINE)
    }
    return {name: f"{kind} {{{', '.join(labels[name])}}}" for name, kind in types.items()}


def _opentelemetry() -> dict[str, str]:
    made: dict[str, str] = {}
    attributes: dict[str, list[str]] = {}

    def instrument(kind: str) -> Any:
        def make(name: str, unit: str = "", **_: object) -> Any:
            def take(_: object, of: dict[str, object]) -> None:
                attributes[name] = sorted(of)

            made[name] = f"{kind} in {unit}" if unit else kind
            return SimpleNamespace(record=take, add=take, set=take)

        return make

    meter = SimpleNamespace(**{f"create_{kind}": instrument(kind) for kind in ("histogram", "counter", "gauge")})
    fake: Any = SimpleNamespace(get_meter_provider=lambda: SimpleNamespace(get_meter=lambda _: meter))
    with mock.patch.dict(sys.modules, {"opentelemetry.metrics": fake}):
        exporter = OpenTelemetryExporter("run", 0)
        exporter.look()
        exporter.export([_RECORD])
    return {name: f"{kind} {{{', '.join(attributes[name])}}}" for name, kind in made.items()}


def _wandb() -> dict[str, str]:
    rows: list[dict[str, float]] = []
    axes: dict[str, str] = {}

    def define(name: str, *, step_metric: str) -> None:
        axes[name] = f"over {step_metric}"

    run = SimpleNamespace(define_metric=define, log=lambda row, **_: rows.append(row))
    fake: Any = SimpleNamespace(run=run)
    with mock.patch.dict(sys.modules, {"wandb": fake}):
        exporter = WandbExporter()
        exporter.look()
        exporter.export([_RECORD])
    return {**axes, **{name: "number" for row in rows for name in row}}


def _mlflow() -> dict[str, str]:
    names: list[str] = []
    fake: Any = SimpleNamespace(
        active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_id="1")),
        MlflowClient=lambda: SimpleNamespace(log_batch=lambda _, metrics: names.extend(metrics)),
        entities=SimpleNamespace(Metric=lambda name, *_: name),
    )
    with mock.patch.dict(sys.modules, {"mlflow": fake}):
        exporter = MlflowExporter()
        exporter.look()
        exporter.export([_RECORD])
    return dict.fromkeys(names, "number")
