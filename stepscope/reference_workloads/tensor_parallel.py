"""How is a stage cut over tensor-parallel ranks, with the sequence cut between the matrices or not?

Activations stay plain tensors between modules: whole ones, or with sequence parallelism this rank's part.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.stage import Stage


def cut_stage(stage: Stage, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """Replace the stage's parameters by DTensors on the tp mesh. All ranks hold the same weights, so none are sent."""
    between: Placement = Shard(1) if plan.sequence_parallel else Replicate()
    for block in stage.blocks.values():
        _cut(block, _block_cut(block, between, plan), mesh)
    _cut(stage, _ends_cut(stage, between, plan), mesh)


def _cut(module: nn.Module, styles: dict[str, ParallelStyle], mesh: DeviceMesh) -> None:
    if styles:
        parallelize_module(module, mesh, styles, src_data_rank=None)


def _block_cut(block: nn.Module, between: Placement, plan: ParallelPlan) -> dict[str, ParallelStyle]:
    """Megatron's cut: two all-reduces forwards and two backwards a block, or gathers and reduce-scatters for them."""
    styles: dict[str, ParallelStyle] = {
        "attention.qkv": ColwiseParallel(input_layouts=between),
        "attention.out": RowwiseParallel(output_layouts=between),
    }
    if hasattr(block, "feed_forward"):
        # Gathered once for both matrices, whose gradients are added before they are reduced.
        styles["feed_forward"] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        styles["feed_forward.gate"] = ColwiseParallel()
        styles["feed_forward.up"] = ColwiseParallel()
        styles["feed_forward.down"] = RowwiseParallel(output_layouts=between)
    else:
        styles["up"] = ColwiseParallel(input_layouts=between)
        styles["down"] = RowwiseParallel(output_layouts=between)
    if plan.sequence_parallel:
        styles["norm1"] = styles["norm2"] = SequenceParallel(use_local_output=True)
    return styles


def _ends_cut(stage: Stage, between: Placement, plan: ParallelPlan) -> dict[str, ParallelStyle]:
    """Without sequence or loss parallelism both ends are whole on every rank."""
    styles: dict[str, ParallelStyle] = {}
    if plan.sequence_parallel and stage.tokens is not None:
        styles["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if plan.sequence_parallel and stage.positions is not None:
        styles["positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    if plan.sequence_parallel and stage.norm is not None:
        styles["norm"] = SequenceParallel(use_local_output=True)
    if (plan.sequence_parallel or plan.loss_parallel) and stage.head is not None:
        logits: Placement = Shard(-1) if plan.loss_parallel else Replicate()
        styles["head"] = ColwiseParallel(input_layouts=between, output_layouts=logits)
    return styles
