"""Host and switch metric catalogues follow Prometheus's rules."""

from __future__ import annotations

import re

import pytest

from stepscope.core.metrics import Metric, MetricKind, Unit
from stepscope.core.metrics.gpu import FABRIC_METRICS, GPU_METRICS
from stepscope.core.metrics.host import HOST_METRICS

ROWS = (*FABRIC_METRICS, *HOST_METRICS)


@pytest.mark.parametrize("metric", ROWS, ids=lambda metric: metric.name)
def test_names_keep_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"stepscope_(nvswitch|host|process|cgroup)_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}") or metric.unit is Unit.NONE
    assert metric.help.endswith(".")
    assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in metric.labels)


def test_no_name_occurs_twice_in_any_catalogue() -> None:
    names = [metric.name for metric in (*ROWS, *GPU_METRICS)]
    assert len(set(names)) == len(names)
