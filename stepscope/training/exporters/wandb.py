"""Step metrics for Weights & Biases, in the run that the training code has begun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from stepscope.training.exporters.metrics import numbers_of
from stepscope.training.steps.telemetry import StepRecord


class WandbExporter:
    """`stepscope/...` over `stepscope/step`, beside what the training code logs.

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
            newest |= numbers_of(record)
        row = {f"stepscope/{name}": value for name, value in newest.items()}
        self._run.log({"stepscope/step": records[-1].index, **row}, commit=False)
