"""Which tensors does autograd keep of each part between its forward and its backward pass, in bytes per token?

Derived from the operators, not fitted. h is the hidden size, e the bytes of an element in matrix products (2 under
bfloat16 autocast, which leaves the residual stream and the norms in float32; else 4), t the tensor-parallel size.

| a block keeps | bytes a token | why |
| --- | --- | --- |
| its input | 4h | LayerNorm 1 keeps what it normalised; it is the residual stream itself |
| mean and 1/deviation, twice | 16 | LayerNorm |
| input of the q, k, v matrix | eh | for that matrix's gradient |
| q, k and v | 3eh / t | attention computes its scores again from them |
| output of attention | eh / t | for attention's gradient and that of the matrix after it: one tensor |
| log of the softmax's sums | 4 x heads / t | flash attention keeps them instead of the scores |
| input of LayerNorm 2 | 4h | |
| input of the up matrix | eh | |
| input of GELU | 4eh / t | |
| output of GELU | 4eh / t | input of the down matrix |

That is 36h + 16 + 4 x heads under autocast on one GPU (Korthikanti et al. 2022, arXiv:2205.05198, count 34h for a
residual stream in 16 bits with dropout). torch.compile keeps the attention's projection (eh) in place of the sum that
enters LayerNorm 2 and adds again: measured 34h + 16 + 4 x heads at three widths.

Beside them each micro-batch in flight keeps its own bfloat16 copy of each matrix: autocast forgets its cache where the
context ends. fully_shard's parameters are bfloat16 already.

The Llama-like model keeps more, as `_turned` and `_feed_forward` tell. Its RMSNorm is taken as CUDA's fused one, which
keeps its input and one statistic; on a CPU torch composes it and keeps the normalised input too.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.reference_workloads.estimate.parameters import PartKind, key_size, packed_size
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.recipe import Recipe

FLOAT32_BYTES = 4
TOKEN_BYTES = 8
NORM_STATISTICS_BYTES = 8


@dataclass(frozen=True, slots=True)
class Saved:
    """One tensor that a part keeps.

    Attributes:
        what: it is.
        bytes_per_token: on one rank.
        made_by_product: whether a matrix product or attention made it, which selective checkpointing keeps.
    """

    what: str
    bytes_per_token: float
    made_by_product: bool = False


def element_bytes(preset: Preset) -> int:
    """Bytes of an element in matrix products."""
    return FLOAT32_BYTES if preset.dtype == "float32" else 2


def is_fully_sharded(plan: ParallelPlan) -> bool:
    """Whether fully_shard (or `replicate`, its sibling) holds the parameters, and casts what flows between blocks."""
    return plan.dp > 1 and (plan.zero in {2, 3} or plan.replicate)


def saved_tensors(kind: PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe) -> tuple[Saved, ...]:
    """What one part keeps of each token while nothing is recomputed."""
    hidden, element = preset.hidden_size, element_bytes(preset)
    statistics = NORM_STATISTICS_BYTES / (2 if preset.is_llama else 1)
    if kind is PartKind.EMBEDDING:
        return (Saved("token ids", TOKEN_BYTES),)
    if kind is PartKind.HEAD:
        return (
            Saved("input of the last norm", FLOAT32_BYTES * hidden),
            Saved("its statistics", statistics),
            Saved("input of the head", element * hidden),
            Saved("log-softmax of the logits", FLOAT32_BYTES * preset.vocab_size),
        )
    wide = element * hidden / plan.tp
    middle = (
        Saved("projection of attention", element * hidden, made_by_product=True)
        if recipe.compiles and preset.dtype != "float32"
        else Saved("input of norm 2", FLOAT32_BYTES * hidden)
    )
    return (
        Saved("input of the block", FLOAT32_BYTES * hidden),
        Saved("statistics of norm 1", statistics),
        Saved("input of the q, k, v matrix", element * hidden),
        Saved("q, k, v", element * packed_size(preset) / plan.tp, made_by_product=True),
        *_turned(plan, preset),
        Saved("output of attention", wide, made_by_product=True),
        Saved("log of the softmax's sums", FLOAT32_BYTES * preset.num_heads / plan.tp, made_by_product=True),
        middle,
        Saved("statistics of norm 2", statistics),
        Saved("input of the up matrix", element * hidden),
        *_feed_forward(plan, preset),
    )


def _turned(plan: ParallelPlan, preset: Preset) -> tuple[Saved, ...]:
    """Llama's queries and keys, turned by their place, are new tensors beside the values' packed one.

    They lie head by head, and so does attention's output: the matrix after it gets a copy.
    """
    if not preset.is_llama:
        return ()
    element = element_bytes(preset)
    return (
        Saved("turned queries and keys", element * (preset.hidden_size + key_size(preset)) / plan.tp),
        Saved("output of attention, token by token", element * preset.hidden_size / plan.tp),
    )


def _feed_forward(plan: ParallelPlan, preset: Preset) -> tuple[Saved, ...]:
    size = element_bytes(preset) * preset.feed_forward_size / plan.tp
    if preset.is_llama:
        # Autocast casts the norm's output once for each of the two matrices.
        casts = element_bytes(preset) * preset.hidden_size if preset.dtype != "float32" else 0.0
        return (
            Saved("input of the gate matrix", casts),
            Saved("input of SiLU", size, made_by_product=True),
            Saved("output of SiLU", size),
            Saved("output of the up matrix", size, made_by_product=True),
            Saved("input of the down matrix", size),
        )
    return (Saved("input of GELU", size, made_by_product=True), Saved("output of GELU", size))


def kept_bytes_per_token(kind: PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe) -> float:
    """What stays of a token from a part's forward to its backward pass, with the recipe's recomputing."""
    saved = saved_tensors(kind, plan, preset, recipe)
    if kind is not PartKind.BLOCK or recipe.activation_checkpointing == "none":
        return sum(tensor.bytes_per_token for tensor in saved)
    kept = saved[0].bytes_per_token
    if recipe.activation_checkpointing == "selective":
        kept += sum(tensor.bytes_per_token for tensor in saved if tensor.made_by_product)
        kept += 2 * element_bytes(preset) * preset.hidden_size  # both matrices that lead back to the residual stream
    return kept


def recomputed_bytes_per_token(kind: PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe) -> float:
    """What a part's backward pass first makes again."""
    everything = sum(tensor.bytes_per_token for tensor in saved_tensors(kind, plan, preset, recipe))
    return max(everything - kept_bytes_per_token(kind, plan, preset, recipe), 0.0)


def loss_forward_bytes_per_token(preset: Preset) -> float:
    """Beside the log-softmax: the logits and their float32 copy (the same tensor where products are in float32)."""
    logits = element_bytes(preset) * preset.vocab_size
    copy = 0 if preset.dtype == "float32" else FLOAT32_BYTES * preset.vocab_size
    return logits + copy


def loss_backward_bytes_per_token(preset: Preset) -> float:
    """Beside the log-softmax: the gradients of the log-softmax and of the logits, both float32."""
    return 2 * FLOAT32_BYTES * preset.vocab_size
