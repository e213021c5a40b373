"""How large are the gradients of the whole model, however its parameters lie over ranks?

`torch.nn.utils.clip_grad_norm_` fails over tensor parallelism with FSDP ("must have the same mesh") and knows no
pipeline. Here each rank adds the squares of what it holds; what is cut over a mesh dimension is summed over that
dimension, what is whole on every rank counts once, and stages are summed over pp.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


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
            by_groups.setdefault(key, (groups, []))[1].append(local_gradient(parameter))
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
def multiply_gradients(parameters: Iterable[nn.Parameter], factor: torch.Tensor) -> None:
    """In place, by a scalar tensor."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = local_gradient(parameter)
            by_device.setdefault(gradient.device, []).append(gradient)
    for device, gradients in by_device.items():
        torch._foreach_mul_(gradients, factor.to(device))


def local_gradient(parameter: nn.Parameter) -> torch.Tensor:
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
    """What has the mesh and placements of a parameter that is cut; None for a whole one."""
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
