"""Settings of models, of their wrappers for data parallelism and of optimizers, read from the objects themselves.

Classes of torch's optional parts are looked for among the modules that are imported: nothing here imports one.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from stepscope.core.documents.training_settings import DdpSettings, FsdpSettings, ModelSettings, OptimizerSettings

T = TypeVar("T")

_MOST_MODULES = 4_000
"""Parts of a model that are looked at: each takes a microsecond."""
_MOST_CHECKED = 64
"""Parameters of a model whose memory format is looked at: it takes some microseconds for each."""

_MODES = {
    (False, False): "default",
    (False, True): "reduce-overhead",
    (True, True): "max-autotune",
    (True, False): "max-autotune-no-cudagraphs",
}
"""Modes of torch.compile by what they set of Inductor: max_autotune and triton.cudagraphs."""

_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"})


def read(setting: Callable[[], T]) -> T | None:
    """A setting; None where this torch does not have it, or does not tell it."""
    try:
        return setting()
    except Exception:  # AttributeError without torch, RuntimeError of two ways to set TF32 at once
        return None


def bool_or_none(value: object) -> bool | None:
    return None if value is None else bool(value)


def type_name(dtype: Any) -> str:
    """Name of a type as torch prints it, without the module."""
    return str(dtype).removeprefix("torch.")


def _type_or_none(dtype: Any) -> str | None:
    return None if dtype is None else type_name(dtype)


def optimizer_settings(optimizer: Any) -> OptimizerSettings:
    """Settings of an optimizer, or of the one that it wraps."""
    inner = getattr(optimizer, "optimizer", optimizer)
    inner = inner if hasattr(inner, "param_groups") else optimizer
    group = inner.param_groups[0]
    return OptimizerSettings(type(inner).__name__, bool_or_none(group.get("fused")), bool_or_none(group.get("foreach")))


def unwrapped(model: Any) -> Any:
    """The model inside of wrappers for data parallelism and compilation."""
    for _ in range(4):
        if type(model).__name__ not in _WRAPPERS:
            break
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    return model


def model_settings(model: Any) -> ModelSettings:
    """Settings of a model of torch, wrapped or not."""
    parameters = list(model.parameters())
    images = [parameter for parameter in parameters if parameter.dim() == 4][:_MOST_CHECKED]
    last = sys.modules["torch"].channels_last
    is_last = any(not each.is_contiguous() and each.is_contiguous(memory_format=last) for each in images)
    inner = unwrapped(model)
    parts = list(itertools.islice(model.modules(), _MOST_MODULES))
    compiled = next((part for part in parts if _is_compiled(part)), None)
    return ModelSettings(
        name=type(inner).__name__,
        parameter_types=sorted({type_name(parameter.dtype) for parameter in parameters}),
        memory_format=("channels_last" if is_last else "contiguous") if images else None,
        attention=next((name for part in parts if (name := _attention(part))), None),
        compiled=compiled is not None,
        compile_mode=None if compiled is None else read(lambda: _compile_mode(compiled)),
        checkpoints_activations=_checkpoints(parts),
    )


def _attention(model: Any) -> str | None:
    """What a model of transformers is configured to use."""
    name = getattr(vars(model).get("config"), "_attn_implementation", None)
    return name if isinstance(name, str) else None


def _is_compiled(part: Any) -> bool:
    return type(part).__name__ == "OptimizedModule" or vars(part).get("_compiled_call_impl") is not None


def _compile_mode(part: Any) -> str | None:
    context: Any = vars(part).get("dynamo_ctx")
    if context is None:
        return None
    config = context.compiler_config
    if config is None:
        callback = context.callback
        while hasattr(callback, "_torchdynamo_orig_backend"):
            callback = callback._torchdynamo_orig_backend
        return str(getattr(callback, "compiler_name", None) or getattr(callback, "__name__", "")) or None
    return _MODES[bool(config.get("max_autotune")), bool(config.get("triton.cudagraphs"))]


def _checkpoints(parts: list[Any]) -> bool | None:
    """Whether activations are computed again, as transformers' models and torch's wrapper say; None if none says it."""
    if any(type(part).__name__ == "CheckpointWrapper" for part in parts):
        return True
    flags = [flag for part in parts if isinstance(flag := vars(part).get("gradient_checkpointing"), bool)]
    return any(flags) if flags else None


def wrappers_in(model: Any) -> Iterator[DdpSettings | FsdpSettings]:
    """Settings of the wrappers for data parallelism that a model is, or has inside of torch.compile's."""
    outer = model._orig_mod if type(model).__name__ == "OptimizedModule" else model
    names = {each.__name__ for each in type(outer).__mro__}
    if "DistributedDataParallel" in names:
        yield _ddp_settings(outer)
    elif "FullyShardedDataParallel" in names:
        yield _fsdp1_settings(outer)
    elif any("FSDPModule" in {each.__name__ for each in type(part).__mro__} for part in _parts(outer)):
        yield _fsdp2_settings(outer)


