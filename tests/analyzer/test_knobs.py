"""Knobs: each option is one of torch or of the trainer that it names, and is written with its present value."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.remedies import ACTIONS, REMEDIES, actions_for, remedy_text, templates_of
from stepscope.analyzer.knobs import CHANGES, KNOBS, Options, _values
from stepscope.core.documents.training_settings import (
    BackwardSettings,
    DdpSettings,
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)
from stepscope.core.vocabulary import Cause, Change, Reason
from stepscope.training.settings.trainers import DEEPSPEED_ARGUMENTS, MEGATRON_ARGUMENTS

_CALL = re.compile(r"(\w+)\((\w+)=")
_NAMES = json.loads((Path(__file__).parent / "argument_names.json").read_text())
"""Names of arguments in the sources of Megatron-LM and DeepSpeed, at the commits that it names."""


def _settings(library: str = "torch", **arguments: Any) -> TrainingSettings:
    return TrainingSettings(
        loaders=[LoaderSettings(True, 2, pin_memory=False)],
        optimizers=[OptimizerSettings("AdamW", fused=False)],
        models=[ModelSettings("Net", ["float32"], attention="eager")],
        trainer=None if library == "torch" else TrainerSettings(library, None, arguments),
    )


def _calls(library: str) -> Iterator[tuple[str, str]]:
    for knob in KNOBS.values():
        for call in _CALL.finditer(knob.of_library(library)):
            yield call[1], call[2]


def test_arguments_of_transformers_are_its_own() -> None:
    transformers = pytest.importorskip("transformers")
    known = {each.name for each in fields(transformers.TrainingArguments)}
    named = [name for call, name in _calls("transformers") if call == "TrainingArguments"]
    assert len(named) > 10
    assert set(named) <= known


def test_arguments_of_lightning_are_its_own() -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    kinds: dict[str, list[Any]] = {
        "Trainer": [lightning.Trainer],
        "ModelCheckpoint": [ModelCheckpoint],
        "DDPStrategy": [DDPStrategy, DistributedDataParallel],
        "FSDPStrategy": [FSDPStrategy, FullyShardedDataParallel],
    }
    for call, name in _calls("lightning"):
        assert any(name in inspect.signature(kind.__init__).parameters for kind in kinds[call]), (call, name)


def test_arguments_of_accelerate_are_its_own() -> None:
    accelerate = pytest.importorskip("accelerate")
    for call, name in _calls("accelerate"):
        kind = getattr(accelerate, call, None) or getattr(accelerate.utils, call)
        assert name in inspect.signature(kind.__init__).parameters, (call, name)
    assert accelerate.utils.DDPCommunicationHookType.BF16
    assert callable(accelerate.Accelerator.accumulate)


def test_arguments_of_torch_are_its_own() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    loader = set(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
    assert {"num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batch_size"} <= loader
    ddp = set(inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters)
    assert {"bucket_cap_mb", "find_unused_parameters"} <= ddp
    assert "fused" in inspect.signature(torch.optim.AdamW.__init__).parameters
    assert callable(default_hooks.bf16_compress_hook)
    assert callable(FSDPModule.set_modules_to_forward_prefetch)
    assert "init_scale" in inspect.signature(torch.amp.GradScaler.__init__).parameters
    assert callable(ScheduleInterleaved1F1B)


def test_flags_of_megatron_are_in_its_sources() -> None:
    flags = {flag for knob in KNOBS.values() for flag in re.findall(r"--([\w-]+)", knob.megatron)}
    assert {flag.replace("-", "_") for flag in flags} <= set(_NAMES["megatron"]["names"])
    assert set(MEGATRON_ARGUMENTS) <= set(_NAMES["megatron"]["names"])


def test_keys_of_deepspeed_are_in_its_sources() -> None:
    known = set(_NAMES["deepspeed"]["names"])
    assert set(DEEPSPEED_ARGUMENTS) <= known
    for knob in KNOBS.values():
        if " in the DeepSpeed config" in knob.deepspeed:
            text = knob.deepspeed.replace(" in the DeepSpeed config", "").format(new=1)
            section = ast.literal_eval("{" + text.replace("true", "True").replace(": a larger one", ": 1") + "}")
            assert _paths(section) <= known, text


def _paths(section: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in section.items():
        found |= _paths(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return found


@pytest.mark.parametrize("library", ["torch", "transformers", "lightning", "accelerate", "deepspeed", "megatron"])
def test_every_template_is_written_for_every_library(library: str) -> None:
    for settings in (None, _settings(library)):
        options = Advice(settings, affinity="0-3", micro_batches=2).options
        for entry in (*REMEDIES.values(), *ACTIONS.values()):
            for template in templates_of(entry):
                text = template.format_map(options)
                assert text
                assert "{new}" not in text
                assert "None" not in re.sub(r"\w+=None\b", "", text)
        assert options.of_changes().keys() == set(Change) == CHANGES.keys()


def test_options_have_their_present_value_unless_it_is_the_new_one() -> None:
    options = Options(_settings())
    assert options.text("num_workers", 9) == "num_workers=9 (now 2)"
    assert options.text("num_workers", 2) == "num_workers=2"
    assert options.text("fused_optimizer") == "AdamW(fused=True) (now False)"
    assert options.text("attention") == 'attn_implementation="sdpa" (now eager)'
    assert Options().text("num_workers") == "num_workers=4"
    assert Options(optimizer="SGD").text("fused_optimizer") == "SGD(fused=True)"


def test_what_is_set_already_is_not_advised() -> None:
    fused = TrainingSettings(
        optimizers=[OptimizerSettings("AdamW", fused=True)],
        models=[ModelSettings("Net", ["bfloat16"])],
        trainer=TrainerSettings("transformers", None, {"optim": "adamw_torch_fused", "bf16": False}),
    )
    advice = Advice(fused)
    assert advice.is_set("fused_optimizer")
    assert advice.is_set("bf16")
    assert Change.FUSED_OPTIMIZER not in advice.options.of_changes()
    dispatch = remedy_text(Reason.DISPATCH, advice)
    assert "adamw" not in dispatch.lower()
    assert "[" not in dispatch
    assert "fused=True" not in " ".join(actions_for(Cause.MEMORY_BOUND, [], advice=advice))
    assert "bf16" not in " ".join(actions_for(Cause.COMPUTE_BOUND, [], advice=advice))
    by_argument = Options(TrainingSettings(trainer=fused.trainer))
    assert by_argument.is_set("fused_optimizer")
    unlike = Options(replace(fused, optimizers=[OptimizerSettings("AdamW", fused=False)]))
    assert unlike.text("fused_optimizer") == "AdamW(fused=True) (now False)"
    tf32 = Advice(TrainingSettings(float32_matmul_precision="high"))
    assert remedy_text(Reason.NO_TENSOR_CORES, tf32).startswith("torch.autocast")


def test_a_knob_of_two_arguments_is_set_where_both_are() -> None:
    half = Options(_settings("transformers", torch_compile=True, torch_compile_mode="default"))
    assert not half.is_set("cuda_graphs")
    whole = Options(_settings("transformers", torch_compile=True, torch_compile_mode="reduce-overhead"))
    assert whole.is_set("cuda_graphs")
    assert Options(_settings("megatron", overlap_grad_reduce=True)).is_set("overlap_reduction")
    assert Options(_settings("deepspeed", **{"zero_optimization.overlap_comm": True})).is_set("overlap_reduction")


def test_what_the_script_does_beside_its_trainer_is_named_as_of_torch() -> None:
    options = Options(_settings("transformers", torch_empty_cache_steps=None))
    assert options.text("empty_cache") == "no torch.cuda.empty_cache() in the loop"
    assert not options.is_set("empty_cache")


def test_a_number_that_is_large_already_is_doubled() -> None:
    options = Options(TrainingSettings(loaders=[LoaderSettings(True, 8)], ddp=[DdpSettings(bucket_cap_mb=100.0)]))
    assert options.text("num_workers") == "num_workers=16 (now 8)"
    assert options.text("bucket_size") == "DistributedDataParallel(bucket_cap_mb=200) (now 100)"


@pytest.mark.parametrize("library", ["torch", "transformers", "lightning", "accelerate", "deepspeed", "megatron"])
def test_no_template_keeps_a_knob_that_is_set(library: str) -> None:
    """By an exhaustive look at what each library's arguments say when all options have their new values."""
    arguments = {name: value for knob in KNOBS.values() for name, value in _values(knob.of_library(library)).items()}
    done = TrainingSettings(
        loaders=[LoaderSettings(True, 2, pin_memory=True, persistent_workers=True)],
        optimizers=[OptimizerSettings("AdamW", fused=True)],
        float32_matmul_precision="high",
        trainer=None if library == "torch" else TrainerSettings(library, None, arguments),
    )
    advice = Advice(done)
    set_already = {name for name in KNOBS if advice.is_set(name)}
    assert {"fused_optimizer", "tf32", "pin_memory"} <= set_already
    texts = [remedy_text(reason, advice) for reason in Reason]
    texts += [action for cause in Cause for action in actions_for(cause, [], advice=advice)]
    options = {advice.options.text(name) for name in set_already}
    assert [text for text in texts if any(option in text for option in options)] == []


