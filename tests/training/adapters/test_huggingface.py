"""Hugging Face Trainer: optimizer steps, their logged values, and the activities between them are reported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.run_directory import StepReport
from stepscope.store.runs import load_manifest
from stepscope.training import once

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours


def _trainer(folder: Path, callback: Any, **more: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    tokens = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(32)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=8,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    model = transformers.GPT2LMHeadModel(config)
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=tokens, eval_dataset=tokens[:4], callbacks=[callback]
    )


def test_accumulated_batches_are_one_step_with_what_was_logged(
    tmp_path: Path, steps_of: Callable[[Path], StepReport]
) -> None:
    from stepscope.training.adapters.huggingface import StepscopeCallback

    callback = StepscopeCallback(run="r", out=tmp_path, schedule=once(wait=2, active=2))
    _trainer(tmp_path, callback, logging_steps=2, save_steps=4, eval_strategy="steps", eval_steps=4).train()
    report = steps_of(tmp_path / "r")
    manifest = load_manifest(tmp_path / "r")
    assert manifest.settings is not None
    assert [optimizer.name for optimizer in manifest.settings.optimizers] == ["AdamW"]
    assert [row.index for row in report.steps] == list(range(8))
    assert [row.captured for row in report.steps] == [False] * 3 + [True] * 2 + [False] * 3
    assert [{"loss", "grad_norm"} <= set(row.figures) for row in report.steps] == [False, True] * 4
    assert [set(row.phases_ms) for row in report.steps] == [set()] * 4 + [{"evaluation", "checkpoint"}] + [set()] * 3


def test_waits_for_the_trainers_own_loader_are_told(tmp_path: Path, steps_of: Callable[[Path], StepReport]) -> None:
    from stepscope.training.adapters.huggingface import StepscopeCallback

    trainer = _trainer(tmp_path, StepscopeCallback(run="r", out=tmp_path), save_strategy="no")
    trainer.train_dataset = _SlowRows(trainer.train_dataset)
    trainer.train()
    waits_ms = [row.data_wait_ms for row in steps_of(tmp_path / "r").steps]
    assert min(waits_ms[1:-1]) > 4 * _SlowRows.seconds * 1e3  # four rows a step; accelerate asks one batch ahead


class _SlowRows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    seconds = 0.002

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self._rows[index]


def test_each_training_is_a_run_and_the_verdict_is_to_be_had(tmp_path: Path) -> None:
    from stepscope.training.adapters.huggingface import StepscopeCallback

    callback = StepscopeCallback(run="r", out=tmp_path)
    trainer = _trainer(tmp_path, callback, save_strategy="no")
    trainer.train()
    assert callback.prof is not None
    assert "\nConfidence " in callback.prof.summary()
    trainer.train()
    assert len((tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()) == 16


def test_a_training_after_one_that_failed_is_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from stepscope.training.adapters.huggingface import StepscopeCallback

    class Fails(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # it tells no types
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyError("theirs")

    callback = StepscopeCallback(run="r", out=tmp_path)
    trainer = _trainer(tmp_path, callback, save_strategy="no", logging_steps=1)
    trainer.add_callback(Fails())
    with pytest.raises(KeyError, match="theirs"):
        trainer.train()
    trainer.pop_callback(Fails)
    trainer.train()
    attempts = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]
    assert [attempt["ended"] for attempt in attempts] == ["exception", "finished"]
    assert len((tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()) == 3 + 8
    assert not [record for record in caplog.records if "steps aside" in record.getMessage()]
