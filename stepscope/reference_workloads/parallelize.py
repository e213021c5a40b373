"""How is a stage sharded over tensor- and data-parallel ranks, and what optimizes it?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.precision import low_precision
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.recipe import Recipe
from stepscope.reference_workloads.recompute import recompute
from stepscope.reference_workloads.reduction import expose_communication
from stepscope.reference_workloads.stage import Stage
from stepscope.reference_workloads.tensor_parallel import cut_stage


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
        options["offload_policy"] = _offload_policy(plan, mesh)
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


def _offload_policy(plan: ParallelPlan, mesh: DeviceMesh) -> OffloadPolicy:
    if not plan.cpu_offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")


def make_optimizer(
    modules: Iterable[nn.Module], plan: ParallelPlan, preset: Preset, mesh: DeviceMesh
) -> torch.optim.Optimizer:
    """AdamW over all parameters of this rank's stages."""
    groups = _parameters_by_mesh(parameter for module in modules for parameter in module.parameters())
    if plan.zero == 1:
        return _zero_one(groups, preset, mesh)
    return torch.optim.AdamW(groups, lr=preset.learning_rate, fused=True)


def _zero_one(groups: list[dict[str, Any]], preset: Preset, mesh: DeviceMesh) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        # torch 2.13 warns of torch.jit.script, which this package of its own still uses.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(
        groups, optimizer_class=torch.optim.AdamW, process_group=mesh.get_group("dp"), lr=preset.learning_rate
    )


def _parameters_by_mesh(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """One parameter group a mesh: fused and foreach kernels refuse tensors of different meshes together."""
    groups: dict[str, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = str(parameter.device_mesh) if isinstance(parameter, DTensor) else "plain"
        groups.setdefault(key, []).append(parameter)
    return [{"params": members} for members in groups.values()]
