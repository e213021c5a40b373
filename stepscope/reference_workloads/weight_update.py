"""How do gradients become new weights? Unscaled, clipped, and not at all where they overflowed."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from stepscope.reference_workloads.gradient_norm import gradient_norm, multiply_gradients
from stepscope.reference_workloads.loss_scale import LossScale
from stepscope.reference_workloads.recipe import Recipe

_TINY = 1e-6  # as torch's clip_grad_norm_ adds to the norm


class WeightUpdate:
    """Takes the optimizer's steps. Asks for the gradients' norm only where the recipe or the loss scale need it."""

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
        multiply_gradients(parameters, factor)
        self._optimizer.step()

    def norms(self) -> list[float]:
        """Of each step's gradients before clipping; empty when nobody needed them. Waits for the device."""
        return torch.stack(self._norms).tolist() if self._norms else []