def test_a_trainers_own_option_has_the_value_of_its_argument() -> None:
    hf = Options(_settings("transformers", dataloader_num_workers=2, save_steps=10, save_strategy="steps"))
    assert hf.text("num_workers", 9) == "TrainingArguments(dataloader_num_workers=9) (now 2)"
    assert hf.text("save_interval", times=15) == "TrainingArguments(save_steps=150) (now 10)"
    lightning = Options(_settings("lightning", precision="32-true"))
    assert lightning.text("bf16") == 'Trainer(precision="bf16-mixed") (now 32-true)'
    assert lightning.text("num_workers", 9) == "num_workers=9 (now 2)"
    megatron = Options(_settings("megatron", overlap_grad_reduce=False, num_workers=2))
    assert megatron.text("overlap_reduction") == "--overlap-grad-reduce (now False)"
    assert megatron.text("num_workers", 6) == "--num-workers 6 (now 2)"
    deepspeed = Options(_settings("deepspeed", **{"zero_optimization.overlap_comm": False}))
    assert deepspeed.text("overlap_reduction").endswith('{"overlap_comm": true} in the DeepSpeed config (now False)')


def test_a_trainer_that_does_not_save_is_not_told_to_save_less_often() -> None:
    options = Options(_settings("transformers", save_steps=500, save_strategy="no"))
    assert options.less_often(3, 10)["save_interval"].endswith("save every 30 steps (now 10)")


