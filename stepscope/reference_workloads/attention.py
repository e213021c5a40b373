"""How do tokens look at each other? Causal self-attention for both models, cut by head under tensor parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepscope.reference_workloads.presets import Preset

_ROTARY_BASE = 10_000.0  # Su et al. 2021, arXiv:2104.09864


class Attention(nn.Module):
    """Queries, keys and values come of one matrix, packed by group, so that cutting its rows cuts by group.

    A group is one key head, one value head, and the query heads that share them: one of each in multi-head attention.
    """

    def __init__(self, preset: Preset, *, is_rotary: bool) -> None:
        super().__init__()
        self.head_size = preset.hidden_size // preset.num_heads
        self.num_queries = preset.num_heads // preset.num_groups
        packed_size = preset.num_groups * (self.num_queries + 2) * self.head_size
        self.qkv = nn.Linear(preset.hidden_size, packed_size, bias=False)
        self.out = nn.Linear(preset.hidden_size, preset.hidden_size, bias=False)
        self.rotary = Rotary(preset.sequence_length, self.head_size) if is_rotary else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) in and out. Under tensor parallelism only the local groups exist inside.

        With sequence parallelism what comes in and goes out is this rank's part of the sequence; inside it is whole.
        """
        packed: torch.Tensor = self.qkv(hidden)
        batch, sequence, _ = packed.shape
        grouped = packed.view(batch, sequence, -1, self.num_queries + 2, self.head_size)
        query, key, value = torch.split(grouped, [self.num_queries, 1, 1], dim=3)
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.num_queries > 1
        )
        merged: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return merged


class Rotary(nn.Module):
    """Turns each pair of a head's numbers by an angle that grows with the place in the sequence."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, sequence_length: int, head_size: int) -> None:
        super().__init__()
        frequencies = _ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angles = torch.outer(torch.arange(sequence_length, dtype=torch.float32), frequencies)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """(batch, heads, sequence, head size) in and out, in the dtype that came in."""
        first, second = heads.float().chunk(2, dim=-1)
        turned = (first * self.cosines - second * self.sines, second * self.cosines + first * self.sines)
        return torch.cat(turned, dim=-1).to(heads.dtype)
