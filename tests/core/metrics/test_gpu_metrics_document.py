"""Reference page of metrics: every metric of the agent, as the catalogue has it."""

from __future__ import annotations

import pytest

from stepscope.agent.exporter.exposition import CATALOGUE
from stepscope.core.metrics import Metric
from stepscope.core.metrics.gpu import GPU_METRICS
from stepscope.core.metrics.readings import MissingReason
from stepscope_reference import PAGES
from stepscope_reference.markdown import text
from stepscope_reference.metrics import SECTIONS

_PAGE = PAGES["metrics"]()


@pytest.mark.parametrize("metric", GPU_METRICS, ids=lambda metric: metric.name)
def test_each_metric_has_its_line(metric: Metric) -> None:
    names = [] if metric.dcgm is None else [metric.dcgm.name, metric.dcgm.new_name]
    fields = " / ".join(f"`{name}`" for name in dict.fromkeys(names))
    scale = f" x {metric.dcgm.scale:g}" if metric.dcgm is not None and metric.dcgm.scale != 1 else ""
    row = [f"`{metric.name}`", metric.kind, ", ".join(metric.labels), text(metric.help), fields + scale]
    assert f"| {' | '.join(row)} |" in _PAGE


def test_each_metric_of_the_agents_page_has_a_section() -> None:
    assert [metric for of_section in SECTIONS.values() for metric in of_section] == sorted(
        CATALOGUE.values(), key=[metric for of_section in SECTIONS.values() for metric in of_section].index
    )
    assert [name for name in CATALOGUE if f"| `{name}` |" not in _PAGE] == []


@pytest.mark.parametrize("reason", MissingReason)
def test_each_reason_is_named(reason: MissingReason) -> None:
    assert f"`{reason}`" in _PAGE
