"""Step metrics for MLflow, in the run that is active on the training thread."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from stepscope.training.exporters.metrics import numbers_of
from stepscope.training.steps.telemetry import StepRecord

_MOST_METRICS = 1000  # of one request, by MLflow's REST interface


class MlflowExporter:
    """`stepscope/...` by step; about a request a second, so of very short steps only some, evenly spread."""

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
        each = -(-sum(len(numbers_of(record)) for record in records) // _MOST_METRICS)
        for record in records[::each]:
            metrics += [
                mlflow.entities.Metric(f"stepscope/{name}", value, record.end_ns // 1_000_000, record.index)
                for name, value in numbers_of(record).items()
            ]
        self._client.log_batch(self._run_id, metrics=metrics[:_MOST_METRICS])
