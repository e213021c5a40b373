"""How are gradients summed over data-parallel ranks when nothing is to hide it, and when are they summed no longer?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.nn.parallel import DistributedDataParallel

from stepscope.reference_workloads.gradient_norm import local_gradient

DEFAULT_BUCKET_MB = 25.0
"""As DistributedDataParallel's."""

_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""From 2.13 on torch warns of the old name."""


WATCHDOG_SECONDS = 0.5
"""ProcessGroupNCCL's watchdog looks at its collectives ten times a second (kWatchdogThreadSleepMillis)."""


def forget_first_reductions(modules: Iterable[nn.Module], device: torch.device) -> None:
    """After the first step: wait until DDP's first bucket can be freed. Does nothing on CPU or without DDP.

    DDP's first backward pass fills one bucket as large as all parameters. The second forward pass makes the buckets
    that stay, and drops that one; but the first all-reduce still holds it, until NCCL's watchdog has seen its end and
    another collective is launched. DDP waits for the reduction's future, which does not let go of it. Whether both lie
    in memory at the second step's peak, 4 bytes a parameter more than ever after, would be a matter of how far the
    host has run ahead. (torch: reducer.cpp, `rebuild_buckets`; ProcessGroupNCCL, `stashed_for_allocator_safety_`.)
    """
    if device.type == "cuda" and any(isinstance(module, DistributedDataParallel) for module in modules):
        torch.cuda.synchronize(device)
        time.sleep(WATCHDOG_SECONDS)


@torch.no_grad()
def reduce_gradients(modules: Iterable[nn.Module], group: dist.ProcessGroup, bucket_mb: float | None) -> None:
    """Mean over the group's ranks of all gradients, bucket by bucket, as DDP does during the backward pass."""
    gradients = [
        local_gradient(parameter)
        for module in modules
        for parameter in module.parameters()
        if parameter.grad is not None
    ]
    for bucket in _buckets(gradients, (DEFAULT_BUCKET_MB if bucket_mb is None else bucket_mb) * 2**20):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        flat /= group.size()
        parts = torch.split(flat, [gradient.numel() for gradient in bucket])
        torch._foreach_copy_(bucket, [part.view_as(gradient) for part, gradient in zip(parts, bucket, strict=True)])


def _buckets(gradients: Iterable[torch.Tensor], bucket_bytes: float) -> Iterator[list[torch.Tensor]]:
    """Consecutive gradients of at most so many bytes, and at least one."""
    bucket: list[torch.Tensor] = []
    filled = 0
    for gradient in gradients:
        if bucket and filled + gradient.nbytes > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(gradient)
        filled += gradient.nbytes
    if bucket:
        yield bucket


class BlockingReduceScatter(ReduceScatter):
    """FSDP's reduction of a block's gradients, during which the block before does not compute."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Room for what is sent and received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        work: dist.Work | None = _reduce_scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
        if input_tensor.device.type == "cuda":
            # FSDP calls this on a stream of its own; the backward pass runs on the default one.
            torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
        return work


def expose_communication(stage: nn.Module, *, overlaps_reduction: bool, prefetches: bool) -> None:
    """Have a stage under fully_shard or `replicate` reduce, or gather, where no computation hides it."""
    sharded = [module for module in stage.modules() if isinstance(module, FSDPModule)]
    if not overlaps_reduction:
        for module in sharded:
            module.set_custom_reduce_scatter(BlockingReduceScatter())
    if not prefetches:
        for module in sharded:
            # Torch gathers the next block's parameters by itself unless told of others: of itself, gathered already.
            module.set_modules_to_backward_prefetch([module])
            # Gathers are queued behind the computation before them instead of on a stream of their own.
            module._set_unshard_async_op(True)
