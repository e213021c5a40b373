"""Heartbeats: identity and state of the process, within what the protocol can carry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.protocol.messages import Heartbeat, Hello, decode_message
from stepscope.training.agent_link import HeartbeatSource
from stepscope.training.run.context import RunContext
from stepscope.training.run.identity import Identity, gpu_uuid
from stepscope.training.steps.telemetry import StepRecord

torch = pytest.importorskip("torch")

_IDENTITY = Identity(rank=3, local_rank=1, world_size=8, host="node")
_UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> HeartbeatSource:
    told = {"run_directory": Path("/runs/r"), "identity": _IDENTITY, "mesh": {"dp": 8}, "open_spans": list}
    context: Any = type("Context", (), told)
    monkeypatch.setattr("stepscope.training.agent_link.time.time_ns", lambda: 5_000_000_000)
    assert RunContext.__annotations__.keys() >= {"run_directory", "identity", "mesh"}
    return HeartbeatSource(context, lambda: "wait")


def test_hello_says_who_this_is(heartbeat: HeartbeatSource) -> None:
    expected = Hello("r", "/runs/r", 3, 1, 8, os.getpid(), "node", 5_000_000_000, {"dp": 8}, wants=("counters",))
    assert decode_message(heartbeat.hello()) == expected
    heartbeat.gpu_uuid = _UUID
    assert isinstance(hello := decode_message(heartbeat.hello()), Hello)
    assert hello.gpu_uuid == _UUID


def test_a_step_has_its_age_its_times_and_the_figures_that_are_there(heartbeat: HeartbeatSource) -> None:
    assert decode_message(heartbeat.heartbeat()) == Heartbeat(age_ms=0.0)
    record = StepRecord(7, 4_000_000_000, 4_030_000_000, data_wait_ns=2_000_000, phases={"forward": 10_000_000})
    heartbeat.newest = lambda: record
    assert decode_message(heartbeat.heartbeat()) == Heartbeat(970.0, "wait", 7, 30.0, 2.0, {"forward": 10.0})
    record.figures = {"loss": 1.5, "bad": float("nan"), "huge": 10**400, "tokens": 4096, "up\n": 1, "is_x": True}
    heartbeat.newest_settled = record
    assert isinstance(step := decode_message(heartbeat.heartbeat()), Heartbeat)
    assert step.figures == {"loss": 1.5, "tokens": 4096, "is_x": True}


def test_many_figures_and_phases_are_cut_to_what_a_line_may_have(heartbeat: HeartbeatSource) -> None:
    record = StepRecord(1, 0, 1, phases={f"p{i}": 1 for i in range(999)})
    record.figures = {f"f{i}": i for i in range(999)}
    heartbeat.newest, heartbeat.newest_settled = (lambda: record), record
    assert isinstance(step := decode_message(heartbeat.heartbeat()), Heartbeat)
    assert (len(step.phases_ms), len(step.figures)) == (32, 32)


def test_the_innermost_phase_that_is_open_is_told() -> None:
    spans = ["ProfilerStep#3", "prof.phase: eval", "prof.phase: checkpoint", "prof.data"]
    context: Any = type("Context", (), {"open_spans": lambda: spans})
    assert isinstance(step := decode_message(HeartbeatSource(context, lambda: "wait").heartbeat()), Heartbeat)
    assert step.doing == "checkpoint"
    spans[2] = "prof.phase: up\n"
    assert isinstance(step := decode_message(HeartbeatSource(context, lambda: "wait").heartbeat()), Heartbeat)
    assert step.doing == "eval"


def test_clocks_that_went_back_are_no_negative_times(heartbeat: HeartbeatSource) -> None:
    heartbeat.newest = lambda: StepRecord(1, 9_000_000_000, 8_000_000_000)
    assert isinstance(step := decode_message(heartbeat.heartbeat()), Heartbeat)
    assert (step.age_ms, step.ms) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        ("", None),
        ("0,1", None),
        (_UUID, _UUID),
        (f"GPU-aaaaaaaaa-1,{_UUID}", _UUID),
        ("MIG-0123456789", "MIG-0123456789"),
        ("GPU-aaaaaaaaa-1,GPU-aaaaaaaaa-2,1", None),
    ],
)
def test_without_cuda_started_only_the_environment_can_tell(
    monkeypatch: pytest.MonkeyPatch, visible: str, uuid: str | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert gpu_uuid(_IDENTITY) == uuid


def test_once_cuda_runs_the_current_device_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    properties = type("Properties", (), {"uuid": _UUID.removeprefix("GPU-")})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert gpu_uuid(_IDENTITY) == _UUID
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: object())
    assert gpu_uuid(_IDENTITY) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-000000000,MIG-111111111,MIG-222222222")
    assert gpu_uuid(_IDENTITY) == "MIG-222222222"


def test_a_step_whose_record_is_made_stays_the_newest_while_the_next_is_open(heartbeat: HeartbeatSource) -> None:
    """Its end counts, not the start of the process: the agent knows hangs by the age of the open step."""
    heartbeat.newest_ended = StepRecord(41, 2_000_000_000, 3_000_000_000)
    assert decode_message(heartbeat.heartbeat()) == Heartbeat(2000.0, "wait", 41, 1000.0, 0.0)
    heartbeat.newest = lambda: StepRecord(42, 3_000_000_000, 4_500_000_000)
    assert decode_message(heartbeat.heartbeat()) == Heartbeat(500.0, "wait", 42, 1500.0, 0.0)