def test_an_interval_of_lightning_may_be_longer_than_an_epoch() -> None:
    """Lightning refuses an interval of more batches than an epoch has, unless epochs do not count."""
    batches = Options(_settings("lightning", val_check_interval=8, check_val_every_n_epoch=1))
    option = "Trainer(val_check_interval=120, check_val_every_n_epoch=None) (now 8)"
    assert batches.less_often(15, 8)["eval_interval"] == option
    for fraction in (1.0, 0.2):
        epochs = Options(_settings("lightning", val_check_interval=fraction, accumulate_grad_batches=4))
        assert epochs.less_often(15, 2)["eval_interval"] == option
        assert "(now" not in epochs.less_often(15, None)["eval_interval"]


def test_an_interval_of_transformers_counts_under_the_strategy_steps() -> None:
    epochs = Options(_settings("transformers", save_steps=500, save_strategy="epoch"))
    option = 'TrainingArguments(save_strategy="steps", save_steps=300) (now 20)'
    assert epochs.less_often(15, 20)["save_interval"] == option
    fraction = Options(_settings("transformers", eval_steps=0.1, eval_strategy="steps"))
    assert fraction.less_often(15, 20)["eval_interval"] == "TrainingArguments(eval_steps=300) (now 20)"


def test_no_advice_that_the_run_contradicts() -> None:
    assert "profile(with_stack=True)" in remedy_text(Reason.PYTHON)
    assert "with_stack" not in remedy_text(Reason.PYTHON, Advice(with_stacks=True))
    in_memory = LoaderSettings(True, 0, in_memory=True, kind="map")
    assert "num_workers" not in remedy_text(Reason.STARVED, Advice(TrainingSettings(loaders=[in_memory])))
    plain = Advice(TrainingSettings(iterables=["generator"]))
    assert remedy_text(Reason.NO_WORKERS, plain).startswith("make the batches in a DataLoader")
    stream = LoaderSettings(True, 0, kind="iterable")
    assert "get_worker_info" in remedy_text(Reason.STARVED, Advice(TrainingSettings(loaders=[stream])))
    assert not [one for one in actions_for(Cause.COMMUNICATION, [], advice=Advice(backend="gloo")) if "NCCL" in one]
    assert [one for one in actions_for(Cause.COMMUNICATION, [], advice=Advice(backend="nccl")) if "NCCL" in one]
    compiled = TrainingSettings(models=[ModelSettings("Net", [], compiled=True, compile_mode="default")])
    assert remedy_text(Reason.DISPATCH, Advice(compiled)).startswith('torch.compile(model, mode="reduce-overhead")')
    graphs = TrainingSettings(models=[ModelSettings("Net", [], compiled=True, compile_mode="reduce-overhead")])
    assert "reduce-overhead" not in remedy_text(Reason.DISPATCH, Advice(graphs))
    pinned = TrainingSettings(loaders=[LoaderSettings(True, 2, pin_memory=True)])
    assert "pin_memory=True" not in remedy_text(Reason.PAGEABLE_MEMORY, Advice(pinned))
    for reason in (Reason.PAGEABLE_MEMORY, Reason.BLOCKING_COPY):
        assert "pin_memory" not in remedy_text(reason, Advice(copies_to_host=True))
        assert "pin_memory" in remedy_text(reason)
    sixteen = TrainingSettings(backward=BackwardSettings(1, compute_types=["bfloat16"]))
    assert "autocast" not in actions_for(Cause.COMPUTE_BOUND, [], advice=Advice(sixteen))[0]
    assert actions_for(Cause.HOST_BOUND, [], advice=Advice(has_free_cores=True)) == []


