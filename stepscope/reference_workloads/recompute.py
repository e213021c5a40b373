"""Which activations are computed again in the backward pass instead of kept?

Rivals wrap blocks in `checkpoint_wrapper`, which changes parameter names; here a block's forward method is replaced, so
that weights, checkpoints and gradients keep their names, and what FSDP hooks to the block stays outside.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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
    """Make the block drop its activations: all inside it ("full"), or those of cheap operators ("selective")."""
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
