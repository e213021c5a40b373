"""Pending steps: each line waits for its deferred scalars, in order, and training waits for nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

import stepscope
from stepscope.training.steps import listeners
from stepscope.training.steps.listeners import PendingSteps
from stepscope.training.steps.scalars import DeviceScalarReader, StepScalarReader
from stepscope.training.steps.telemetry import StepRecord
from tests.training.fake_device import FakeDevice

torch = pytest.importorskip("torch")


class _Seen:
    def __init__(self) -> None:
        self.settled: list[tuple[int, dict[str, int | float]]] = []
        self.is_closed = False

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        self.settled += [(record.index, dict(record.figures)) for record in records]

    def close(self) -> None:
        self.is_closed = True


def _record(index: int, device: FakeDevice, reader: DeviceScalarReader, loss: float | None) -> StepRecord:
    record = StepRecord(index, 0, 1)
    deferred = None if loss is None else reader.take({"loss": device.hold(torch.tensor(loss))})
    record.deferred = [] if deferred is None else [deferred]
    return record


def test_steps_are_passed_on_in_order_once_their_figures_are_there() -> None:
    device, seen, written = FakeDevice(), _Seen(), list[int]()
    reader = DeviceScalarReader(device)
    steps = PendingSteps([seen], lambda record: written.append(record.index))
    steps.add(_record(0, device, reader, None))
    assert written == [0]
    steps.add(_record(1, device, reader, 1.5))
    steps.add(_record(2, device, reader, None))
    assert written == [0]
    device.run()
    steps.add(_record(3, device, reader, 3.5))
    assert written == [0, 1, 2]
    device.run()
    steps.close()
    assert written == [0, 1, 2, 3]
    assert seen.settled == [(0, {}), (1, {"loss": 1.5}), (2, {}), (3, {"loss": 3.5})]
    assert seen.is_closed


def test_a_gpu_that_hangs_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_LONGEST_WAIT_SECONDS", 0.05)
    device, seen = FakeDevice(), _Seen()
    reader = DeviceScalarReader(device)
    steps = PendingSteps([seen], lambda _: None)
    for index in range(3):
        steps.add(_record(index, device, reader, 1.0))
    steps.close()
    assert seen.settled == [(0, {}), (1, {}), (2, {})]


def test_at_a_deadly_signal_all_is_passed_on_with_what_is_there() -> None:
    device, seen = FakeDevice(), _Seen()
    reader = DeviceScalarReader(device)
    steps = PendingSteps([seen], lambda _: None)
    for index in range(2):
        steps.add(_record(index, device, reader, 1.0))
    device.run()
    steps._waiting.append(_record(2, device, reader, 1.0))
    steps.hurry()
    assert seen.settled == [(0, {"loss": 1.0}), (1, {"loss": 1.0}), (2, {})]


def test_a_gpu_far_behind_does_not_hold_lines_for_ever() -> None:
    device, written = FakeDevice(), list[int]()
    reader = DeviceScalarReader(device)
    steps = PendingSteps([], lambda record: written.append(record.index))
    for index in range(1010):
        steps.add(_record(index, device, reader, 1.0))
    assert written == list(range(10))


def test_tensors_of_the_training_loop_are_in_the_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = FakeDevice()
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof._log._figures = StepScalarReader(DeviceScalarReader(device))
        prof.step(loss=device.hold(torch.tensor(2.5)), tokens=8)
        prof.step(loss=device.hold(torch.tensor(float("nan"))), grad_norm=device.hold(torch.tensor(3)), tokens=8)
        prof.step(loss=1.0)
        device.run()
        prof.step(loss=torch.tensor(0.5))
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [2.5, None, 1.0, 0.5]
    assert (lines[1]["non_finite"], lines[1]["grad_norm"], lines[0]["tokens"]) == (["loss"], 3, 8)
    assert not [record for record in caplog.records if "leaves out" in record.getMessage()]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]
