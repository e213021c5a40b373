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


def _rules(file: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((_FOLDER / file).read_text())["groups"] for rule in group["rules"]]


def _recorded() -> dict[str, str]:
    """Expression of each recorded metric by its name."""
    rules = [*_rules("rules.yml"), *_rules("recording_rules.yml")]
    return {rule["record"]: rule["expr"] for rule in rules if "record" in rule}


@pytest.fixture(scope="module")
def alerts() -> dict[str, dict[str, Any]]:
    """All alerts by their name."""
    found = [rule for rule in _rules("rules.yml") if "alert" in rule]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def test_prometheus_takes_them_and_each_fires_as_its_test_says(run: Run) -> None:
    tests = sorted(file.name for file in _FOLDER.glob("*_test.yml"))
    assert len(tests) == 3
    for arguments in (("check", "config", "prometheus.yml"), *(("test", "rules", test) for test in tests)):
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


def test_alerts_say_what_to_do_and_how_bad_it_is(alerts: dict[str, dict[str, Any]]) -> None:
    for rule in alerts.values():
        assert rule.get("labels", {}).get("severity", "warning") in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_they_ask_for_metrics_that_there_are(alerts: dict[str, dict[str, Any]]) -> None:
    recorded = _recorded()
    for name, asked in [*recorded.items(), *((name, rule["expr"]) for name, rule in alerts.items())]:
        asked = asked.replace("(gpu|host)_health_event", "gpu_health_event")
        used = set(re.findall(r"[a-z_]*:?stepscope\w*(?::\w+)*", asked)) - {"stepscope"}
        assert used <= CATALOGUE.keys() | recorded.keys(), name
    assert {"stepscope_gpu_health_event", "stepscope_host_health_event"} <= CATALOGUE.keys()


def test_recorded_metrics_are_named_by_level_metric_and_operation() -> None:
    levels = {"stepscope", "instance", "job_id", "run", "cluster"}
    for name, expr in _recorded().items():
        level, metric, operation = name.split(":")
        assert level in levels
        assert metric.startswith("stepscope_") or level == "stepscope"
        assert operation == "held" or operation in {"rate5m"} or f"{operation} by" in expr or operation == "count", name


def test_a_dead_agent_is_known_before_an_alert_could_end(alerts: dict[str, dict[str, Any]]) -> None:
    down = alerts["StepscopeAgentDown"]
    assert (down["labels"]["severity"], down["for"]) == ("critical", "2m")
    of_events = [rule for rule in alerts.values() if "stepscope:health_event:held" in rule["expr"]]
    assert len(of_events) > 10
    assert {rule["keep_firing_for"] for rule in of_events} == {"3m"}  # longer than a dead agent needs to be known


def test_every_kind_of_event_belongs_to_one_alert(alerts: dict[str, dict[str, Any]]) -> None:
    patterns = {
        name: re.compile(found[1])
        for name, rule in alerts.items()
        if (found := re.search(r'health_event:held\{.*?code=~?"(.+?)"', rule["expr"]))
    }
    for code in [
        *health_hysteresis_of(HealthThresholds()),
        *(f"xid_{number}" for number in XIDS),
        "xid_999",
        "sxid_20034",
    ]:
        assert [name for name, pattern in patterns.items() if pattern.fullmatch(code)] != [], code
        assert sum(pattern.fullmatch(code) is not None for pattern in patterns.values()) == 1, code
