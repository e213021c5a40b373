"""Node document: known and unknown values of each GPU with the reason, also while a source hangs."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from stepscope.agent.polling import ScheduledSource, SourceState
from stepscope.agent.web.endpoints import api_routes, node_of
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.core.documents.jobs import (
    Assignment,
    Counters,
    FleetClass,
    FleetReport,
    Job,
    JobKind,
    JobSource,
    Share,
    TimeShares,
)
from stepscope.core.documents.node import NODE_SCHEMA, TrainingRank, node_document
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.hardware.health import Action, Health, HealthEvent, HealthReport, HealthState, Severity
from stepscope.core.metrics.readings import (
    GPU,
    Collection,
    Finding,
    Labels,
    Missing,
    MissingReason,
    Reading,
    labels_of,
    with_labels,
)
from stepscope.core.protocol.messages import Heartbeat, Hello
from stepscope.core.vocabulary import Cause
from stepscope.workflow.nodes.answers import NodeAnswer, read_node
from stepscope.workflow.nodes.status import status_of
from tests.workflow.nodes import made_nodes

_SECOND = 10**9
_NOW = 1_000 * _SECOND
_GPU = labels_of(gpu=1, uuid="GPU-1")
_OTHER = labels_of(gpu=0, uuid="GPU-0")
_INSTANCE = labels_of(gpu=1, uuid="MIG-1", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")


def _reading(metric: str, value: float, labels: Labels = _GPU, age: float = 1.0, **further: str) -> Reading:
    return Reading(GPU + metric, value, with_labels(labels, **further), int(_NOW - age * _SECOND))


def _state(*readings: Reading, name: str = "nvml", age: float = 0.5, **others: Any) -> SourceState:
    missing, findings = others.pop("missing", ()), others.pop("findings", ())
    when, collection = int(_NOW - age * _SECOND), Collection(readings, missing, findings)
    return SourceState(name, collection, when, 0.1, age_seconds=age, **others)


def test_values_labels_and_gaps_of_each_device() -> None:
    nvml = _state(
        _reading("up", 1.0, age=0.0, reason=""),
        _reading("info", 1.0, name="NVIDIA H100", driver="580"),
        _reading("power_watts", 300.0),
        _reading("throttle_reason", 0.0, reason="idle"),
        _reading("throttle_reason", 1.0, reason="software_power_cap"),
        _reading("up", 0.0, _OTHER, age=0.0, reason="timed_out"),
        _reading("memory_used_bytes", 5.0, _INSTANCE, age=9.0),
        missing=(
            Missing(GPU + "tensor_active_ratio", _GPU, MissingReason.NOT_SUPPORTED),
            Missing(GPU + "power_watts", _GPU, MissingReason.NOT_YET),
            Missing("", (), MissingReason.NOT_YET),
        ),
        findings=(Finding("busy_without_process", "a ghost", _GPU, _NOW),),
    )
    dcgm = _state(_reading("power_watts", 299.0), _reading("sm_active_ratio", 0.5), name="dcgm_exporter")
    node = node_of((nvml, dcgm), _NOW, host="n1")
    other, gpu, instance = node.devices
    assert gpu.device == Device("GPU-1", "1")
    assert gpu.info == {"name": "NVIDIA H100", "driver": "580"}
    assert (gpu.is_up, gpu.reason, gpu.age_seconds) == (True, "", 1.0)
    assert gpu.values == {"power_watts": 300.0, "sm_active_ratio": 0.5}  # of two sources the first counts
    assert gpu.by_label == {"throttle_reason": {"idle": 0.0, "software_power_cap": 1.0}}
    assert gpu.marked("throttle_reason") == "software_power_cap"
    assert gpu.missing == {"tensor_active_ratio": "not_supported"}
    assert (other.is_up, other.reason, other.age_seconds, other.values) == (False, "timed_out", None, {})
    assert (instance.device.name, instance.values, instance.age_seconds) == ("1/7/0", {"memory_used_bytes": 5.0}, 9.0)
    assert [(one.source, one.code, one.message) for one in node.findings] == [
        ("nvml", "busy_without_process", "a ghost")
    ]


def test_a_gpu_that_hung_before_it_told_its_uuid_is_there() -> None:
    labels = labels_of(gpu=1)
    hangs = Health(HealthState.FAILED, "hangs")
    health = HealthReport(5, Health(HealthState.HEALTHY, ""), {Device(index="1"): hangs}, (), ())
    up = _reading("up", 0.0, labels, reason="timed_out")
    first, second = node_of((_state(_reading("power_watts", 1.0, _OTHER), up),), _NOW, host="n1", health=health).devices
    assert (first.device.key, second.device.key, second.device.name) == ("GPU-0", "gpu 1", "1")
    assert (second.is_up, second.reason, second.health) == (False, "timed_out", hangs)


def test_a_gpu_that_left_a_page_is_neither_up_nor_down_and_no_finding() -> None:
    """NVIDIA/dcgm-exporter#569, #611."""
    missing = (Missing("", _OTHER, MissingReason.NOT_ON_PAGE, "not on the page"),)
    up = _reading("up", 0.0, _OTHER, reason="not_on_page")
    state = _state(_reading("up", 1.0), up, name="dcgm_exporter", missing=missing)
    healthy = Health(HealthState.HEALTHY, "")
    unknown = Health(HealthState.UNKNOWN, "not on the page")
    report = HealthReport(_NOW, healthy, {device_in(dict(_GPU)): healthy, device_in(dict(_OTHER)): unknown}, (), ())
    node = node_of([state], _NOW, host="n1", health=report)
    assert [(one.is_up, one.reason) for one in node.devices] == [(None, "not_on_page"), (True, "")]
    assert status_of([NodeAnswer("http://n1", node)]).findings == ()


