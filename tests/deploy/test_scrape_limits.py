"""Limits in the shipped scrape configurations: the same everywhere, and above what an agent can give."""

from __future__ import annotations

import re
from typing import Any

import yaml

from stepscope.agent.exporter.exposition import CATALOGUE
from stepscope.agent.training_link.tenancy import MAX_SERIES
from tests.deploy.conftest import DEPLOY

_MAX_JOBS, _SERIES_OF_JOB = 512, 12
_SERIES_OF_16_GPUS = 2700
_TARGET_LABELS = 10
"""job, instance and those that a cluster adds."""


def _limits() -> dict[str, int]:
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    return {name: value for name, value in scrape.items() if name.endswith("_limit")}


def test_no_agent_reaches_them() -> None:
    limits = _limits()
    assert limits["sample_limit"] > MAX_SERIES + _MAX_JOBS * _SERIES_OF_JOB + _SERIES_OF_16_GPUS
    assert limits["label_limit"] > max(len(metric.labels) for metric in CATALOGUE.values()) + 5 + _TARGET_LABELS
    assert limits["label_value_length_limit"] >= 4 * 200 + len("4294967295:")  # a run's name in UTF-8
    assert limits["label_name_length_limit"] > max(len(name) for one in CATALOGUE.values() for name in one.labels)


def test_all_configurations_have_the_same() -> None:
    spec: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes/service-monitor.yaml").read_text())["spec"]
    assert {name: spec[_camel(name)] for name in _limits()} == _limits()
    guide = (DEPLOY.parent / "docs/guides/agent.md").read_text()
    assert {name: int(value) for name, value in re.findall(r"^ +(\w+_limit): (\d+)$", guide, re.MULTILINE)} == _limits()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
