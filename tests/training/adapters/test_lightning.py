"""Lightning Trainer: optimizer steps and validation are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.run_directory import StepReport
from stepscope.store.runs import load_manifest
from stepscope.training import once

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours


def _module(fails_at: int = -1) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch: Any, index: int) -> Any:
            if index == fails_at:
                raise ConnectionError("storage")
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Any) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def _fit(folder: Path, module: Any, callback: Any) -> None:
    batches = torch.utils.data.DataLoader(torch.ones(24, 8), batch_size=2)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=1,
        accumulate_grad_batches=2,
        val_check_interval=6,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, batches, torch.utils.data.DataLoader(torch.ones(2, 8)))


def test_accumulated_batches_are_one_step_and_validation_is_a_phase(
    tmp_path: Path, steps_of: Callable[[Path], StepReport]
) -> None:
    from stepscope.training.adapters.lightning import StepscopeCallback

    _fit(tmp_path, _module(), StepscopeCallback(run="r", out=tmp_path, schedule=once(wait=1, active=2)))
    report = steps_of(tmp_path / "r")
    manifest = load_manifest(tmp_path / "r")
    assert manifest.settings is not None
    assert [optimizer.name for optimizer in manifest.settings.optimizers] == ["SGD"]
    assert [row.index for row in report.steps] == list(range(6))
    assert [set(row.phases_ms) for row in report.steps] == [set()] * 3 + [{"evaluation"}] + [set()] * 2
    assert all(row.figures["loss"] > 0 for row in report.steps)
    assert all(row.data_wait_ms > 0 for row in report.steps)  # of Trainer's own fetcher


def test_an_exception_ends_the_attempt_and_keeps_the_steps_before(tmp_path: Path) -> None:
    from stepscope.training.adapters.lightning import StepscopeCallback

    with pytest.raises(ConnectionError):
        _fit(tmp_path, _module(fails_at=8), StepscopeCallback(run="r", out=tmp_path))
    assert '"ended": "exception"' in (tmp_path / "r" / "run.json").read_text()
    assert len((tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()) == 4
