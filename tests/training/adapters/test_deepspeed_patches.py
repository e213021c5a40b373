"""Foreign patches of a DeepSpeed engine outlive ours. The engine is one of the same interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.training.adapters.deepspeed import attach

pytest.importorskip("torch")


class _Engine:
    """What `attach` asks of deepspeed.DeepSpeedEngine."""

    mpu = None
    dp_world_size = 1

    def __init__(self) -> None:
        self.calls: list[str] = []

    def zero_optimization_stage(self) -> int:
        return 1

    def is_gradient_accumulation_boundary(self) -> bool:
        return True

    def step(self) -> None:
        self.calls.append("step")

    def save_checkpoint(self) -> None:
        self.calls.append("save")


def test_what_others_have_patched_before_and_meanwhile_stays(tmp_path: Path) -> None:
    engine = _Engine()
    step = engine.step

    def before() -> None:
        engine.calls.append("before")
        step()

    engine.step = before  # type: ignore[method-assign]  # as other tools do
    with attach(engine, run="r", out=tmp_path):
        ours = engine.save_checkpoint

        def meanwhile() -> None:
            engine.calls.append("meanwhile")
            ours()

        engine.save_checkpoint = meanwhile  # type: ignore[method-assign]  # as other tools do
        engine.step()
    assert engine.step is before
    assert engine.save_checkpoint is meanwhile
    engine.save_checkpoint()
    assert engine.calls == ["before", "step", "meanwhile", "save"]
    assert len((tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()) == 1


def test_an_engine_nobody_else_patched_is_as_before(tmp_path: Path) -> None:
    engine = _Engine()
    with attach(engine, run="r", out=tmp_path):
        engine.step()
    assert list(vars(engine)) == ["calls"]
