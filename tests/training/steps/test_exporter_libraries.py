"""Step metrics reach the real libraries, in the session that training opened, without changing its own logs.

What is not installed is skipped: wandb and mlflow are too large for every development environment.
"""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.steps.exporters import (
    Exporter,
    MlflowExporter,
    OpenTelemetryExporter,
    StepExport,
    WandbExporter,
    step_numbers,
)
from stepscope.training.steps.telemetry import StepRecord


def _record(index: int, **figures: float) -> StepRecord:
    start_ns = 1_700_000_000_000_000_000 + index * 250_000_000
    return StepRecord(index, start_ns, start_ns + 250_000_000, data_wait_ns=5_000_000, figures=figures)


def _exported(exporter: Exporter, records: list[StepRecord]) -> None:
    steps = StepExport([exporter], says_what_is_missing=True)
    for record in records:
        steps.steps_settled([record])
    steps.close()


def test_numbers_are_milliseconds_and_finite_figures() -> None:
    record = _record(3, loss=2.5, grad_norm=math.inf, overflow=True)
    record.phases["checkpoint"] = 7_000_000
    record.anomalies.append(Anomaly("gradient_not_finite", "grad_norm", None, None, None))
    assert step_numbers(record) == {
        "step_ms": 250.0,
        "data_wait_ms": 5.0,
        "phase_checkpoint_ms": 7.0,
        "loss": 2.5,
        "overflow": 1.0,
        "num_anomalies": 1.0,
    }


def test_opentelemetry_gets_a_histogram_a_counter_and_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.util._once import Once

    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", None)  # it can be set once in a process
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER_SET_ONCE", Once())
    exporter = OpenTelemetryExporter("gpt", 3)
    assert not exporter.look()  # no provider is set, and none of ours appears
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    try:
        records = [_record(index, loss=2.0 - index) for index in range(4)]
        records[1].anomalies.append(Anomaly("loss_spike", "loss", 1.0, 0.5, 0.6))
        _exported(exporter, records)
        points: dict[str, tuple[str | None, Any]] = {
            metric.name: (metric.unit, next(iter(metric.data.data_points)))
            for resource in reader.get_metrics_data().resource_metrics  # type: ignore[union-attr]
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    finally:
        provider.shutdown()
    assert set(points) == {"stepscope.step.duration", "stepscope.anomalies", "stepscope.loss", "stepscope.data_wait_ms"}
    unit, duration = points["stepscope.step.duration"]
    assert (unit, duration.count, duration.sum) == ("s", 4, pytest.approx(1.0))
    assert points["stepscope.loss"][1].value == -1.0
    assert points["stepscope.anomalies"][1].value == 1
    assert dict(points["stepscope.loss"][1].attributes) == {"stepscope.run": "gpt", "stepscope.rank": 3}


def test_wandb_rows_are_those_of_the_training_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wandb = pytest.importorskip("wandb")
    exporter = WandbExporter()
    assert not exporter.look()
    run = wandb.init(project="p", dir=str(tmp_path), mode="offline", settings=wandb.Settings(silent=True))
    try:
        for step in range(3):
            assert exporter.look()
            exporter.export([_record(10 * step, loss=9.0), _record(10 * step + 1, loss=1.0 + step)])
            run.log({"accuracy": step / 10}, step=100 * step)  # steps of its own, which must not be counted up
        exporter.export([_record(77)])
    finally:
        run.finish()
    wandb.teardown()  # only then has its writer closed the file
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = [{name: value for name, value in row.items() if name[:1] != "_" or name == "_step"} for row in _rows(file)]
    assert [(row["_step"], row["accuracy"], row["stepscope/step"]) for row in rows[:3]] == [
        (0, 0.0, 11),
        (100, 0.1, 21),
        (200, 0.2, 77),
    ]
    assert [row["stepscope/loss"] for row in rows[:2]] == [2.0, 3.0]
    assert rows[0]["stepscope/step_ms"] == 250.0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """History of a W&B file: records split into blocks of 32 KiB, each piece with checksum, length and place."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, place = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if place in {1, 4}:  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }


@pytest.mark.filterwarnings("ignore")  # of its own and of what it stands on
def test_mlflow_gets_every_step_of_the_active_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the store without a database
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    exporter = MlflowExporter()
    assert not exporter.look()
    mlflow.set_experiment("e")
    with mlflow.start_run() as run:
        mlflow.log_metric("accuracy", 0.5, step=7)
        _exported(exporter, [_record(index, loss=index / 10) for index in range(30)])
        assert mlflow.active_run().info.run_id == run.info.run_id
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "stepscope/loss")
    assert [(metric.step, metric.value) for metric in history] == [(index, index / 10) for index in range(30)]
    assert history[0].timestamp == 1_700_000_000_250
    assert len(client.search_runs([run.info.experiment_id])) == 1


@pytest.mark.filterwarnings("ignore")
def test_short_steps_take_one_request_to_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    requests: list[tuple[str, list[Any]]] = []

    class Client:
        def log_batch(self, run_id: str, metrics: list[Any]) -> None:
            requests.append((run_id, metrics))

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    exporter = MlflowExporter()
    exporter._run_id = "x"
    exporter.export([_record(index, loss=1.0) for index in range(1000)])
    ((run_id, metrics),) = requests
    assert run_id == "x"
    assert 900 <= len(metrics) <= 1000
    steps = sorted({metric.step for metric in metrics})
    assert steps == list(range(0, 1000, 4))
