"""Mixed precision: the dtype of matrix products, and the loss scale that keeps float16 gradients from vanishing.

Weights, gradients and optimizer stay in float32.

torch's GradScaler keeps its decision on one process and knows no pipeline: a stage whose gradients overflowed would
skip a step that the other stages take. Here all ranks of the job agree first.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from stepscope.reference_workloads.plan import Preset
from stepscope.reference_workloads.recipe import Recipe

_COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def compute_dtype(preset: Preset) -> torch.dtype:
    """Dtype of a model's matrix products."""
    return _COMPUTE_DTYPES[preset.dtype]


def low_precision(preset: Preset) -> torch.dtype | None:
    """Dtype of a model's matrix products where it is not that of the weights; None where it is."""
    dtype = compute_dtype(preset)
    return None if dtype is torch.float32 else dtype


GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
"""Both as torch.amp.GradScaler has them."""


class LossScale:
    """Dynamic loss scale of a float16 model: shrinks at overflow, grows after many good steps; else 1."""

    def __init__(self, preset: Preset, recipe: Recipe) -> None:
        self.is_dynamic = preset.dtype == "float16"
        self.value = recipe.initial_loss_scale if self.is_dynamic else 1.0
        self.num_good_steps = 0
        self.num_skipped_steps = 0
        self._growth_interval = recipe.loss_scale_growth_interval

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What the backward pass starts from."""
        return loss * self.value if self.is_dynamic else loss

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that `scaled` was given."""
        return loss / self.value if self.is_dynamic else loss

    def accepts(self, norm: torch.Tensor) -> bool:
        """Whether no rank's gradients overflowed, going by their norm; the scale follows. All ranks ask, all agree.

        Waits for the device, as each skipped step must be known on the host.
        """
        if not self.is_dynamic:
            return True
        overflowed = (~torch.isfinite(norm)).to(torch.float32)
        dist.all_reduce(overflowed, op=dist.ReduceOp.MAX)
        is_good = not overflowed.item()
        self._update(is_good=is_good)
        return is_good

    def _update(self, *, is_good: bool) -> None:
        if not is_good:
            self.num_skipped_steps += 1
            self.num_good_steps = 0
            self.value *= BACKOFF_FACTOR
            return
        self.num_good_steps += 1
        if self.num_good_steps == self._growth_interval:
            self.num_good_steps = 0
            self.value *= GROWTH_FACTOR
