"""What is the model? A GPT that can be cut into pipeline stages and sharded by tensor parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.simulate import simulate_compute


class Attention(nn.Module):
    """Causal self-attention. One matrix makes queries, keys and values, packed by head so that it shards by head."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.head_size = preset.hidden_size // preset.num_heads
        self.qkv = nn.Linear(preset.hidden_size, 3 * preset.hidden_size, bias=False)
        self.out = nn.Linear(preset.hidden_size, preset.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out; under tensor parallelism only the local heads exist inside."""
        batch, sequence, _ = hidden.shape
        packed = self.qkv(hidden).view(batch, sequence, -1, 3 * self.head_size).transpose(1, 2)
        query, key, value = packed.split(self.head_size, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return merged


class Block(nn.Module):
    """A transformer block, with an optional sleep that stands for a device's compute time."""

    def __init__(self, preset: Preset, simulate_milliseconds: float) -> None:
        super().__init__()
        self.simulate_milliseconds = simulate_milliseconds
        self.norm1 = nn.LayerNorm(preset.hidden_size)
        self.attention = Attention(preset)
        self.norm2 = nn.LayerNorm(preset.hidden_size)
        self.up = nn.Linear(preset.hidden_size, 4 * preset.hidden_size, bias=False)
        self.down = nn.Linear(4 * preset.hidden_size, preset.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out."""
        if self.simulate_milliseconds:
            hidden = simulate_compute(hidden, self.simulate_milliseconds)
        hidden = hidden + self.attention(self.norm1(hidden))
        projected: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(hidden))))
        return hidden + projected


class Stage(nn.Module):
    """Consecutive blocks; the first stage embeds tokens, the last one predicts the next token."""

    def __init__(self, preset: Preset, layers: range, simulate_milliseconds: float = 0.0) -> None:
        super().__init__()
        is_first, is_last = layers.start == 0, layers.stop == preset.num_layers
        self.tokens = nn.Embedding(preset.vocab_size, preset.hidden_size) if is_first else None
        self.positions = nn.Embedding(preset.sequence_length, preset.hidden_size) if is_first else None
        # A dict keeps each layer's name wherever the model is cut.
        self.blocks = nn.ModuleDict({str(layer): Block(preset, simulate_milliseconds) for layer in layers})
        self.norm = nn.LayerNorm(preset.hidden_size) if is_last else None
        self.head = nn.Linear(preset.hidden_size, preset.vocab_size, bias=False) if is_last else None
        self._autocast_dtype = torch.bfloat16 if preset.dtype == "bfloat16" else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, sequence) or activations (batch, sequence, hidden) in; activations or logits out."""
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=self._autocast_dtype is not None):
            if self.tokens is not None and self.positions is not None:
                places = torch.arange(hidden.shape[1], device=hidden.device)
                hidden = self.tokens(hidden) + self.positions(places)
            for block in self.blocks.values():
                hidden = block(hidden)
            if self.norm is not None and self.head is not None:
                hidden = self.head(self.norm(hidden))
        return hidden


def seeded_stage(
    preset: Preset, layers: range, *, seed: int, device: torch.device, simulate_milliseconds: float = 0.0
) -> Stage:
    """A stage whose weights depend on the seed, the layer and the kind of device, never on where the model is cut.

    They are drawn on the device: a processor takes a minute for what a GPU draws in a tenth of a second.
    """
    with device:
        stage = Stage(preset, layers, simulate_milliseconds)
    for name, parameter in sorted(stage.named_parameters()):
        generator = torch.Generator(device).manual_seed(_name_seed(seed, name))
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02, generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return stage


def _name_seed(seed: int, name: str) -> int:
    """The same number for the same name in every process; Python's own hash is not."""
    number = seed
    for letter in name.encode():
        number = (number * 257 + letter) % (2**31 - 1)
    return number


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of (batch, sequence, vocabulary) logits against (batch, sequence) token ids."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
