"""Clipped norm: the norm computed by clipping is kept with its step, if it is that of all gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.training.steps.gradients import ClippedGradientNorm
from stepscope.training.steps.scalars import DeviceScalarReader
from stepscope.training.steps.telemetry import StepRecord
from tests.training.fake_device import FakeDevice

torch = pytest.importorskip("torch")

from torch.nn.utils import clip_grad_norm_  # noqa: E402  # a loop imports it before profile() begins


def _parameter(*gradient: float) -> Any:
    parameter = torch.nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def test_a_clipped_step_tells_the_norm_before_clipping(tmp_path: Path) -> None:
    original = torch.nn.utils.clip_grad._get_total_norm
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        parameters = [_parameter(3.0), _parameter(0.0, 4.0)]
        assert clip_grad_norm_(parameters, 1.0).item() == 5.0
        assert parameters[0].grad.item() == pytest.approx(0.6)
        prof.step()
        prof.step()
        clip_grad_norm_([_parameter(7.0)], 1.0)
        prof.step(grad_norm=1.5)  # what the loop tells stays
        clip_grad_norm_([_parameter(1.0)], 1.0)
        clip_grad_norm_([_parameter(2.0)], 1.0)  # part by part
        prof.step()
        clip_grad_norm_([_parameter(3.0, 4.0)], 1.0, norm_type=float("inf"))
        prof.step()
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [line.get("grad_norm") for line in lines] == [5.0, None, 1.5, None, None]
    assert torch.nn.utils.clip_grad._get_total_norm is original


def test_on_a_gpu_it_is_deferred_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(device, "holds", lambda _: True)
    reader = DeviceScalarReader(device)
    clipped = ClippedGradientNorm(reader)
    try:
        clip_grad_norm_([_parameter(3.0, 4.0)], 1.0)
        record = StepRecord(0, 0)
        clipped.steps_ended([record])
        clip_grad_norm_([_parameter(3.0, 4.0)], 1.0)
        given = StepRecord(
            1, 0, deferred=[deferred for deferred in [reader.take({"grad_norm": torch.tensor(1.0)})] if deferred]
        )
        clipped.steps_ended([given])
    finally:
        clipped.close()
    assert len(given.deferred) == 1
    device.run()
    assert record.deferred[0].are_there()
    assert record.deferred[0].read() == {"grad_norm": 5.0}


def test_after_the_end_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.utils.clip_grad
    monkeypatch.setattr(module, "_get_total_norm", module._get_total_norm)  # back again at the end
    clipped = ClippedGradientNorm(DeviceScalarReader())
    other = ClippedGradientNorm(DeviceScalarReader())
    clipped.close()  # not the outermost wrapper: it stays, and does nothing
    other.close()
    clip_grad_norm_([_parameter(3.0, 4.0)], 1.0)
    record = StepRecord(0, 0)
    for each in (clipped, other):
        each.steps_ended([record])
    assert record.figures == {}


def test_a_compiled_loop_is_compiled_once_and_whole() -> None:
    testing = pytest.importorskip("torch._dynamo.testing")
    backend = testing.CompileCounter()
    clipped = ClippedGradientNorm(DeviceScalarReader())

    @torch.compile(backend=backend, fullgraph=True)  # type: ignore[untyped-decorator]
    def clip(parameter: Any) -> Any:
        return clip_grad_norm_([parameter], 1.0)

    try:
        for step in range(3):
            assert clip(_parameter(3.0, 4.0)).item() == 5.0
            clipped.steps_ended([StepRecord(step, 0)])
    finally:
        clipped.close()
    assert backend.frame_count == 1
