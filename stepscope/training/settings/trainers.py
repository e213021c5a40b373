"""Libraries that run training loops: which one runs this one, and those of its arguments that change its speed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from stepscope.core.documents.training_settings import TrainerSettings
from stepscope.training.settings.modules import read

Argument = str | int | float | bool | None

_LONGEST_TEXT = 40
"""Longer texts are no choice among few."""


def _names(text: str) -> list[str]:
    return text.split()


TRANSFORMERS_ARGUMENTS = _names(
    "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing auto_find_batch_size"
    " bf16 fp16 tf32 bf16_full_eval torch_compile torch_compile_backend torch_compile_mode optim"
    " max_grad_norm full_determinism use_liger_kernel torch_empty_cache_steps dataloader_num_workers"
    " dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_drop_last"
    " ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_backend fsdp deepspeed"
    " eval_strategy eval_steps per_device_eval_batch_size eval_accumulation_steps save_strategy save_steps"
    " save_only_model logging_steps logging_nan_inf_filter skip_memory_metrics"
    " include_num_input_tokens_seen average_tokens_across_devices train_sampling_strategy group_by_length"
    " neftune_noise_alpha"
)
"""Of `transformers.TrainingArguments`, by the documentation of 5.24; absent ones are left out."""

LIGHTNING_ARGUMENTS = _names(
    "precision accumulate_grad_batches check_val_every_n_epoch val_check_interval limit_val_batches"
    " num_sanity_val_steps log_every_n_steps gradient_clip_val benchmark deterministic detect_anomaly"
    " inference_mode strategy num_nodes devices sync_batchnorm enable_checkpointing"
)
"""Of `lightning.Trainer`, by the documentation of 2.6."""

ACCELERATE_ARGUMENTS = _names(
    "mixed_precision gradient_accumulation_steps distributed_type split_batches dispatch_batches"
    " non_blocking even_batches use_seedable_sampler"
)
"""Of `accelerate.Accelerator` (its state and its dataloader_config), by the documentation of 1.15."""

DEEPSPEED_ARGUMENTS = _names(
    "zero_optimization.stage zero_optimization.overlap_comm zero_optimization.contiguous_gradients"
    " zero_optimization.reduce_scatter zero_optimization.reduce_bucket_size"
    " zero_optimization.allgather_bucket_size zero_optimization.stage3_prefetch_bucket_size"
    " zero_optimization.stage3_max_live_parameters zero_optimization.stage3_param_persistence_threshold"
    " zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.pin_memory"
    " zero_optimization.offload_param.device zero_optimization.round_robin_gradients"
    " train_micro_batch_size_per_gpu gradient_accumulation_steps bf16.enabled fp16.enabled"
    " fp16.initial_scale_power communication_data_type wall_clock_breakdown"
    " activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing"
    " gradient_clipping prescale_gradients steps_per_print"
)
"""Of DeepSpeed's configuration, by the documentation of 0.18; a dot leads into a section."""

MEGATRON_ARGUMENTS = _names(
    "micro_batch_size global_batch_size seq_length bf16 fp16 fp8 fp4 num_workers dataloader_type"
    " tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size"
    " expert_model_parallel_size sequence_parallel num_layers_per_virtual_pipeline_stage"
    " virtual_pipeline_model_parallel_size use_distributed_optimizer overlap_grad_reduce"
    " overlap_param_gather overlap_p2p_comm tp_comm_overlap ddp_bucket_size ddp_average_in_collective"
    " accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 align_grad_reduce align_param_gather"
    " recompute_granularity recompute_method recompute_num_layers recompute_activations"
    " distribute_saved_activations transformer_impl attention_backend use_flash_attn masked_softmax_fusion"
    " bias_gelu_fusion bias_swiglu_fusion bias_dropout_fusion apply_rope_fusion"
    " gradient_accumulation_fusion cross_entropy_loss_fusion cross_entropy_fusion_impl moe_grouped_gemm"
    " moe_permute_fusion moe_token_dispatcher_type enable_cuda_graph cuda_graph_impl manual_gc"
    " manual_gc_interval manual_gc_eval check_for_nan_in_loss_and_grad deterministic_mode log_interval"
    " timing_log_level barrier_with_L1_time eval_interval eval_iters save_interval async_save"
    " use_torch_fsdp2 cpu_offloading optimizer_cpu_offload empty_unused_memory_level initial_loss_scale"
    " make_vocab_size_divisible_by"
)
"""Of Megatron-LM's command line, by the names in its namespace (core 0.15)."""


class _Trainer(NamedTuple):
    """A class that runs training loops: its library, and how its arguments are read from an object of it."""

    name: str
    package: str
    arguments: Callable[[Any], dict[str, Argument]]


