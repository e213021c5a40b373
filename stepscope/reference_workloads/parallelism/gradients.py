"""Gradients over ranks: their reduction outside the backward pass, their global norm, clipping, and the weight update.

`torch.nn.utils.clip_grad_norm_` fails over tensor parallelism with FSDP ("must have the same mesh") and knows no
pipeline. Here each rank adds the squares of what it holds; what is cut over a mesh dimension is summed over that
dimension, what is whole on every rank counts once, and stages are summed over pp.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from stepscope.reference_workloads.models.mixed_precision import LossScale
from stepscope.reference_workloads.recipe import Recipe

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
        _local_gradient(parameter)
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


class _BlockingReduceScatter(ReduceScatter):
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
    """Parallelism: have a stage under fully_shard or `replicate` reduce, or gather, where no computation hides it."""
    sharded = [module for module in stage.modules() if isinstance(module, FSDPModule)]
    if not overlaps_reduction:
        for module in sharded:
            module.set_custom_reduce_scatter(_BlockingReduceScatter())
    if not prefetches:
        for module in sharded:
            # Torch prefetches the next block unless another one is given: here the block itself, gathered already.
            module.set_modules_to_backward_prefetch([module])
            # Gathers are queued behind the computation before them instead of on a stream of their own.
            module._set_unshard_async_op(True)


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], mesh: DeviceMesh, device: torch.device) -> torch.Tensor:
    """Euclidean norm of all gradients of the job: a float32 scalar on `device`, the same on every rank.

    All ranks must ask at the same time.

    Args:
        parameters: all that this rank trains, in the same order on ranks of the same stage.
        mesh: the job's, with a dimension "pp".
        device: where the mesh communicates.
    """
    by_groups: dict[tuple[str, ...], tuple[list[dist.ProcessGroup], list[torch.Tensor]]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            groups = _groups_it_is_cut_over(parameter)
            key = tuple(group.group_name for group in groups)
            by_groups.setdefault(key, (groups, []))[1].append(_local_gradient(parameter))
    total = torch.zeros((), dtype=torch.float32, device=device)
    for groups, gradients in by_groups.values():
        norms = torch.stack(torch._foreach_norm([gradient.float() for gradient in gradients]))
        square = norms.square().sum().to(device)
        for group in groups:
            dist.all_reduce(square, group=group)
        total += square
    if mesh["pp"].size() > 1:
        dist.all_reduce(total, group=mesh.get_group("pp"))
    return total.sqrt()


@torch.no_grad()
def _multiply_gradients(parameters: Iterable[nn.Parameter], factor: torch.Tensor) -> None:
    """In place, by a scalar tensor."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = _local_gradient(parameter)
            by_device.setdefault(gradient.device, []).append(gradient)
    for device, gradients in by_device.items():
        torch._foreach_mul_(gradients, factor.to(device))


def _local_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's part of the gradient, sharing its storage; one cut otherwise than its parameter is moved first."""
    gradient: Any = parameter.grad
    if not isinstance(gradient, DTensor):
        return gradient  # type: ignore[no-any-return]  # a plain tensor
    assert isinstance(parameter, DTensor)
    if gradient.placements != parameter.placements:  # e.g. not summed up yet, after sequence parallelism
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient.to_local()  # type: ignore[no-any-return]  # DTensor's methods are not typed


def layout_of(parameter: nn.Parameter) -> Any:
    """Mesh and placements of a sharded parameter; None for a whole one."""
    if isinstance(parameter, DTensor):
        return parameter._spec
    # DDP trains local shards of tensor-parallel parameters and keeps their layout beside them.
    return getattr(parameter, "_st_info", None)


def _groups_it_is_cut_over(parameter: nn.Parameter) -> list[dist.ProcessGroup]:
    layout = layout_of(parameter)
    if layout is None:
        return []
    return [
        layout.mesh.get_group(dimension)
        for dimension, placement in enumerate(layout.placements)
        if not placement.is_replicate()
    ]


_TINY = 1e-6  # as torch's clip_grad_norm_ adds to the norm


class WeightUpdate:
    """Optimizer step over sharded gradients, with their norm, clipping and loss scale where needed."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        mesh: DeviceMesh,
        device: torch.device,
        recipe: Recipe,
        loss_scale: LossScale,
    ) -> None:
        self._optimizer = optimizer
        self._mesh = mesh
        self._device = device
        self._max_norm = recipe.max_gradient_norm
        self._loss_scale = loss_scale
        self._norms: list[torch.Tensor] = []

    def take(self) -> None:
        """One step, or none when a gradient anywhere overflowed."""
        if self._max_norm is None and not self._loss_scale.is_dynamic:
            self._optimizer.step()
            return
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        factor = torch.full((), 1 / self._loss_scale.value, device=self._device)
        norm = gradient_norm(parameters, self._mesh, self._device) * factor
        self._norms.append(norm)
        if not self._loss_scale.accepts(norm):
            return
        if self._max_norm is not None:
            factor = factor * (self._max_norm / (norm + _TINY)).clamp(max=1.0)
        _multiply_gradients(parameters, factor)
        self._optimizer.step()

    def norms(self) -> list[float]:
        """Of each step's gradients before clipping; empty when nobody needed them. Waits for the device."""
        return torch.stack(self._norms).tolist() if self._norms else []


_WRAPPER_PARTS = {"module", "_checkpoint_wrapped_module", "_orig_mod"}


def named_parameters(modules: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """All parameters that this rank trains, by their name in the model before sharding.

    To be asked before the first forward pass: DDP over tensor-parallel parameters takes them out of the module then.
    """
    found = (pair for module in modules for pair in module.named_parameters())
    return {uncut_name(name): parameter for name, parameter in found}


def uncut_name(name: str) -> str:
    """A parameter's name in the uncut model: without the prefixes of DDP, checkpointing and torch.compile."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)