def _parts(model: Any) -> Iterator[Any]:
    return itertools.islice(model.modules(), _MOST_MODULES)


def _ddp_settings(model: Any) -> DdpSettings:
    hooks = getattr(model, "_comm_hooks", None) or []
    hook = hooks[0][0] if hooks else None
    return DdpSettings(
        bucket_cap_mb=read(lambda: model.bucket_bytes_cap / 2**20),
        find_unused_parameters=bool_or_none(getattr(model, "find_unused_parameters", None)),
        static_graph=bool_or_none(getattr(model, "static_graph", None)),
        gradient_as_bucket_view=bool_or_none(getattr(model, "gradient_as_bucket_view", None)),
        broadcast_buffers=bool_or_none(getattr(model, "broadcast_buffers", None)),
        comm_hook=None if hook is None else str(getattr(hook, "__qualname__", type(hook).__name__)),
    )


def _num_layers(model: Any) -> int | None:
    """Length of the longest list of modules in a model."""
    return max((len(part) for part in _parts(model) if type(part).__name__ == "ModuleList"), default=None)


def _fsdp1_settings(model: Any) -> FsdpSettings:
    mixed = getattr(model, "mixed_precision", None)
    units = [part for part in _parts(model) if type(part) is type(model) and getattr(part, "_handle", True)]
    return FsdpSettings(
        version=1,
        num_units=len(units),
        num_layers=_num_layers(model),
        reshards_after_forward=read(lambda: model.sharding_strategy.name in {"FULL_SHARD", "HYBRID_SHARD"}),
        forward_prefetch=bool_or_none(getattr(model, "forward_prefetch", None)),
        backward_prefetch=read(lambda: model.backward_prefetch.name),
        limit_all_gathers=bool_or_none(getattr(model, "limit_all_gathers", None)),
        param_dtype=_type_or_none(getattr(mixed, "param_dtype", None)),
        reduce_dtype=_type_or_none(getattr(mixed, "reduce_dtype", None)),
        offloads_to_cpu=read(lambda: bool(model.cpu_offload.offload_params)),
    )


def _fsdp2_settings(model: Any) -> FsdpSettings:
    states = [state for part in _parts(model) if (state := read(lambda part=part: part._get_fsdp_state())) is not None]  # type: ignore[misc]
    groups = [group for state in states if (group := _parameter_group(state)) is not None]
    first = groups[0] if groups else None
    policy = getattr(first, "mp_policy", None)
    return FsdpSettings(
        version=2,
        num_units=len(groups),
        num_layers=_num_layers(model),
        reshards_after_forward=None if first is None else any(group.post_forward_mesh_info for group in groups),
        forward_prefetch=read(lambda: any(state._states_to_forward_prefetch for state in states)),
        backward_prefetch="explicit" if read(lambda: any(s._states_to_backward_prefetch for s in states)) else None,
        param_dtype=_type_or_none(getattr(policy, "param_dtype", None)),
        reduce_dtype=_type_or_none(getattr(policy, "reduce_dtype", None)),
        offloads_to_cpu=read(lambda: type(first.offload_policy).__name__ == "CPUOffloadPolicy") if first else None,
    )


def _parameter_group(state: Any) -> Any:
    """The parameters that a unit of fully_shard gathers; None of one that has none of its own."""
    group = getattr(state, "_fsdp_param_group", None)
    groups = getattr(state, "_fsdp_param_groups", None)
    return group or (groups[0] if groups else None)


def reduces_gradients(model: Any) -> bool | None:
    """Whether a backward pass that begins now reduces the gradients of all ranks; None of a model without wrapper."""
    outer = model._orig_mod if type(model).__name__ == "OptimizedModule" else model
    for name in ("require_backward_grad_sync", "_sync_gradients"):
        if isinstance(value := getattr(outer, name, None), bool):
            return value
    with suppress(Exception):
        group = _parameter_group(outer._get_fsdp_state()) or next(
            filter(None, (_parameter_group(part._get_fsdp_state()) for part in outer.modules()))
        )
        return bool(group.reduce_grads)
    return None