@pytest.mark.parametrize(
    ("cause", "reason"),
    [(Cause.SYNCHRONIZATION, Reason.EXPLICIT_SYNCHRONIZE), (Cause.COPY, Reason.PAGEABLE_MEMORY)],
)
def test_what_a_cause_advises_without_a_reason_is_not_said_again(cause: Cause, reason: Reason) -> None:
    assert actions_for(cause, []) != []
    assert actions_for(cause, [reason]) == [remedy_text(reason)]


def test_the_option_at_fault_comes_first() -> None:
    often = TrainingSettings(backward=BackwardSettings(4, synchronized_passes=4), ddp=[DdpSettings(25.0, True)])
    actions = actions_for(Cause.COMMUNICATION, [], advice=Advice(often, backend="nccl"))
    assert actions[0].startswith("model.no_sync()")
    assert actions[1].startswith("DistributedDataParallel(find_unused_parameters=False) (now True)")
    once = replace(often, backward=BackwardSettings(4, synchronized_passes=1))
    assert actions_for(Cause.COMMUNICATION, [], advice=Advice(once))[0].startswith("DistributedDataParallel(find_")
    slow = Advice(optimizer="Adam", optimizer_launches=0.7)
    assert remedy_text(Reason.DISPATCH, slow).startswith("Adam(fused=True): the optimizer launches 70% of the kernels")


def test_checkpoints_become_so_rare_that_they_take_a_twentieth() -> None:
    [action] = actions_for(Cause.CHECKPOINT, [], share=0.5, interval=10)
    assert action == "torch.distributed.checkpoint.async_save, or save every 200 steps (now 10)"


@pytest.mark.parametrize("present", [math.inf, math.nan, 1e308, 10**400, -1, 0, True, "many"])
def test_a_number_that_no_run_has_is_not_multiplied(present: Any) -> None:
    options = Options(_settings("transformers", per_device_train_batch_size=present, save_steps=present))
    assert "per_device_train_batch_size=2x" in options.of_changes()[Change.LARGER_BATCH]
    assert "save_steps=500" in options.less_often(3, 10)["save_interval"]
