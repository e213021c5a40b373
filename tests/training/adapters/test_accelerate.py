"""Accelerate: its own profiling interface measures optimizer steps through stepscope."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import StepReport
from stepscope.training import once

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours


def test_only_batches_that_end_an_accumulation_are_steps(
    tmp_path: Path, steps_of: Callable[[Path], StepReport]
) -> None:
    from stepscope.training.adapters.accelerate import kwargs_handler

    handler = kwargs_handler(run="r", out=tmp_path, schedule=once(wait=1, active=2))
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[handler])
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(24, 8), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with accelerator.profile() as prof:
        for batch in prof.data(loader):
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            prof.step(loss=loss.item())
    report = steps_of(tmp_path / "r")
    assert [row.index for row in report.steps] == list(range(6))
    assert all(row.data_wait_ms > 0 and row.figures["loss"] > 0 for row in report.steps)
