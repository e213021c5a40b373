"""DeepSpeed engine: optimizer steps, mesh and checkpoints are reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.run_directory import StepReport
from stepscope.training import once

torch = pytest.importorskip("torch")
deepspeed = pytest.importorskip("deepspeed")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(8, 8)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    torch.distributed.destroy_process_group()


def test_accumulated_batches_are_one_step_and_checkpoints_a_phase(
    tmp_path: Path, engine: Any, steps_of: Callable[[Path], StepReport]
) -> None:
    from stepscope.training.adapters.deepspeed import attach

    step = engine.step
    with attach(engine, run="r", out=tmp_path, schedule=once(wait=1, active=2)) as prof:
        for batch in prof.data(torch.ones(12, 2, 8)):
            engine.backward(engine(batch).square().mean())
            engine.step()
        engine.save_checkpoint(str(tmp_path / "checkpoint"))
        prof.step()
    assert engine.step == step  # the class's own again
    report = steps_of(tmp_path / "r")
    assert [row.index for row in report.steps] == list(range(7))
    assert [set(row.phases_ms) for row in report.steps] == [set()] * 6 + [{"checkpoint"}]
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    assert manifest["labels"] == {"zero_stage": "1"}
    assert manifest["mesh"] == {"dp": 1}
