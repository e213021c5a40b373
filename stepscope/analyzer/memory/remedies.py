"""What to change, and what is it expected to save? What mends the cause comes first, then the largest saving."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.core.memory import Category, Fragmentation, Growth, OomCause, OutOfMemory, Remedy, own_call

_WORTH = 0.02
"""Of the peak: what saves less is not named."""
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*True", re.IGNORECASE)


def remedies_for(
    by_category: Mapping[Category, int],
    fragmentation: Fragmentation,
    growth: Growth | None,
    oom: OutOfMemory | None,
    settings: str,
) -> list[Remedy]:
    """For a job of data-parallel ranks, savings of ZeRO are those of many ranks; of two they are half.

    Args:
        by_category: bytes at the peak.
        fragmentation: at the end.
        growth: from step to step.
        oom: why memory ran out.
        settings: of the allocator.
    """
    first: list[Remedy] = []
    if oom is not None and oom.cause is OomCause.OTHER_PROCESS:
        first.append(Remedy("end the other processes on this GPU (nvidia-smi)", oom.non_torch_bytes))
    if growth is not None:
        place = own_call(growth.stack)
        where = f" at {place}" if place else ""
        change = f"do not keep what is allocated{where}: append loss.item() or loss.detach(), not the loss"
        first.append(Remedy(change, growth.grown_bytes))
    peak = sum(by_category.values())
    optimizer, gradients = by_category.get(Category.OPTIMIZER, 0), by_category.get(Category.GRADIENTS, 0)
    parameters, activations = by_category.get(Category.PARAMETERS, 0), by_category.get(Category.ACTIVATIONS, 0)
    activations = max(activations - (growth.grown_bytes if growth is not None else 0), 0)
    rest = [
        Remedy("ZeRO 1: shard the optimizer's state over data-parallel ranks", optimizer),
        Remedy("ZeRO 2: shard gradients as well", optimizer + gradients),
        Remedy("ZeRO 3 (FSDP): shard parameters as well", optimizer + gradients + parameters),
        Remedy("halve the micro-batch", activations // 2),
        Remedy("recompute activations (checkpoint each layer)", activations * 3 // 4),
    ]
    if not _EXPANDABLE.search(settings):
        change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free pieces join"
        is_cause = oom is not None and oom.cause is OomCause.FRAGMENTATION
        (first if is_cause else rest).append(Remedy(change, fragmentation.in_used_segments_bytes))
    worth = [remedy for remedy in rest if remedy.saved_bytes is not None and remedy.saved_bytes > _WORTH * peak]
    return [*first, *sorted(worth, key=lambda remedy: -(remedy.saved_bytes or 0))]
