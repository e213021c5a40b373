"""What is a layer of the Llama-like model? RMSNorm, grouped-query attention with rotary places, and SwiGLU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepscope.reference_workloads.attention import Attention
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.simulate import simulate_compute

_EPSILON = 1e-5  # Llama's own; RMSNorm's default depends on the dtype


class FeedForward(nn.Module):
    """SwiGLU: one matrix gates what another one makes."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.gate = nn.Linear(preset.hidden_size, preset.feed_forward_size, bias=False)
        self.up = nn.Linear(preset.hidden_size, preset.feed_forward_size, bias=False)
        self.down = nn.Linear(preset.feed_forward_size, preset.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out."""
        projected: torch.Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return projected


class LlamaBlock(nn.Module):
    """A transformer block, with an optional sleep that stands for a device's compute time."""

    def __init__(self, preset: Preset, simulate_milliseconds: float) -> None:
        super().__init__()
        self.simulate_milliseconds = simulate_milliseconds
        self.norm1 = nn.RMSNorm(preset.hidden_size, eps=_EPSILON)
        self.attention = Attention(preset, is_rotary=True)
        self.norm2 = nn.RMSNorm(preset.hidden_size, eps=_EPSILON)
        self.feed_forward = FeedForward(preset)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out."""
        if self.simulate_milliseconds:
            hidden = simulate_compute(hidden, self.simulate_milliseconds)
        hidden = hidden + self.attention(self.norm1(hidden))
        projected: torch.Tensor = self.feed_forward(self.norm2(hidden))
        return hidden + projected
