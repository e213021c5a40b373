"""What part of a model does a rank hold? Consecutive blocks of either model, and what stands at its ends."""

from __future__ import annotations

import torch
from torch import nn

from stepscope.reference_workloads.model_gpt import GPTBlock
from stepscope.reference_workloads.model_llama import LlamaBlock
from stepscope.reference_workloads.precision import low_precision
from stepscope.reference_workloads.presets import Preset


class Stage(nn.Module):
    """Consecutive blocks; the first stage embeds tokens, the last one predicts the next token."""

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
    """A stage whose weights depend on the seed, the layer and the kind of device, never on where the model is cut.

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
    """The same number for the same name in every process; Python's own hash is not."""
    number = seed
    for letter in name.encode():
        number = (number * 257 + letter) % (2**31 - 1)
    return number
