"""Loss scale of torch's scalers is found, with skipped steps, and their class is left unchanged."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepscope
from stepscope.training.steps.gradients import LossScaleFigures
from stepscope.training.steps.listeners import PendingSteps
from stepscope.training.steps.scalars import DeviceScalarReader
from stepscope.training.steps.telemetry import StepRecord
from tests.training.fake_device import FakeDevice

torch = pytest.importorskip("torch")


def _scaler(**options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, **options)


def _step(scaler: Any, factor: float = 1.0, num_optimizers: int = 1) -> None:
    parameters = [torch.ones(2, requires_grad=True) for _ in range(num_optimizers)]
    optimizers = [torch.optim.SGD([parameter]) for parameter in parameters]
    scaler.scale(sum(parameter.sum() for parameter in parameters) * factor).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def _ended(loss_scale: LossScaleFigures, **figures: float) -> StepRecord:
    record = StepRecord(0, 0, figures=dict(figures))
    loss_scale.steps_ended([record])
    return record


def test_the_scale_is_the_one_of_the_steps_loss(tmp_path: Path) -> None:
    scaler = _scaler()
    method = torch.amp.GradScaler._check_scale_growth_tracker
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
            _step(scaler, factor)
            prof.step()
        prof.step()
        _step(scaler)
        prof.step(loss_scale=3.0, overflow=True)
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [line.get("loss_scale") for line in lines] == [1024, 1024, 512, 512, 1024, None, 3]
    assert [line.get("overflow") for line in lines] == [0, 1, 0, 0, 0, None, True]
    assert torch.amp.GradScaler._check_scale_growth_tracker is method


def test_on_a_gpu_it_is_deferred() -> None:
    device, scaler = FakeDevice(), _scaler()
    loss_scale = LossScaleFigures(DeviceScalarReader(device))
    try:
        _step(scaler)
        assert _ended(loss_scale).figures == {"loss_scale": 1024.0, "overflow": 0}
        device.hold(scaler._scale)
        _step(scaler, float("inf"), num_optimizers=2)
        record = _ended(loss_scale)
        (deferred,) = record.deferred
        assert not deferred.are_there()
        _step(scaler)  # the device has not come to the copy yet, and the host goes on
        device.run()
        assert deferred.are_there()
        assert deferred.read() == {"loss_scale": 1024.0, "overflow": 1}
        (next_deferred,) = _ended(loss_scale).deferred
        assert next_deferred.are_there()
        assert next_deferred.read() == {"loss_scale": 512.0, "overflow": 0}
        assert _ended(loss_scale).deferred == []
    finally:
        loss_scale.close()


def test_of_two_scalers_the_last_counts_and_none_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(device, "holds", lambda _: True)
    reader = DeviceScalarReader(device)
    loss_scale, scaler = LossScaleFigures(reader), _scaler()
    other = torch.amp.GradScaler("cpu", init_scale=8.0)
    try:
        for index in range(600):
            scaler.scale(torch.ones(()))
            other.scale(torch.ones(()))
            scaler.update(1024.0)
            other.update(8.0)
            record = _ended(loss_scale)
            device.run()
            steps = PendingSteps([], lambda _: None)
            steps.add(record)
            assert record.figures == {"loss_scale": 8.0}, index
    finally:
        loss_scale.close()


def test_a_run_that_is_never_ended_is_forgotten() -> None:
    method = torch.amp.GradScaler._check_scale_growth_tracker
    loss_scale = LossScaleFigures(DeviceScalarReader())
    reference = weakref.ref(loss_scale)
    del loss_scale
    gc.collect()
    assert reference() is None
    _step(_scaler())
    torch.amp.GradScaler._check_scale_growth_tracker = method


def test_a_scaler_that_is_off_or_set_by_hand_has_no_overflow() -> None:
    loss_scale = LossScaleFigures(DeviceScalarReader())
    try:
        _step(_scaler(enabled=False))
        assert _ended(loss_scale).figures == {}
        scaler = _scaler()
        scaler.scale(torch.ones(()))
        scaler.update(2.0)
        assert _ended(loss_scale).figures == {"loss_scale": 1024.0}
    finally:
        loss_scale.close()


@pytest.mark.usefixtures("one_rank_group")
def test_the_scaler_of_fsdp_is_found_as_well() -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    loss_scale = LossScaleFigures(DeviceScalarReader())
    try:
        _step(ShardedGradScaler("cpu", init_scale=256.0))
        assert _ended(loss_scale).figures == {"loss_scale": 256.0, "overflow": 0}
    finally:
        loss_scale.close()


def test_a_scaler_of_another_make_is_left_alone_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    loss_scale, scaler = LossScaleFigures(DeviceScalarReader()), _scaler()
    try:
        scaler.scale(torch.ones(()))
        num_warnings = []
        for _ in range(3):
            scaler._per_optimizer_states = {1: "else"}
            scaler.update(2.0)
            num_warnings.append(len(caplog.records))
        assert _ended(loss_scale).figures == {}
    finally:
        loss_scale.close()
    assert caplog.records[0].getMessage().startswith("stepscope goes on without the loss scale: ")
    assert num_warnings[0] == num_warnings[2]


def test_a_scale_that_only_waiting_would_tell_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    loss_scale = LossScaleFigures(DeviceScalarReader())
    elsewhere = SimpleNamespace(_scale=torch.empty((), device="meta"), _per_optimizer_states={})
    loss_scale._updating(elsewhere)
    assert _ended(loss_scale).figures == {}
    loss_scale._updating(SimpleNamespace(_scale=torch.tensor(8.0), _per_optimizer_states={}))
    assert _ended(loss_scale).figures == {"loss_scale": 8.0}
    loss_scale.close()
    assert caplog.records == []
