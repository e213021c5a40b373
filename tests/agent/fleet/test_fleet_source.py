"""Fleet classes on the page: what GPUs and jobs spend their time on, correct over a long run."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.fleet.fleet_source import FleetSource
from stepscope.agent.polling import SourceState
from stepscope.agent.web.endpoints import node_of
from stepscope.core.documents.jobs import FLEET_CAUSES, Assignment, Counters, Job, JobKind
from stepscope.core.documents.node import node_document
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Collection, Labels, MissingReason
from stepscope.core.vocabulary import Cause
from stepscope.workflow.nodes.answers import read_node
from tests.agent.fleet.states import COMPUTING, GPU0, GPU1, SECOND, SPINNING, WAITING, of_gpu, state

_DEVICE = device_in(dict(GPU0))


class _Machine:
    """Two GPUs and a clock."""

    def __init__(self) -> None:
        self.second = 0
        self.read_at: int | None = None  # a second that all sources still tell of
        self.gpus: dict[Labels, dict[str, float]] = {GPU0: COMPUTING, GPU1: COMPUTING}
        self.hung: dict[Labels, int] = {}  # since when
        self.every = 1
        self.others: list[SourceState] = []
        self.assignments: list[Assignment] = []
        self.source = FleetSource(self.states, lambda: self.assignments, wall_clock_ns=lambda: self.second * SECOND)

    def states(self) -> list[SourceState]:
        second = self.second if self.read_at is None else self.read_at
        time_ns = second // self.every * self.every * SECOND
        readings = [
            one
            for labels, values in self.gpus.items()
            for one in of_gpu(labels, values, min(time_ns, self.hung.get(labels, second) * SECOND))
        ]
        return [state("nvml", readings, time_ns), *self.others]

    def run(self, seconds: int) -> Collection:
        for _ in range(seconds):
            self.second += 1
            collection = self.source.collect()
        return collection


def _cause(collection: Collection, labels: Labels) -> list[str]:
    return [
        dict(one.labels)["cause"]
        for one in collection.readings
        if one.metric == GPU + "class" and one.value == 1 and set(labels) <= set(one.labels)
    ]


def test_a_class_comes_after_ten_seconds_and_follows_the_gpu() -> None:
    machine = _Machine()
    early = machine.run(5)
    assert not early.readings
    machine.run(25)
    collection = machine.run(1)
    assert _cause(collection, GPU0) == _cause(collection, GPU1) == ["compute_bound"]
    assert sum(one.metric == GPU + "class" for one in collection.readings) == 2 * len(FLEET_CAUSES)
    machine.gpus[GPU0] = WAITING
    collection = machine.run(70)
    assert (_cause(collection, GPU0), _cause(collection, GPU1)) == (["communication"], ["compute_bound"])
    told = machine.source.report().devices[_DEVICE]
    assert told.counters is Counters.SM
    assert {one.metric for one in told.evidence} >= {"waiting_ratio", "nvlink_bytes_per_second"}


def test_a_clock_that_is_set_back_costs_a_few_seconds_and_no_hour() -> None:
    machine = _Machine()
    machine.second = 10_000
    machine.run(31)
    machine.second = 10
    machine.gpus[GPU0] = WAITING
    machine.run(5)
    assert machine.source.report().devices == {}
    assert _cause(machine.run(25), GPU0) == ["communication"]


def test_what_was_read_before_the_clock_was_set_back_holds_nothing_up() -> None:
    """The first looks after it still find the readings, and the host's collection, of before."""
    machine = _Machine()
    machine.second = 10_000
    machine.run(31)
    machine.second, machine.read_at = 10, 10_031
    machine.others = [state("host", [], 10_031 * SECOND)]
    machine.run(3)
    machine.read_at = None
    machine.gpus[GPU0] = WAITING
    for _ in range(30):
        machine.others = [state("host", [], machine.second * SECOND)]
        collection = machine.run(1)
    assert _cause(collection, GPU0) == ["communication"]
    assert [look.time_ns for look in machine.source._host._history] == [second * SECOND for second in range(13, 43)]


def test_it_says_why_there_is_no_class_yet() -> None:
    machine = _Machine()
    machine.run(1)
    (one, _) = machine.run(1).missing
    assert (one.metric, one.reason) == (GPU + "class", MissingReason.NOT_YET)


def test_a_hang_is_found_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = _Machine()
    machine.gpus = {GPU0: SPINNING}
    with caplog.at_level(logging.WARNING):
        collection = machine.run(75)
        assert _cause(collection, GPU0) == ["hang"]
        assert collection.findings == ()  # not sure yet
        first = machine.source.report().devices[_DEVICE].confidence
        assert [one.code for one in machine.run(70).findings] == ["hang"]
        collection = machine.run(180)
    assert [one.code for one in collection.findings] == ["hang"]
    assert machine.source.report().devices[_DEVICE].confidence > first
    assert len(caplog.records) == 1
    machine.gpus = {GPU0: COMPUTING}
    assert machine.run(80).findings == ()


