"""Reporter to Kubernetes against a strict stand-in: right requests, few of them, and health never waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent import sources as sources_module
from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.config.settings import KubernetesSettings
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.kubernetes import reporter as reporter_module
from stepscope.agent.kubernetes.node_api import NodeApi
from stepscope.agent.kubernetes.reporter import NodeReporter, node_reporter_of
from stepscope.agent.service import Agent
from stepscope.agent.sources import AgentSources
from stepscope.core.errors import UsageError
from stepscope.core.hardware.health import HealthReport
from stepscope.core.metrics.readings import MissingReason
from tests.agent.kubernetes.fake_node_api import NODE, UID, NodeServer, node_server
from tests.agent.kubernetes.reports import BEGIN, SECOND, event, report
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml


@pytest.fixture
def api(tmp_path: Path) -> Iterator[NodeServer]:
    with node_server(tmp_path) as server:
        yield server


class Node:
    """A reporter whose time and health a test sets."""

    def __init__(self, api: NodeServer, *, dry_run: bool = False, seconds: float = 5.0, **settings: Any) -> None:
        self.now = 0.0
        self.health: HealthReport = report()
        self.reporter = NodeReporter(
            NodeApi(api.server, NODE, is_dry_run=dry_run, seconds=seconds),
            KubernetesSettings(report="on", **settings),
            boot="boot",
            clock=lambda: self.now,
            wall_clock_ns=lambda: BEGIN + int(self.now) * SECOND,
        )
        self.reporter.report = lambda: report(*self.health.open_events, at=int(self.now))

    def run(self, seconds: float) -> None:
        """Look as often as the thread would in that time."""
        end = self.now + seconds
        while self.now < end:
            self.reporter.look()
            self.now += 5.0

    def counts(self) -> dict[tuple[str, str], float]:
        readings = self.reporter.collect().readings
        labels = [(dict(one.labels), one.value) for one in readings if one.metric.endswith("kubernetes_writes_total")]
        return {(one["kind"], one["result"]): value for one, value in labels}


def test_a_node_gets_its_condition_and_events_with_two_verbs(api: NodeServer) -> None:
    node = Node(api)
    node.run(60)
    condition = api.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "GpusHealthy")
    node.health = report(event())
    node.run(25)
    assert api.condition()["status"] == "False"  # type: ignore[index]
    (sent,) = api.events.values()  # at once
    assert sent["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": UID}
    node.run(40)
    condition = api.condition()
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "GpuLost")
    assert condition["lastTransitionTime"] == "2023-11-14T22:14:50Z"  # 90 s after the begin
    node.health = report()
    node.run(290)
    assert api.condition()["status"] == "True"  # type: ignore[index]
    node.run(20)
    assert api.condition()["status"] == "False"  # type: ignore[index]
    assert sorted(one["type"] for one in api.events.values()) == ["Normal", "Warning"]
    assert {one["type"] for one in api.conditions} == {"Ready", "StepscopeGpuUnhealthy"}
    assert node.reporter.collect().missing == ()


def test_an_unchanged_node_is_written_every_five_minutes_and_keeps_its_time(api: NodeServer) -> None:
    node = Node(api)
    node.run(3600)
    assert 12 <= node.counts()["condition", "ok"] <= 15
    condition = api.condition()
    assert condition is not None
    assert condition["lastTransitionTime"] == "2023-11-14T22:13:50Z"
    assert condition["lastHeartbeatTime"] > "2023-11-14T23:07:00Z"


def test_a_restarted_agent_takes_over_what_the_node_has(api: NodeServer) -> None:
    first = Node(api)
    first.health = report(event(since_start=True))
    first.run(60)
    before = dict(api.condition() or {})
    assert before["status"] == "True"
    second = Node(api)
    second.now = 1000.0
    second.health = report(event(since_start=True))
    second.run(60)
    after = api.condition() or {}
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    assert after["lastHeartbeatTime"] > before["lastHeartbeatTime"]
    assert len(api.events) == 1  # the same name: the server has it already


def test_a_flapping_gpu_writes_nothing_and_its_events_are_limited(api: NodeServer) -> None:
    node = Node(api)
    node.run(60)
    writes = node.counts()["condition", "ok"]
    for number in range(60):
        node.health = report(event(first=number))
        node.run(5)
        node.health = report()
        node.run(5)
    assert node.counts()["condition", "ok"] - writes <= 3  # heartbeats of ten minutes
    assert (api.condition() or {})["status"] == "False"
    assert len(api.events) <= 10 + 10 + 1
    dropped = {one.metric: one.value for one in node.reporter.collect().readings}
    assert dropped["stepscope_agent_kubernetes_events_dropped_total"] == 120 - len(api.events) - 64


def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(
    api: NodeServer, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(api, dry_run=True)
    node.health = report(event())
    node.run(60)
    assert api.condition() is None
    assert api.events == {}
    assert all("dryRun=All" in one for one in api.requests)
    assert node.counts() == {("condition", "dry_run"): 1.0, ("event", "dry_run"): 1.0}
    assert f"dry run: condition StepscopeGpuUnhealthy of node {NODE} is True: GPU 3" in caplog.text


def test_without_permission_it_says_which_verb_is_missing_and_asks_ever_less(api: NodeServer) -> None:
    api.rules = [rule for rule in api.rules if rule[1] != "nodes/status"]
    node = Node(api)
    node.health = report(event())
    node.run(3600)
    (missing,) = node.reporter.collect().missing
    assert missing.reason is MissingReason.NO_PERMISSION
    assert "it may not patch on nodes/status: HTTP 403: User" in missing.detail
    assert len(api.requests) < 25
    api.rules = [("", "nodes/status", "patch")]
    node.run(600)
    assert (api.condition() or {})["status"] == "True"
    (missing,) = node.reporter.collect().missing
    assert "it may not create on events in the namespace default" in missing.detail


def test_conflicts_and_a_busy_server_are_tried_again_when_it_asks_to(api: NodeServer) -> None:
    node = Node(api)
    node.run(30)
    api.failures = [(409, {}), (500, {}), (429, {"Retry-After": "120"})]
    node.run(300)
    assert api.failures == []
    assert (api.condition() or {})["status"] == "False"
    assert node.counts()["condition", "failed"] == 3
    times = [index for index, one in enumerate(api.requests) if one.startswith("PATCH")]
    assert len(times) == 5
    assert node.reporter.collect().missing == ()


def test_an_event_that_the_server_never_takes_does_not_hold_up_the_others(api: NodeServer) -> None:
    node = Node(api)
    node.run(60)
    api.failures = [(422, {})]
    node.health = report(event(), event("xid_79", 1))
    node.run(60)
    (sent,) = api.events.values()
    assert sent["reason"] == "Xid79"
    assert node.counts()["event", "failed"] == 1


def test_a_server_that_does_not_answer_holds_up_nothing_but_its_own_thread(api: NodeServer) -> None:
    api.hold.clear()
    node = Node(api, seconds=0.5)
    with node.reporter:
        begin = time.monotonic()
        while not node.reporter.collect().missing:
            assert time.monotonic() - begin < 20
            time.sleep(0.02)
        (missing,) = node.reporter.collect().missing
        assert missing.reason is MissingReason.TIMED_OUT
        begin = time.monotonic()
    assert time.monotonic() - begin < 2


def test_a_server_that_is_gone_or_another_is_named(api: NodeServer) -> None:
    node = Node(api)
    (api.server.account / "ca.crt").write_text("")
    node.run(5)
    (missing,) = node.reporter.collect().missing
    assert missing.reason is MissingReason.UNREACHABLE
    (api.server.account / "token").unlink()
    node.run(30)
    assert node.reporter.collect().missing[0].reason is MissingReason.UNREACHABLE


def test_a_lost_gpu_reaches_the_node(api: NodeServer, machine: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(reporter_module, "_MIN_SECONDS", 0.1)
    monkeypatch.setattr(sources_module, "_HEALTH_SECONDS", 0.1)
    for index in range(2):
        machine.add(profiles.h100(index))
    machine.write()
    settings = KubernetesSettings(report="on", settle_seconds=0.2, clear_seconds=0.2)
    reporter = NodeReporter(NodeApi(api.server, NODE), settings)
    timing = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)
    with AgentSources(timing, environment=machine.environment(), kubernetes=reporter) as sources, reporter:
        end = time.monotonic() + 60
        for status in ("False", "True"):
            while (api.condition() or {}).get("status") != status:
                assert time.monotonic() < end, api.condition()
                time.sleep(0.05)
            machine.set(1, lost=1)
            machine.write()
        (state,) = [one for one in sources.states() if one.name == "kubernetes_node"]
        assert state.reason is None
    condition = api.condition() or {}
    assert (condition["reason"], condition["message"].partition(" (")[0]) == ("GpuLost", "GPU 1")
    assert [one["reason"] for one in api.events.values() if one["type"] == "Warning"] == ["GpuLost"]


def test_it_is_off_unless_it_is_set(tmp_path: Path) -> None:
    assert node_reporter_of(KubernetesSettings(), "n", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None
    file = tmp_path / "agent.toml"
    file.write_text('[kubernetes]\nreport = "on"\n')
    with pytest.raises(UsageError, match="no service account of a pod here; apply"):
        Agent(load_configuration(file))
    for condition in ("Ready", "", "no such name"):
        with pytest.raises(UsageError, match="is not allowed"):
            node_reporter_of(KubernetesSettings(report="on", condition=condition), "n", {})
