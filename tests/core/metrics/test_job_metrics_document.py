"""Does the document list every metric of jobs and every state?"""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.jobs import UseState
from stepscope.core.metrics import Metric
from stepscope.core.metrics.agent import JOB_METRICS

_DOCUMENT = (Path(stepscope.__file__).parents[1] / "docs" / "guides" / "jobs.md").read_text()


@pytest.mark.parametrize("metric", JOB_METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_its_line(metric: Metric) -> None:
    assert f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.help} |" in _DOCUMENT


@pytest.mark.parametrize("state", UseState)
def test_each_state_is_named(state: UseState) -> None:
    assert f"| `{state}` |" in _DOCUMENT