def _plain(value: object) -> Argument:
    """A number, a truth value or a short word; of other values that one is there. JSON has no infinite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    text = getattr(value, "value", value)  # of an enumeration
    if isinstance(text, str):
        return text if len(text) <= _LONGEST_TEXT else True
    if isinstance(value, list | tuple | dict | set):
        texts = " ".join(str(getattr(each, "value", each)) for each in value) if isinstance(value, list) else ""
        return texts if texts and len(texts) <= _LONGEST_TEXT else bool(value)
    return type(value).__name__


def _of_attributes(source: Any, names: list[str]) -> dict[str, Argument]:
    missing = object()
    found = {name: read(lambda name=name: getattr(source, name, missing)) for name in names}  # type: ignore[misc]
    return {name: _plain(value) for name, value in found.items() if value is not missing}


def _of_transformers(trainer: Any) -> dict[str, Argument]:
    return _of_attributes(trainer.args, TRANSFORMERS_ARGUMENTS)


def _of_lightning(trainer: Any) -> dict[str, Argument]:
    sources: dict[str, Callable[[], Any]] = {
        "num_devices": lambda: trainer.num_devices,
        "devices": lambda: trainer.num_devices,
        "strategy": lambda: (
            trainer.strategy.strategy_name
            if isinstance(getattr(trainer.strategy, "strategy_name", None), str)
            else type(trainer.strategy).__name__
        ),
        "detect_anomaly": lambda: trainer._detect_anomaly,
        "benchmark": lambda: sys.modules["torch"].backends.cudnn.benchmark,
        "deterministic": lambda: bool(sys.modules["torch"].are_deterministic_algorithms_enabled()),
        "inference_mode": lambda: trainer.evaluate_loop.inference_mode,
        "sync_batchnorm": lambda: trainer._accelerator_connector.sync_batchnorm,
        "enable_checkpointing": lambda: bool(trainer.checkpoint_callbacks),
    }
    found = _of_attributes(trainer, [name for name in LIGHTNING_ARGUMENTS if name not in sources])
    return found | {name: _plain(read(source)) for name, source in sources.items() if name in LIGHTNING_ARGUMENTS}


def _of_accelerate(accelerator: Any) -> dict[str, Argument]:
    found = _of_attributes(accelerator, ACCELERATE_ARGUMENTS)
    loader = getattr(accelerator, "dataloader_config", None)
    return found | (_of_attributes(loader, ACCELERATE_ARGUMENTS) if loader is not None else {})


def _of_deepspeed(engine: Any) -> dict[str, Argument]:
    config = engine.config if isinstance(getattr(engine, "config", None), dict) else engine._config._param_dict
    found: dict[str, Argument] = {}
    for name in DEEPSPEED_ARGUMENTS:
        value: Any = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = _plain(value)
    return found


_BY_CLASS = {
    "transformers.trainer.Trainer": _Trainer("transformers", "transformers", _of_transformers),
    "lightning.pytorch.trainer.trainer.Trainer": _Trainer("lightning", "lightning", _of_lightning),
    "pytorch_lightning.trainer.trainer.Trainer": _Trainer("lightning", "pytorch_lightning", _of_lightning),
    "deepspeed.runtime.engine.DeepSpeedEngine": _Trainer("deepspeed", "deepspeed", _of_deepspeed),
    "accelerate.accelerator.Accelerator": _Trainer("accelerate", "accelerate", _of_accelerate),
}
"""By the class of an object, or a base class of it; the first that is there counts, as Trainer uses Accelerator."""


def trainer_settings(candidates: list[Any]) -> TrainerSettings | None:
    """Settings of the trainer among objects that a training loop has in its variables; None without one."""
    classes = [(each, {f"{c.__module__}.{c.__qualname__}" for c in type(each).__mro__}) for each in candidates]
    for name, trainer in _BY_CLASS.items():
        for candidate, names in classes:
            if name in names:
                version = getattr(sys.modules.get(trainer.package), "__version__", None)
                return TrainerSettings(trainer.name, version, read(lambda c=candidate: trainer.arguments(c)) or {})  # type: ignore[misc]  # noqa: B023
    return _megatron_settings()


def is_trainer(kind: type) -> bool:
    """Whether a class is one whose arguments can be read."""
    return any(f"{each.__module__}.{each.__qualname__}" in _BY_CLASS for each in kind.__mro__)


def _megatron_settings() -> TrainerSettings | None:
    state = sys.modules.get("megatron.training.global_vars")
    arguments = getattr(state, "_GLOBAL_ARGS", None)
    if arguments is None:
        return None
    version = getattr(sys.modules.get("megatron.core"), "__version__", None)
    return TrainerSettings("megatron", version, _of_attributes(arguments, MEGATRON_ARGUMENTS))
