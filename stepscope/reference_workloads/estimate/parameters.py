"""Which parts does a pipeline stage consist of, and how many parameters has each on one tensor-parallel rank?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.presets import Preset


class PartKind(StrEnum):
    """What a part of a model does."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stage, as one tensor-parallel rank holds it.

    Attributes:
        kind: what it does.
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
    """The parts of a stage in the order of its forward pass.

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
    """Parameters of one block's matrices: queries, keys and values, their way out, and the feed-forward's."""
    num_feed_forward = 3 if preset.is_llama else 2
    rows = preset.hidden_size + packed_size(preset) + num_feed_forward * preset.feed_forward_size
    return preset.hidden_size * rows


def last_matrix(preset: Preset) -> int:
    """Parameters of the matrix whose product ends a block: the feed-forward's way down."""
    return preset.feed_forward_size * preset.hidden_size


def packed_size(preset: Preset) -> int:
    """Width of queries, keys and values together; Llama's query heads share keys and values."""
    return preset.hidden_size + 2 * key_size(preset)


def key_size(preset: Preset) -> int:
    """Width of the keys."""
    return preset.hidden_size // preset.num_heads * preset.num_groups


def num_parameters(preset: Preset) -> int:
    """Of the whole model."""
    whole = ParallelPlan()
    return sum(part.num_parameters for part in stage_parts(whole, preset, 0))
