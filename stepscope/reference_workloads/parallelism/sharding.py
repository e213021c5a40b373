"""Sharding of a stage: tensor parallelism, activation checkpointing, FSDP or DDP, and its optimizer.

Under tensor parallelism activations stay plain tensors between modules: whole ones, or with sequence parallelism this
rank's part. Other tools checkpoint activations by `checkpoint_wrapper`, which changes parameter names; here a block's
forward method is replaced, so that weights, checkpoints and gradients keep their names, and what FSDP hooks to the
block stays outside.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor import parallel as tensor_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stepscope.reference_workloads.models.mixed_precision import low_precision
from stepscope.reference_workloads.models.transformer import Stage
from stepscope.reference_workloads.parallelism.gradients import expose_communication
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe


def shard_stage(stage: Stage, plan: ParallelPlan, preset: Preset, recipe: Recipe, mesh: DeviceMesh) -> nn.Module:
    """The stage with its weights sharded over tp, then over dp as the plan's zero level says.

    In between its blocks are made to recompute and to be compiled as the recipe says: inside what FSDP hooks to them.
    All ranks hold the same weights before, so nothing is sent.
    """
    if plan.tp > 1:
        cut_stage(stage, plan, mesh["tp"])
    for block in stage.blocks.values():
        recompute(block, recipe.activation_checkpointing)
        if recipe.compiles:
            block.forward = torch.compile(block.forward)
    if plan.dp == 1:
        return stage
    if plan.zero in {0, 1} and not plan.replicate:
        return replicate_by_ddp(stage, plan, recipe, mesh)
    policy = MixedPrecisionPolicy(param_dtype=low_precision(preset), reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh["dp"], "mp_policy": policy}
    shard: Any = fully_shard
    if plan.replicate:
        from torch.distributed._composable.replicate_with_fsdp import replicate as shard
    else:
        options["reshard_after_forward"] = plan.zero == 3
        if plan.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    # What comes out of a cut head is a view of a DTensor's part; nothing here writes to it.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view")
    for block in stage.blocks.values():
        shard(block, **options)
    shard(stage, **options)
    expose_communication(stage, overlaps_reduction=recipe.overlaps_reduction, prefetches=recipe.prefetches)
    return stage


def replicate_by_ddp(model: nn.Module, plan: ParallelPlan, recipe: Recipe, mesh: DeviceMesh) -> nn.Module:
    """The model whole on every data-parallel rank."""
    if plan.dp == 1 or not recipe.overlaps_reduction:
        return model  # DDP always overlaps; the gradients are reduced by `reduce_gradients` instead
    # device_mesh, not process_group: only so does DDP accept tensor-parallel parameters.
    return DistributedDataParallel(model, device_mesh=mesh["dp"], bucket_cap_mb=recipe.bucket_mb)


def make_optimizer(
    modules: Iterable[nn.Module], plan: ParallelPlan, preset: Preset, mesh: DeviceMesh
) -> torch.optim.Optimizer:
    """AdamW over this rank's sharded parameters, or ZeroRedundancyOptimizer."""
    groups = _parameters_by_mesh(parameter for module in modules for parameter in module.parameters())
    if plan.zero == 1:
        with warnings.catch_warnings():
            # torch 2.13 warns of torch.jit.script, which this package of its own still uses.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(
            groups, optimizer_class=torch.optim.AdamW, process_group=mesh.get_group("dp"), lr=preset.learning_rate
        )
    return torch.optim.AdamW(groups, lr=preset.learning_rate, fused=True)


def _parameters_by_mesh(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """One parameter group a mesh: fused and foreach kernels refuse tensors of different meshes together."""
    groups: dict[str, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = str(parameter.device_mesh) if isinstance(parameter, DTensor) else "plain"
        groups.setdefault(key, []).append(parameter)
    return [{"params": members} for members in groups.values()]


def cut_stage(stage: Stage, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """Replace the stage's parameters by DTensors on the tp mesh. All ranks hold the same weights, so none are sent."""
    between: Placement = Shard(1) if plan.sequence_parallel else Replicate()
    for block in stage.blocks.values():
        tensor_parallel.parallelize_module(block, mesh, _block_cut(block, between, plan), src_data_rank=None)
    if styles := _ends_cut(stage, between, plan):
        tensor_parallel.parallelize_module(stage, mesh, styles, src_data_rank=None)


def _block_cut(block: nn.Module, between: Placement, plan: ParallelPlan) -> dict[str, tensor_parallel.ParallelStyle]:
    """Megatron's cut: two all-reduces forwards and two backwards a block, or gathers and reduce-scatters for them."""
    styles: dict[str, tensor_parallel.ParallelStyle] = {
        "attention.qkv": tensor_parallel.ColwiseParallel(input_layouts=between),
        "attention.out": tensor_parallel.RowwiseParallel(output_layouts=between),
    }
    if hasattr(block, "feed_forward"):
        # Gathered once for both matrices, whose gradients are added before they are reduced.
        styles["feed_forward"] = tensor_parallel.PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),)
        )
        styles["feed_forward.gate"] = tensor_parallel.ColwiseParallel()
        styles["feed_forward.up"] = tensor_parallel.ColwiseParallel()
        styles["feed_forward.down"] = tensor_parallel.RowwiseParallel(output_layouts=between)
    else:
        styles["up"] = tensor_parallel.ColwiseParallel(input_layouts=between)
        styles["down"] = tensor_parallel.RowwiseParallel(output_layouts=between)
    if plan.sequence_parallel:
        styles["norm1"] = styles["norm2"] = tensor_parallel.SequenceParallel(use_local_output=True)
    return styles


def _ends_cut(stage: Stage, between: Placement, plan: ParallelPlan) -> dict[str, tensor_parallel.ParallelStyle]:
    """Without sequence or loss parallelism both ends are whole on every rank."""
    styles: dict[str, tensor_parallel.ParallelStyle] = {}
    if plan.sequence_parallel and stage.tokens is not None:
        styles["tokens"] = tensor_parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if plan.sequence_parallel and stage.positions is not None:
        styles["positions"] = tensor_parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    if plan.sequence_parallel and stage.norm is not None:
        styles["norm"] = tensor_parallel.SequenceParallel(use_local_output=True)
    if (plan.sequence_parallel or plan.loss_parallel) and stage.head is not None:
        logits: Placement = Shard(-1) if plan.loss_parallel else Replicate()
        styles["head"] = tensor_parallel.ColwiseParallel(input_layouts=between, output_layouts=logits)
    return styles


_KEPT_NAMES = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
"""Dear to compute: all else of a block is pointwise or a reduction."""

_KEPT = frozenset(getattr(torch.ops.aten, name).default for name in _KEPT_NAMES if hasattr(torch.ops.aten, name))


def recompute(block: nn.Module, how: str) -> None:
    """Parallelism: have a block drop its activations: all ("full"), or those of cheap operators ("selective")."""
    if how == "none":
        return
    forward = block.forward
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # nothing in a block is random
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    block.forward = recomputed


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
