"""Parameters of each part of a model, and the FLOPs of a step: those of the model, and those that a GPU executes.

Closed form. A parameter of a matrix costs 2 FLOPs a token forwards and twice that backwards. Attention's two products
cost 4 x sequence x hidden a token forwards, of which the causal mask leaves half. Norms, GELU, softmax and the
optimizer are not matrix FLOPs and are left out, as MFU has it. Executed FLOPs count what activation checkpointing
computes again, and the scores that flash attention's backward pass makes again (5 products where the maths has 4).

torch's checkpoint ends where the last tensor that the backward pass needs is there again: at the inputs of a block's
last product, which is not repeated (torch.utils.checkpoint, `set_checkpoint_early_stop`, on by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe


class PartKind(StrEnum):
    """Kind of a model part whose FLOPs and memory are estimated."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a pipeline stage on one tensor-parallel rank, whose FLOPs and memory are estimated.

    Attributes:
        matrices: parameters that enter matrix products, and of which autocast makes copies.
        others: norms and lookup tables.
    """

    kind: PartKind
    matrices: int
    others: int

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.matrices + self.others


def stage_parts(plan: ParallelPlan, preset: Preset, stage_index: int) -> tuple[Part, ...]:
    """Parts of a pipeline stage that are estimated one by one, in the order of its forward pass.

    Tensor parallelism cuts the blocks' matrices.
    """
    hidden = preset.hidden_size
    norm = hidden if preset.is_llama else 2 * hidden
    layers = plan.layers_of(stage_index, preset.num_layers)
    parts = [Part(PartKind.BLOCK, block_matrices(preset) // plan.tp, 2 * norm)] * len(layers)
    if layers.start == 0:
        places = 0 if preset.is_llama else preset.sequence_length
        parts.insert(0, Part(PartKind.EMBEDDING, 0, (preset.vocab_size + places) * hidden))
    if layers.stop == preset.num_layers:
        parts.append(Part(PartKind.HEAD, preset.vocab_size * hidden, norm))
    return tuple(parts)


def block_matrices(preset: Preset) -> int:
    """Number of parameters in one transformer block's matrices, for its FLOPs."""
    num_feed_forward = 3 if preset.is_llama else 2
    rows = preset.hidden_size + packed_size(preset) + num_feed_forward * preset.feed_forward_size
    return preset.hidden_size * rows


def packed_size(preset: Preset) -> int:
    """Width of queries, keys and values together, for an estimate; Llama's query heads share keys and values."""
    return preset.hidden_size + 2 * key_size(preset)


def key_size(preset: Preset) -> int:
    """Width of the keys of all heads together, for an estimate."""
    return preset.hidden_size // preset.num_heads * preset.num_groups


def num_parameters(preset: Preset) -> int:
    """Estimate of a workload: number of a model's parameters, by its preset alone."""
    whole = ParallelPlan()
    return sum(part.num_parameters for part in stage_parts(whole, preset, 0))


FLASH_BACKWARD = 5 / 4


@dataclass(frozen=True, slots=True)
class _PassFlops:
    """FLOPs of one part for some tokens on all tensor-parallel ranks together."""

    forward: float
    backward: float
    executed_backward: float


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one step over all ranks: the model's (for MFU) and the executed ones (for HFU)."""

    model: float
    executed: float


def _part_flops(kind: PartKind, preset: Preset, recipe: Recipe, num_tokens: float) -> _PassFlops:
    """FLOPs of a part's passes over so many tokens (of whole sequences)."""
    if kind is PartKind.EMBEDDING:
        return _PassFlops(0.0, 0.0, 0.0)
    if kind is PartKind.HEAD:
        products, attention = 2.0 * preset.vocab_size * preset.hidden_size * num_tokens, 0.0
    else:
        products = 2.0 * block_matrices(preset) * num_tokens
        attention = 2.0 * preset.sequence_length * preset.hidden_size * num_tokens
    again = 0.0
    if kind is PartKind.BLOCK and recipe.activation_checkpointing == "full":
        # Parameters of the matrix whose product ends a block: the feed-forward's way down.
        again = products - 2.0 * (preset.feed_forward_size * preset.hidden_size) * num_tokens + attention
    backward = 2 * (products + attention)
    executed = 2 * products + 2 * attention * FLASH_BACKWARD + again
    return _PassFlops(products + attention, backward, executed)


def step_flops(preset: Preset, recipe: Recipe) -> StepFlops:
    """Estimate the FLOPs of a whole batch; they are the same in every layout."""
    tokens = preset.batch_size * preset.sequence_length
    block = _part_flops(PartKind.BLOCK, preset, recipe, tokens)
    head = _part_flops(PartKind.HEAD, preset, recipe, tokens)
    parts = [(block, preset.num_layers), (head, 1)]
    return StepFlops(
        model=sum(count * (part.forward + part.backward) for part, count in parts),
        executed=sum(count * (part.forward + part.executed_backward) for part, count in parts),
    )


def stage_flops(plan: ParallelPlan, preset: Preset, recipe: Recipe, stage_index: int) -> _PassFlops:
    """Estimate the executed FLOPs of one micro-batch's passes through a pipeline stage on one rank."""
    tokens = preset.batch_size / plan.dp / plan.num_micro_batches * preset.sequence_length
    layers = plan.layers_of(stage_index, preset.num_layers)
    block = _part_flops(PartKind.BLOCK, preset, recipe, tokens / plan.tp * len(layers))
    head_tokens = tokens if layers.stop == preset.num_layers else 0.0
    head = _part_flops(PartKind.HEAD, preset, recipe, head_tokens)
    return _PassFlops(
        block.forward + head.forward,
        block.backward + head.backward,
        block.executed_backward + head.executed_backward,
    )


FLOAT32_BYTES = 4

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Of a matrix: one product in the forward pass, two in the backward pass."""


def element_bytes(preset: Preset) -> int:
    """Bytes of an element in matrix products, for an estimate."""
    return FLOAT32_BYTES if preset.dtype == "float32" else 2


def is_fully_sharded(plan: ParallelPlan) -> bool:
    """Whether an estimate is of a plan that shards parameters by fully_shard, or keeps them by `replicate`."""
    return plan.dp > 1 and (plan.zero in {2, 3} or plan.replicate)