def test_an_instance_is_one_device_whichever_source_names_it_how() -> None:
    job = Job(JobKind.SLURM, "42")
    nvml = _state(_reading("up", 1.0), _reading("memory_used_bytes", 5.0, _INSTANCE))
    of_page = labels_of(gpu=1, uuid="GPU-1", mig_profile="1g.10gb")
    page = _state(
        _reading("up", 1.0),
        _reading("memory_used_bytes", 6.0, of_page, gpu_instance="7"),
        _reading("sm_active_ratio", 0.5, of_page, gpu_instance="7"),
        _reading("sm_active_ratio", 0.9, of_page, gpu_instance="8"),
        name="dcgm_exporter",
    )
    jobs = _state(_reading("use_state", 1.0, _INSTANCE, state="busy"), name="jobs")
    assignments = [Assignment(job, device_in(dict(_INSTANCE)))]
    gpu, seventh, eighth = node_of((nvml, page, jobs), _NOW, host="n1", assignments=assignments).devices
    assert gpu.values == {}
    assert gpu.by_label == {}
    assert seventh.device.labels() == _INSTANCE
    assert seventh.values == {"memory_used_bytes": 5.0, "sm_active_ratio": 0.5}
    assert seventh.by_label == {"use_state": {"busy": 1.0}}
    assert [one.job.id for one in seventh.jobs] == ["42"]
    assert (eighth.values, eighth.jobs) == ({"sm_active_ratio": 0.9}, ())
    assert [one.device.key for one in (gpu, seventh, eighth)] == ["GPU-1", "MIG-1", "GPU-1/8"]


