"""Does the document list every metric as the catalogue has it?"""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.core.metrics import Metric
from stepscope.core.metrics.gpu import GPU, GPU_METRICS
from stepscope.core.metrics.readings import MissingReason

_DOCUMENT = (Path(stepscope.__file__).parents[1] / "docs" / "explanation" / "gpu-metrics.md").read_text()


@pytest.mark.parametrize("metric", GPU_METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_its_line(metric: Metric) -> None:
    names = [] if metric.dcgm is None else [metric.dcgm.name, metric.dcgm.new_name]
    fields = " / ".join(f"`{name.removeprefix('DCGM_FI_')}`" for name in dict.fromkeys(names))
    scale = f" x {metric.dcgm.scale:g}" if metric.dcgm is not None and metric.dcgm.scale != 1 else ""
    row = [f"`{metric.name.removeprefix(GPU)}`", metric.kind, ", ".join(metric.labels), metric.help, fields + scale]
    assert f"| {' | '.join(row)} |" in _DOCUMENT


@pytest.mark.parametrize("reason", MissingReason)
def test_each_reason_is_named(reason: MissingReason) -> None:
    assert f"`{reason}`" in _DOCUMENT
