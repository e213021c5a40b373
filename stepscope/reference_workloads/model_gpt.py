"""What is a layer of the GPT? LayerNorm, multi-head attention, and a GELU between two matrices."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepscope.reference_workloads.attention import Attention
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.simulate import simulate_compute


class GPTBlock(nn.Module):
    """A transformer block, with an optional sleep that stands for a device's compute time."""

    def __init__(self, preset: Preset, simulate_milliseconds: float) -> None:
        super().__init__()
        self.simulate_milliseconds = simulate_milliseconds
        self.norm1 = nn.LayerNorm(preset.hidden_size)
        self.attention = Attention(preset, is_rotary=False)
        self.norm2 = nn.LayerNorm(preset.hidden_size)
        self.up = nn.Linear(preset.hidden_size, preset.feed_forward_size, bias=False)
        self.down = nn.Linear(preset.feed_forward_size, preset.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out."""
        if self.simulate_milliseconds:
            hidden = simulate_compute(hidden, self.simulate_milliseconds)
        hidden = hidden + self.attention(self.norm1(hidden))
        projected: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(hidden))))
        return hidden + projected
