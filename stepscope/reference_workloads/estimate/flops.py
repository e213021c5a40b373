"""How many FLOPs is a step: those of the model, and those that a GPU executes?

Closed form. A parameter of a matrix costs 2 FLOPs a token forwards and twice that backwards. Attention's two products
cost 4 x sequence x hidden a token forwards, of which the causal mask leaves half. Norms, GELU, softmax and the
optimizer are no matrix FLOPs and are left out, as MFU has it. Executed FLOPs count what activation checkpointing
computes again, and the scores that flash attention's backward pass makes again (5 products where the maths has 4).

torch's checkpoint ends where the last tensor that the backward pass needs is there again: at the inputs of a block's
last product, which is not repeated (torch.utils.checkpoint, `set_checkpoint_early_stop`, on by default).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.reference_workloads.estimate.parameters import PartKind, block_matrices, last_matrix
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.recipe import Recipe

FLASH_BACKWARD = 5 / 4


@dataclass(frozen=True, slots=True)
class PassFlops:
    """FLOPs of one part for some tokens on all tensor-parallel ranks together."""

    forward: float
    backward: float
    executed_backward: float


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one step over all ranks: the model's (for MFU) and the executed ones (for HFU)."""

    model: float
    executed: float


def part_flops(kind: PartKind, preset: Preset, recipe: Recipe, num_tokens: float) -> PassFlops:
    """FLOPs of a part's passes over so many tokens (of whole sequences)."""
    if kind is PartKind.EMBEDDING:
        return PassFlops(0.0, 0.0, 0.0)
    if kind is PartKind.HEAD:
        products, attention = 2.0 * preset.vocab_size * preset.hidden_size * num_tokens, 0.0
    else:
        products = 2.0 * block_matrices(preset) * num_tokens
        attention = 2.0 * preset.sequence_length * preset.hidden_size * num_tokens
    again = 0.0
    if kind is PartKind.BLOCK and recipe.activation_checkpointing == "full":
        again = products - 2.0 * last_matrix(preset) * num_tokens + attention
    backward = 2 * (products + attention)
    executed = 2 * products + 2 * attention * FLASH_BACKWARD + again
    return PassFlops(products + attention, backward, executed)


def step_flops(preset: Preset, recipe: Recipe) -> StepFlops:
    """FLOPs of the whole batch; the layout changes nothing about them."""
    tokens = preset.batch_size * preset.sequence_length
    block = part_flops(PartKind.BLOCK, preset, recipe, tokens)
    head = part_flops(PartKind.HEAD, preset, recipe, tokens)
    parts = [(block, preset.num_layers), (head, 1)]
    return StepFlops(
        model=sum(count * (part.forward + part.backward) for part, count in parts),
        executed=sum(count * (part.forward + part.executed_backward) for part, count in parts),
    )


def stage_flops(plan: ParallelPlan, preset: Preset, recipe: Recipe, stage_index: int) -> PassFlops:
    """Executed FLOPs of one micro-batch's passes through a stage on one rank."""
    tokens = preset.batch_size / plan.dp / plan.num_micro_batches * preset.sequence_length
    layers = plan.layers_of(stage_index, preset.num_layers)
    block = part_flops(PartKind.BLOCK, preset, recipe, tokens / plan.tp * len(layers))
    head_tokens = tokens if layers.stop == preset.num_layers else 0.0
    head = part_flops(PartKind.HEAD, preset, recipe, head_tokens)
    return PassFlops(
        block.forward + head.forward,
        block.backward + head.backward,
        block.executed_backward + head.executed_backward,
    )
