"""Which layouts does torch not do, or do wrongly? Each by its name, with the reason.

What is refused here was seen to fail, or to give other gradients than one process; docs/workloads.md has the table.
"""

from __future__ import annotations

from typing import Protocol

from stepscope.core.counting import counted
from stepscope.core.errors import UsageError
from stepscope.reference_workloads.schedules import (
    MULTI_STAGE_SCHEDULES,
    NUM_CHUNKS,
    SPLIT_BACKWARD_SCHEDULES,
)

_DDP_MULTI_STAGE = (
    "its reducer fails an internal assertion (params_.size() == rebuilt_param_indices_.size()) once torch has tried the"
    " stages' shapes out"
)
_DDP_SPLIT_BACKWARD = (
    "its reducer takes the gradients of activations, which that schedule computes first, for the whole backward pass,"
    " and gives wrong gradients without an error"
)


class Layout(Protocol):
    """What of a plan is looked at."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def zero(self) -> int | None: ...
    @property
    def schedule(self) -> str: ...
    @property
    def num_micro_batches(self) -> int: ...
    @property
    def is_multi_stage(self) -> bool: ...
    @property
    def sequence_parallel(self) -> bool: ...
    @property
    def loss_parallel(self) -> bool: ...
    @property
    def replicate(self) -> bool: ...
    @property
    def cpu_offload(self) -> bool: ...


def refuse_unsound(layout: Layout) -> None:
    """Raises UsageError when torch does not do this layout, or does it wrongly; the message says why."""
    _refuse_tensor_parallel(layout)
    _refuse_schedule(layout)
    _refuse_data_parallel(layout)


def refuse_for_images(layout: Layout) -> None:
    """Raises UsageError when a ResNet is to be laid out otherwise than by DistributedDataParallel."""
    for is_asked, what, why in (
        (
            layout.tp > 1,
            "tensor parallelism",
            "it cuts a transformer's matrices; convolutions have no such plan in torch",
        ),
        (layout.pp > 1, "a pipeline", "what flows between its stages has the shape of hidden text"),
        (
            layout.zero in {2, 3},
            f"zero {layout.zero}",
            "it means fully_shard, and 26 million parameters fit everywhere",
        ),
        (layout.replicate, "replicate", "it is made of fully_shard"),
    ):
        if is_asked:
            raise UsageError(
                f"resnet50 knows no {what.removeprefix('a ')}: {why}", what_next="use --dp N with --zero 0 or 1 alone"
            )


def _refuse_tensor_parallel(layout: Layout) -> None:
    for name in ("sequence_parallel", "loss_parallel"):
        if getattr(layout, name) and layout.tp == 1:
            raise UsageError(
                f"{name.replace('_', ' ')} cuts over tensor-parallel ranks, and tp is 1", what_next="use --tp 2 or more"
            )


def _refuse_schedule(layout: Layout) -> None:
    pp, schedule, micro_batches = layout.pp, layout.schedule, layout.num_micro_batches
    if schedule in MULTI_STAGE_SCHEDULES and pp == 1:
        raise UsageError(
            f"the {schedule} schedule spreads stages over ranks, and pp is 1", what_next="use --pp 2 or more"
        )
    if pp > 1 and schedule == "1f1b" and micro_batches < pp:
        raise UsageError(
            f"1f1b needs at least as many micro-batches as stages ({pp}), not {micro_batches}",
            what_next=f"use --micro-batches {pp}",
        )
    if schedule == "dualpipe-v" and micro_batches < NUM_CHUNKS * pp:
        raise UsageError(
            f"dualpipe-v needs at least as many micro-batches as stages ({NUM_CHUNKS * pp}), not {micro_batches}",
            what_next=f"use --micro-batches {NUM_CHUNKS * pp}",
        )
    num_rounds = max(1, micro_batches // pp)
    if schedule in {"interleaved", "zero-bubble"} and micro_batches % num_rounds:
        raise UsageError(
            f"{counted(micro_batches, 'micro-batch')} cannot be dealt in "
            f"{counted(num_rounds, 'round')} over pp {pp}, which the"
            f" {schedule} schedule does",
            what_next=f"use a multiple of {pp}",
        )


def _refuse_data_parallel(layout: Layout) -> None:
    zero = layout.zero
    if zero and layout.dp == 1:
        raise UsageError(
            f"zero {zero} shards over data-parallel ranks, and dp is 1", what_next="use --zero 0 or --dp 2"
        )
    if layout.replicate and (layout.dp == 1 or zero != 0):
        raise UsageError(
            "replicate keeps all on every data-parallel rank, which is zero 0 with dp above 1",
            what_next="use --zero 0 and --dp 2 or more",
        )
    if layout.cpu_offload and zero not in {2, 3}:
        raise UsageError(
            f"only fully_shard keeps parameters in host memory, and zero {zero} is not made of it",
            what_next="use --zero 2 or 3 and --dp 2 or more",
        )
    if layout.dp == 1 or not layout.is_multi_stage:
        return
    splits_backward = layout.schedule in SPLIT_BACKWARD_SCHEDULES
    if zero in {0, 1} and not layout.replicate:
        raise UsageError(
            f"zero {zero} means DistributedDataParallel, and the {layout.schedule} schedule holds several stages on a"
            f" rank: {_DDP_SPLIT_BACKWARD if splits_backward else _DDP_MULTI_STAGE}",
            what_next="use --zero 2, --zero 0 --replicate, or the 1f1b or gpipe schedule",
        )
    if zero == 3 and splits_backward:
        raise UsageError(
            f"zero 3 frees parameters after the forward pass, and with the {layout.schedule} schedule, which computes"
            " gradients of activations and weights apart, torch then gives wrong gradients without an error",
            what_next="use --zero 2",
        )