def test_a_page_without_profiling_counters_is_never_idle_by_that() -> None:
    """Facts 0.3 and bug log 18: 125 W and no PROF fields, called idle with 0.00 by another tool."""
    machine = _Machine()
    machine.gpus = {GPU0: {"power_watts": 125.0, "memory_used_bytes": 60e9}}
    collection = machine.run(70)
    assert _cause(collection, GPU0) == ["insufficient_evidence"]
    sure = [one.value for one in collection.readings if one.metric == GPU + "class_confidence_ratio"]
    assert sure == [0.0]
    machine.gpus = {GPU0: {"power_watts": 610.0, "utilization_ratio": 0.98, "memory_bandwidth_busy_ratio": 0.4}}
    assert _cause(machine.run(70), GPU0) == ["compute_bound"]


def test_silent_counters_are_seen_through() -> None:
    """Bug log 17."""
    machine = _Machine()
    machine.gpus = {GPU0: {name: 0.0 if "active" in name else value for name, value in COMPUTING.items()}}
    machine.run(70)
    told = machine.source.report().devices[_DEVICE]
    assert told.cause is Cause.COMPUTE_BOUND
    assert "profiling_silent" in {one.metric for one in told.evidence}


def test_a_gpu_that_is_gone_has_no_class() -> None:
    machine = _Machine()
    machine.run(30)
    del machine.gpus[GPU1]
    collection = machine.run(75)
    assert _cause(collection, GPU0) == ["compute_bound"]
    assert _cause(collection, GPU1) == []


def test_a_gpu_that_hangs_has_no_class_of_the_time_before() -> None:
    machine = _Machine()
    machine.run(60)
    machine.hung[GPU1] = 60
    collection = machine.run(26)  # 15 s, and up to 10 s to the next class
    assert _cause(collection, GPU0) == ["compute_bound"]
    assert _cause(collection, GPU1) == []
    (missing,) = [one for one in collection.missing if one.metric == GPU + "class"]
    assert (missing.labels, missing.reason) == (GPU1, MissingReason.TIMED_OUT)
    assert missing.detail.startswith("its newest sample is ")
    assert machine.source.report().devices.keys() == {_DEVICE}
    machine.hung.clear()
    assert _cause(machine.run(12), GPU1) == ["compute_bound"]


def test_a_page_that_comes_every_30_seconds_keeps_its_class() -> None:
    machine = _Machine()
    machine.every = 30
    machine.run(95)
    for _ in range(90):
        assert _cause(machine.run(1), GPU0) == ["compute_bound"]


def test_a_job_has_the_cause_of_the_gpu_that_is_waited_for() -> None:
    machine = _Machine()
    machine.gpus = {GPU0: WAITING, GPU1: COMPUTING}
    job = Job(JobKind.SLURM, "42")
    machine.assignments = [Assignment(job, device_in(dict(gpu))) for gpu in (GPU0, GPU1)]
    collection = machine.run(70)
    (told,) = machine.source.report().jobs
    assert (told.job.id, told.fleet_class.cause, len(told.devices)) == ("42", Cause.STRAGGLER, 2)
    named = [one for one in collection.readings if one.metric == JOB + "class" and one.value == 1]
    assert [dict(one.labels)["cause"] for one in named] == ["straggler"]
    now_ns = machine.second * SECOND
    page = MetricsPage(lambda: [state("fleet_class", list(collection.readings), now_ns)], wall_clock_ns=lambda: now_ns)
    text = page.encoded()[0].decode()
    assert 'stepscope_job_class{cause="straggler",job_id="42",job_kind="slurm"} 1.0' in text
    assert 'reason="unknown_metric"' not in text
    node = node_of(machine.states(), now_ns, host="n1", fleet=machine.source.report())
    document = json.loads(json.dumps(node_document(node)))
    assert json.loads(json.dumps(node_document(read_node(document)))) == document
    (of_job,) = document["job_classes"]
    assert (of_job["job_id"], of_job["devices"], of_job["told"]["cause"]) == ("42", ["GPU-0", "GPU-1"], "straggler")
    spent = document["devices"][0]["spent"]
    assert (spent["cause"], spent["shares"].keys()) == ("communication", {"computing", "waiting", "copying", "empty"})
    assert spent["evidence"]


def test_what_the_agent_loads_for_it_is_light() -> None:
    code = (
        "import sys, stepscope.agent.fleet.fleet_source; "
        "print([name for name in ('numpy', 'pandas', 'msgspec', 'duckdb', 'torch') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
