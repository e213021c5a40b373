"""Trainers' arguments: each name is one of the installed library, and a loop's trainer is found with its values."""

from __future__ import annotations

import inspect
import json
import math
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepscope.training.settings.trainers import (
    ACCELERATE_ARGUMENTS,
    LIGHTNING_ARGUMENTS,
    TRANSFORMERS_ARGUMENTS,
    is_trainer,
    trainer_settings,
)

_OLDER = {"group_by_length", "tf32_override", "ddp_broadcast_buffers", "torch_empty_cache_steps"}
"""Of earlier versions too."""
_NOT_ARGUMENTS = {"distributed_type"}
"""What a state tells beside its arguments."""


def test_transformers_has_these_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    known = {each.name for each in fields(transformers.TrainingArguments)}
    assert set(TRANSFORMERS_ARGUMENTS) - known <= _OLDER


def test_lightning_has_these_arguments() -> None:
    lightning = pytest.importorskip("lightning")
    assert set(LIGHTNING_ARGUMENTS) <= set(inspect.signature(lightning.Trainer.__init__).parameters)


def test_accelerate_has_these_arguments() -> None:
    accelerate = pytest.importorskip("accelerate")
    known = set(inspect.signature(accelerate.Accelerator.__init__).parameters)
    known |= {each.name for each in fields(accelerate.utils.DataLoaderConfiguration)}
    assert set(ACCELERATE_ARGUMENTS) - known <= _NOT_ARGUMENTS


def test_the_trainer_of_transformers_has_its_arguments(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    arguments = transformers.TrainingArguments(
        tmp_path, dataloader_num_workers=3, use_cpu=True, report_to="none", save_strategy="no"
    )
    trainer = transformers.Trainer(torch.nn.Linear(2, 2), arguments)
    found = trainer_settings([trainer.accelerator, trainer])
    assert found is not None
    assert (found.name, found.version) == ("transformers", transformers.__version__)
    assert found.arguments["dataloader_num_workers"] == 3
    assert found.arguments["save_strategy"] == "no"
    assert is_trainer(type(trainer))
    assert not is_trainer(dict)


def test_an_infinite_argument_is_a_word_and_a_secret_is_not_there(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    arguments = transformers.TrainingArguments(
        tmp_path, max_grad_norm=math.inf, hub_token="hf_secret", use_cpu=True, report_to="none"
    )
    found = trainer_settings([transformers.Trainer(torch.nn.Linear(2, 2), arguments)])
    assert found is not None
    assert found.arguments["max_grad_norm"] == "inf"
    assert "hf_secret" not in json.dumps(found.arguments, allow_nan=False)


def test_the_trainer_of_lightning_has_its_arguments(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        precision="bf16-mixed",
        accumulate_grad_batches=4,
        detect_anomaly=True,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
    )
    found = trainer_settings([trainer])
    assert found is not None
    assert found.name == "lightning"
    expected = {"precision": "bf16-mixed", "accumulate_grad_batches": 4, "detect_anomaly": True, "devices": 1}
    assert expected.items() <= found.arguments.items()
    assert found.arguments["enable_checkpointing"] is False


def test_an_accelerator_has_its_arguments() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    found = trainer_settings([accelerator])
    assert found is not None
    assert found.name == "accelerate"
    assert found.arguments["gradient_accumulation_steps"] == 2
    assert found.arguments["distributed_type"] == "NO"


def test_the_configuration_of_deepspeed_is_read_by_path() -> None:
    kind = type("DeepSpeedEngine", (), {"__module__": "deepspeed.runtime.engine"})
    engine = kind()
    engine.config = {"zero_optimization": {"stage": 2, "overlap_comm": False}, "bf16": {"enabled": True}, "x": 1}
    found = trainer_settings([engine])
    assert found is not None
    expected: dict[str, Any] = {"zero_optimization.stage": 2, "zero_optimization.overlap_comm": False}
    assert found.arguments == expected | {"bf16.enabled": True}


def test_the_arguments_of_megatron_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = ModuleType("megatron.training.global_vars")
    state._GLOBAL_ARGS = SimpleNamespace(overlap_grad_reduce=False, micro_batch_size=1, wandb_api_key="s3cret")
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", state)
    found = trainer_settings([])
    assert found is not None
    assert found.name == "megatron"
    assert found.arguments == {"overlap_grad_reduce": False, "micro_batch_size": 1}


def test_without_a_trainer_there_is_none() -> None:
    assert trainer_settings([object()]) is None
