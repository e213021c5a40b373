"""Documentation of jobs: every metric is in the reference, every state in the guide."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.jobs import UseState
from stepscope.core.metrics import Metric
from stepscope.core.metrics.agent import JOB_METRICS
from stepscope_reference import PAGES
from stepscope_reference.markdown import text

_DOCUMENT = (Path(stepscope.__file__).parents[1] / "docs" / "guides" / "jobs.md").read_text()


@pytest.mark.parametrize("metric", JOB_METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_its_line(metric: Metric) -> None:
    row = f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {text(metric.help)} |"
    assert row in PAGES["metrics"]()


@pytest.mark.parametrize("state", UseState)
def test_each_state_is_named(state: UseState) -> None:
    assert f"| `{state}` |" in _DOCUMENT