def test_a_gpu_that_hangs_is_as_old_as_its_drivers_last_word_and_its_instances_hang_with_it() -> None:
    nvml = _state(
        _reading("power_watts", 71.7, age=40.6),
        _reading("memory_used_bytes", 5.0, _INSTANCE, age=40.6),
        _reading("up", 0.0, age=0.0, reason="timed_out"),
        missing=(Missing(GPU + "pcie_replays_total", _GPU, MissingReason.TIMED_OUT),),
    )
    beside = [
        _reading("job_info", 1.0, age=0.0, job_kind="slurm", job_id="42", share="exclusive", source="process"),
        _reading("use_state", 1.0, age=0.0, state="unknown"),
        _reading("class", 1.0, age=0.0, cause="idle"),
        _reading("class_confidence_ratio", 1.0, age=0.0),
        _reading("time_ratio", 1.0, age=0.0, spent="empty"),
        _reading("health", 1.0, age=0.0, state="failed"),
        _reading("xid_errors_total", 1.0, age=0.0, xid="79"),
    ]
    gpu, instance = node_of((nvml, _state(*beside, name="jobs")), _NOW, host="n1").devices
    assert gpu.age_seconds == 40.6
    assert gpu.missing == {"pcie_replays_total": "timed_out"}
    assert (instance.is_up, instance.reason, instance.age_seconds) == (False, "timed_out", 40.6)


def test_jobs_are_with_their_device() -> None:
    job = Job(JobKind.SLURM, "42", name="llama", user="alice", team="nlp")
    held = Assignment(job, device_in(dict(_GPU)), Share.EXCLUSIVE, (JobSource.PROCESS,), (99,))
    elsewhere = Assignment(job, device_in(dict(_OTHER)))
    state = _state(_reading("power_watts", 1.0))
    node = node_of((state,), _NOW, host="n1", assignments=(held, elsewhere))
    assert [one.jobs for one in node.devices] == [(held,)]
    (found,) = node_document(node)["devices"][0]["jobs"]
    assert (found["kind"], found["id"], found["name"], found["user"], found["team"]) == (
        "slurm",
        "42",
        "llama",
        "alice",
        "nlp",
    )
    assert (found["share"], found["pids"]) == ("exclusive", (99,))


def test_health_is_with_its_device_and_what_is_wrong_is_told() -> None:
    event = HealthEvent(
        "row_remap_failed", _GPU, Severity.CRITICAL, Action.REPLACE, "no spare rows", 1.0, 0.0, "", 1, 2, None, 3, True
    )
    failed = Health(HealthState.FAILED, "no spare rows", ("row_remap_failed",))
    machine = Health(HealthState.HEALTHY, "", (), ("fabric",))
    report = HealthReport(5, machine, {device_in(dict(_GPU)): failed}, (event,), ())
    node = node_of((_state(_reading("power_watts", 1.0)),), _NOW, host="n1", health=report)
    assert (node.devices[0].health, node.health, node.events) == (failed, machine, (event,))
    document = node_document(node)
    (told,) = document["events"]
    assert (told["labels"], told["severity"], told["action"], told["value"]) == (
        dict(_GPU),
        "critical",
        "replace",
        1.0,
    )
    assert told["action_line"] == Action.REPLACE.line
    assert document["health"] == {"state": "healthy", "reason": "", "codes": (), "unchecked": ("fabric",)}


def test_what_a_device_does_and_who_trains_on_it() -> None:
    shares = TimeShares(0.5, 0.25, 0.0, 0.25)
    told = FleetClass(Cause.COMMUNICATION, (), 0.9, "waits for peers", (), shares, Counters.SM, 1, 2)
    hello = Hello("run", "/runs/run", 0, 0, 8, 4711, "n1", 1, {"dp": 8}, "GPU-1")
    heartbeat = Heartbeat(20.0, "active", 7, 100.0, 10.0, {"forward": 40.0}, {"loss": 2.5}, "forward")
    rank = TrainingRank("k", hello, heartbeat, 4711, 1000, heartbeat_age_ms=50.0, step_age_ms=20.0)
    state = _state(_reading("power_watts", 1.0))
    node = node_of(
        (state,),
        _NOW,
        host="n1",
        fleet=FleetReport({device_in(dict(one)): told for one in (_GPU, _OTHER)}),
        ranks=(rank,),
    )
    again = read_node(json.loads(json.dumps(node_document(node))))
    assert again == node
    (device,) = again.devices
    assert device.spent == told
    assert again.ranks == (rank,)


