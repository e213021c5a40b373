"""Changes that save GPU memory, by what held it and why it ran out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from stepscope.core.documents.memory import (
    Fragmentation,
    Growth,
    JobKind,
    MemoryCategory,
    OomCause,
    OutOfMemory,
    Remedy,
    own_call,
)

_MIN_SAVING = 0.02
"""Smallest saving to report, as a share of the peak."""
_OVER_RANKS = "ZeRO"
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*True", re.IGNORECASE)


def remedies_for(
    by_category: Mapping[MemoryCategory, int],
    fragmentation: Fragmentation,
    growth: Growth | None,
    oom: OutOfMemory | None,
    settings: str,
    job: JobKind = JobKind.TRAINING,
    *,
    is_alone: bool = False,
) -> list[Remedy]:
    """Changes that save memory: those for the cause first, then by saving, given the bytes by category at the peak.

    Only a training job gets advice for training, and ZeRO's not one that shows no other rank (`is_alone`).
    """
    first: list[Remedy] = []
    if oom is not None and oom.cause is OomCause.OTHER_PROCESS:
        first.append(Remedy("end the other processes on this GPU (nvidia-smi)", oom.non_torch_bytes))
    if oom is not None and oom.cause is OomCause.PRIVATE_POOLS:
        change = "free memory of CUDA graphs: one pool for all of them (torch.cuda.graph(..., pool=...)), fewer shapes"
        first.append(Remedy(f"{change}, or delete graphs that are not replayed any more", oom.unreachable_bytes))
    if growth is not None:
        place = own_call(growth.stack)
        where = f" at {place}" if place else ""
        change = f"do not keep what is allocated{where}: append loss.item() or loss.detach(), not the loss"
        first.append(Remedy(change, growth.grown_bytes))
    held = Counter(by_category)
    peak = held.total()
    leaked = growth.grown_bytes if growth is not None else 0
    held[MemoryCategory.ACTIVATIONS] = max(held[MemoryCategory.ACTIVATIONS] - leaked, 0)
    rest = [remedy for remedy in _OF_JOB[job](held) if not (is_alone and remedy.change.startswith(_OVER_RANKS))]
    in_pieces = fragmentation.in_used_segments_bytes
    if in_pieces and not _EXPANDABLE.search(settings):
        change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free pieces join"
        is_cause = oom is not None and oom.cause is OomCause.FRAGMENTATION
        (first if is_cause else rest).append(Remedy(change, in_pieces))
    worthwhile = [remedy for remedy in rest if (remedy.saved_bytes or 0) > _MIN_SAVING * peak]
    return [*first, *sorted(worthwhile, key=lambda remedy: -(remedy.saved_bytes or 0))]


def _of_training(held: Counter[MemoryCategory]) -> list[Remedy]:
    """Savings of ZeRO are those with many data-parallel ranks; with two they are half."""
    optimizer, gradients = held[MemoryCategory.OPTIMIZER], held[MemoryCategory.GRADIENTS]
    activations = held[MemoryCategory.ACTIVATIONS]
    parameters = held[MemoryCategory.PARAMETERS]
    whole = [Remedy("ZeRO 3 (FSDP): shard parameters as well", optimizer + gradients + parameters)]
    return [
        Remedy("ZeRO 1: shard the optimizer's state over data-parallel ranks", optimizer),
        Remedy("ZeRO 2: shard gradients as well", optimizer + gradients),
        *(whole if parameters else []),  # where they are not known, it would save no more than ZeRO 2
        Remedy("halve the micro-batch", activations // 2),
        Remedy("recompute activations (checkpoint each layer)", activations * 3 // 4),
    ]


def _of_inference(held: Counter[MemoryCategory]) -> list[Remedy]:
    smaller_cache = "half the KV cache (vLLM: gpu_memory_utilization, max_model_len; SGLang: --mem-fraction-static)"
    fewer_tokens = "half the tokens in a forward pass (vLLM: max_num_batched_tokens; SGLang: --chunked-prefill-size)"
    return [
        Remedy(smaller_cache, held[MemoryCategory.KV_CACHE] // 2),
        Remedy(fewer_tokens, held[MemoryCategory.ACTIVATIONS] // 2),
        Remedy("weights in half as many bits, or on twice as many GPUs", held[MemoryCategory.PARAMETERS] // 2),
    ]


def _of_unknown(held: Counter[MemoryCategory]) -> list[Remedy]:
    return [Remedy("halve the batch", held[MemoryCategory.ACTIVATIONS] // 2)]


_OF_JOB = {JobKind.TRAINING: _of_training, JobKind.INFERENCE: _of_inference, JobKind.UNKNOWN: _of_unknown}
