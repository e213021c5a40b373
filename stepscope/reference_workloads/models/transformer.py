"""GPT and Llama-like transformers, and the stage of them that one pipeline rank holds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepscope.reference_workloads.models.mixed_precision import low_precision
from stepscope.reference_workloads.models.simulated_compute import simulate_compute
from stepscope.reference_workloads.plan import Preset


class Stage(nn.Module):
    """Transformer blocks of a pipeline stage; the first embeds tokens, the last predicts the next token."""

    def __init__(self, preset: Preset, layers: range, simulate_milliseconds: float = 0.0) -> None:
        super().__init__()
        is_first, is_last, is_llama = layers.start == 0, layers.stop == preset.num_layers, preset.is_llama
        block_class, norm_class = (LlamaBlock, nn.RMSNorm) if is_llama else (GPTBlock, nn.LayerNorm)
        self.tokens = nn.Embedding(preset.vocab_size, preset.hidden_size) if is_first else None
        # Llama's blocks turn queries and keys by their place instead.
        has_positions = is_first and not is_llama
        self.positions = nn.Embedding(preset.sequence_length, preset.hidden_size) if has_positions else None
        # A dict keeps each layer's name wherever the model is cut.
        self.blocks = nn.ModuleDict({str(layer): block_class(preset, simulate_milliseconds) for layer in layers})
        self.norm = norm_class(preset.hidden_size, eps=1e-5) if is_last else None
        self.head = nn.Linear(preset.hidden_size, preset.vocab_size, bias=False) if is_last else None
        self._autocast_dtype = low_precision(preset)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, sequence) or activations (batch, sequence, hidden) in; activations or logits out.

        With sequence parallelism activations are those of this rank's part of the sequence.
        """
        with torch.autocast(hidden.device.type, self._autocast_dtype, enabled=self._autocast_dtype is not None):
            if self.tokens is not None:
                ids = hidden
                hidden = self.tokens(ids)
                if self.positions is not None:
                    hidden = hidden + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks.values():
                hidden = block(hidden)
            if self.norm is not None and self.head is not None:
                hidden = self.head(self.norm(hidden))
        return hidden


def seeded_stage(
    preset: Preset, layers: range, *, seed: int, device: torch.device, simulate_milliseconds: float = 0.0
) -> Stage:
    """Make a transformer stage whose weights depend on seed, layer and device kind, not on the model's cut.

    They are drawn on the device: a processor takes a minute for what a GPU draws in a tenth of a second.
    """
    with device:
        stage = Stage(preset, layers, simulate_milliseconds)
    for name, parameter in sorted(stage.named_parameters()):
        generator = torch.Generator(device).manual_seed(name_seed(seed, name))
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02, generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return stage


def name_seed(seed: int, name: str) -> int:
    """Seed of a model layer's weights from its name, the same in every process."""
    number = seed
    for letter in name.encode():
        number = (number * 257 + letter) % (2**31 - 1)
    return number


class GPTBlock(nn.Module):
    """GPT transformer block, with an optional sleep that simulates a device's compute time."""

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


_EPSILON = 1e-5  # Llama's own; RMSNorm's default depends on the dtype


class _FeedForward(nn.Module):
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
    """Llama transformer block, with an optional sleep that simulates a device's compute time."""

    def __init__(self, preset: Preset, simulate_milliseconds: float) -> None:
        super().__init__()
        self.simulate_milliseconds = simulate_milliseconds
        self.norm1 = nn.RMSNorm(preset.hidden_size, eps=_EPSILON)
        self.attention = Attention(preset, is_rotary=True)
        self.norm2 = nn.RMSNorm(preset.hidden_size, eps=_EPSILON)
        self.feed_forward = _FeedForward(preset)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, hidden) in and out."""
        if self.simulate_milliseconds:
            hidden = simulate_compute(hidden, self.simulate_milliseconds)
        hidden = hidden + self.attention(self.norm1(hidden))
        projected: torch.Tensor = self.feed_forward(self.norm2(hidden))
        return hidden + projected


_ROTARY_BASE = 10_000.0  # Su et al. 2021, arXiv:2104.09864


class Attention(nn.Module):
    """Attention of a transformer block; its matrix is packed by group, so that cutting rows cuts by group.

    A group is one key head, one value head, and the query heads that share them: one of each in multi-head attention.
    """

    def __init__(self, preset: Preset, *, is_rotary: bool) -> None:
        super().__init__()
        self.head_size = preset.hidden_size // preset.num_heads
        self.num_queries = preset.num_heads // preset.num_groups
        packed_size = preset.num_groups * (self.num_queries + 2) * self.head_size
        self.qkv = nn.Linear(preset.hidden_size, packed_size, bias=False)
        self.out = nn.Linear(preset.hidden_size, preset.hidden_size, bias=False)
        self.rotary = _Rotary(preset.sequence_length, self.head_size) if is_rotary else None

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


class _Rotary(nn.Module):
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