def test_views_are_parts_of_the_document() -> None:
    told = made_nodes.node(
        made_nodes.device(0), events=(made_nodes.event(uuid="GPU-0"), made_nodes.event(uuid="GPU-0", ended_ns=5))
    )
    with made_nodes.served(told) as url:
        whole, status, table, unknown = (
            json.loads(urllib.request.urlopen(f"{url}/api/v1/node{query}", timeout=20).read())
            for query in ("", "?view=status", "?view=table&x=1", "?view=other")
        )
    assert unknown == whole
    assert "view" not in whole
    assert (status.pop("view"), table.pop("view")) == ("status", "table")
    assert status.keys() == table.keys() == whole.keys()
    (device,) = read_node(status).devices
    assert (device.values, device.spent, device.health) == ({}, None, told.devices[0].health)
    assert [event.ended_ns for event in read_node(status).events] == [None]
    (device,) = read_node(table).devices
    assert (device.values, device.by_label) == (told.devices[0].values, told.devices[0].by_label)
    assert device.spent is not None
    reports = [replace(status_of([NodeAnswer(url, read_node(one))]), warnings=()) for one in (whole, status, table)]
    assert reports[0] == reports[1] == reports[2]


def test_sources_with_reason_and_age_and_no_old_values() -> None:
    old = _state(
        _reading("power_watts", 1.0),
        age=61.0,
        reason=MissingReason.TIMED_OUT,
        detail="it does not answer for 61 s",
        findings=(Finding("x", "y", (), 1),),
    )
    never = SourceState("host", reason=MissingReason.NOT_YET)
    node = node_of((old, never), _NOW - 60 * _SECOND, host="n1")  # whatever the clock says
    assert node.devices == ()
    assert node.findings == ()
    first, second = node.sources
    assert (first.is_up, first.reason, first.age_seconds, first.detail) == (
        False,
        "timed_out",
        61.0,
        "it does not answer for 61 s",
    )
    assert (second.is_up, second.reason, second.age_seconds) == (False, "not_yet", None)


def _get(server: AgentServer, path: str, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_it_is_told_while_a_source_hangs() -> None:
    go_on = threading.Event()

    class Hangs:
        def collect(self) -> Collection:
            go_on.wait(60)
            return Collection()

    with ScheduledSource("nvml", Hangs(), interval=1.0, deadline=0.01) as source:
        routes = api_routes(lambda host: node_of((source.state(),), time.time_ns(), host=host), scheme="http")
        with AgentServer(ListenAddress("127.0.0.1", 0), routes) as server:
            end = time.monotonic() + 20
            while source.state().reason is not MissingReason.TIMED_OUT:
                assert time.monotonic() < end
                time.sleep(0.01)
            status, kind, body = _get(server, "/api/v1/node")
        go_on.set()
    assert (status, kind) == (200, "application/json")
    assert json.loads(body)["schema"] == NODE_SCHEMA
    node = read_node(json.loads(body))
    assert [(one.name, one.reason) for one in node.sources] == [("nvml", "timed_out")]


def test_prometheus_is_told_the_name_by_which_it_asked() -> None:
    with AgentServer(
        ListenAddress("127.0.0.1", 0), api_routes(lambda host: node_of((), 1, host=host), scheme="https")
    ) as server:
        status, kind, body = _get(server, "/sd", Host="node7:9455")
        (found,) = json.loads(body)
        assert (status, kind) == (200, "application/json")
        assert found["targets"] == ["node7:9455"]
        assert found["labels"]["__scheme__"] == "https"
        assert json.loads(_get(server, "/sd", Host="a b")[2]) == []


def test_the_machine_has_its_nodes_name_and_not_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node7")
    for told, name in (("", "node7"), ("n8", "n8")):
        routes = api_routes(lambda host: node_of((), 1, host=host), scheme="http", host=told)
        with AgentServer(ListenAddress("127.0.0.1", 0), routes) as server:
            assert json.loads(_get(server, "/api/v1/node")[2])["host"] == name
            (found,) = json.loads(_get(server, "/sd", Host="x:9455")[2])
            assert found["labels"]["__meta_stepscope_host"] == name
