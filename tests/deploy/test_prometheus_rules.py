"""Alerts fire when they should, on existing metrics, by promtool."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.exporter.exposition import CATALOGUE
from stepscope.agent.health.episodes import health_hysteresis_of
from stepscope.core.hardware.xids import XIDS
from tests.deploy.conftest import DEPLOY, Run

_FOLDER = DEPLOY / "prometheus"


@pytest.fixture(scope="module")
def alerts() -> dict[str, dict[str, Any]]:
    """All rules by the alert's name."""
    document = yaml.safe_load((_FOLDER / "rules.yml").read_text())
    found = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def test_prometheus_takes_them_and_each_fires_as_its_test_says(run: Run) -> None:
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")):
        done = run("promtool", *arguments, cwd=_FOLDER)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def test_each_alert_has_a_test_with_what_fires_and_what_does_not(alerts: dict[str, dict[str, Any]]) -> None:
    tested = {}
    for test in yaml.safe_load((_FOLDER / "rules_test.yml").read_text())["tests"]:
        (expected,) = test["promql_expr_test"]
        (name,) = re.findall(r'alertname="(\w+)",alertstate="firing"}$', expected["expr"])
        assert name == test["name"]
        assert 0 < len(expected["exp_samples"]) < len(test["input_series"])
        tested[name] = expected["exp_samples"]
    assert tested.keys() == alerts.keys()


def test_they_ask_for_metrics_that_there_are_and_say_what_to_do(alerts: dict[str, dict[str, Any]]) -> None:
    for name, rule in alerts.items():
        asked = rule["expr"].replace("(gpu|host)_health_event", "gpu_health_event")
        assert set(re.findall(r"stepscope_\w+", asked)) <= CATALOGUE.keys(), name
        assert rule.get("labels", {}).get("severity", "warning") in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
    assert {"stepscope_gpu_health_event", "stepscope_host_health_event"} <= CATALOGUE.keys()


def test_every_kind_of_event_belongs_to_one_alert(alerts: dict[str, dict[str, Any]]) -> None:
    patterns = {
        name: re.compile(found[1])
        for name, rule in alerts.items()
        if (found := re.search(r'health_event",.*?code=~?"(.+?)"', rule["expr"]))
    }
    for code in [
        *health_hysteresis_of(HealthThresholds()),
        *(f"xid_{number}" for number in XIDS),
        "xid_999",
        "sxid_20034",
    ]:
        assert [name for name, pattern in patterns.items() if pattern.fullmatch(code)] != [], code
        assert sum(pattern.fullmatch(code) is not None for pattern in patterns.values()) == 1, code
