"""Models of jobs with headroom: encoder-decoders of transformers, a U-Net as of diffusion, a chain of element-wise
operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.labelled_runs.batches import Source, images, tokens
from benchmarks.labelled_runs.job import Bench
from benchmarks.labelled_runs.models import VOCABULARY, Model, optimizer_of, precision

_MEL_BINS, _FRAMES = 80, 3000


def t5_model(
    bench: Bench, layers: int = 3, width: int = 768, length: int = 512, batch: int = 32, weights: Any = None
) -> Model:
    """T5 of transformers; a batch is both the source and, its first quarter, the target."""
    import transformers

    width, layers, length = bench.size(width, 64), bench.size(layers, 1), bench.size(length, 16)
    config = transformers.T5Config(
        d_model=width,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=width // 64,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    )
    with bench.device:
        module: nn.Module = transformers.T5ForConditionalGeneration(config).to(weights or precision(bench))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids[:, : length // 4].contiguous()).loss
        return answer

    return Model(
        module, loss, Source(tokens(length, VOCABULARY), bench.size(batch, 2)), optimizer_of(module), bench.device
    )


def whisper_model(
    bench: Bench, encoder_layers: int = 2, decoder_layers: int = 2, width: int = 768, batch: int = 16, **entries: Any
) -> Model:
    """Whisper of transformers; a batch holds the target tokens of recordings, whose features stay on the device."""
    import transformers

    width, frames, length = bench.size(width, 64), bench.size(_FRAMES, 64), bench.size(448, 16)
    heads = width // 64
    config = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=bench.size(encoder_layers, 1),
        decoder_layers=bench.size(decoder_layers, 1),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=frames // 2,
        **entries,
    )
    batch = bench.size(batch, 2)
    with bench.device:
        module: nn.Module = transformers.WhisperForConditionalGeneration(config).to(precision(bench))
        features = torch.randn(batch, _MEL_BINS, frames, dtype=precision(bench))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_features=features, labels=ids).loss
        return answer

    return Model(module, loss, Source(tokens(length, VOCABULARY), batch), optimizer_of(module), bench.device)


class _Residual(nn.Module):
    """Two normalised convolutions beside a shortcut, as in denoising diffusion models."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1))
        self.shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.second(self.first(inputs)) + self.shortcut(inputs)
        return outputs


class _UNet(nn.Module):
    """A U-Net: residual blocks at halved sides and doubled channels, with skip connections."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(_Residual(w, w) for w in widths)
        self.shrink = nn.ModuleList(nn.Conv2d(w, 2 * w, 3, stride=2, padding=1) for w in widths)
        self.middle = _Residual(2 * widths[-1], 2 * widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.up = nn.ModuleList(_Residual(2 * w, w) for w in reversed(widths))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden, skipped = self.enter(inputs), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            hidden = block(hidden)
            skipped.append(hidden)
            hidden = shrink(hidden)
        hidden = self.middle(hidden)
        for grow, block in zip(self.grow, self.up, strict=True):
            hidden = block(torch.cat([grow(hidden), skipped.pop()], dim=1))
        outputs: torch.Tensor = self.leave(hidden)
        return outputs


def unet_model(bench: Bench, layout: torch.memory_format, width: int = 128, batch: int = 32) -> Model:
    """A U-Net in float32 that learns to tell the noise in images."""
    with bench.device:
        module = _UNet(bench.size(width, 16), bench.size(3, 2)).to(memory_format=layout)  # type: ignore[call-overload]

    def loss(pixels: torch.Tensor) -> torch.Tensor:
        clean = pixels.to(torch.float32, memory_format=layout).div(127.5) - 1
        noise = torch.randn_like(clean)
        return nn.functional.mse_loss(module(clean + noise).float(), noise)

    source = Source(images(bench.size(64, 16)), bench.size(batch, 2))
    return Model(module, loss, source, optimizer_of(module), bench.device)


class _Gated(nn.Module):
    """A gated block whose norm, activation and scaling are written out operator by operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        self.weight = nn.Parameter(torch.ones(width))
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normed = inputs * torch.rsqrt(inputs.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        gate = self.gate(normed)
        gate = 0.5 * gate * (1 + torch.tanh(0.7978845608 * (gate + 0.044715 * gate.pow(3))))
        hidden = nn.functional.dropout(gate * self.value(normed), 0.1, self.training)
        hidden = self.out(hidden) * self.scale
        outputs: torch.Tensor = inputs + nn.functional.dropout(hidden, 0.1, self.training)
        return outputs


def gated_model(bench: Bench, layers: int = 4, width: int = 1024, rows: int = 32_768, *, is_compiled: bool) -> Model:
    """Gated blocks on rows of features."""
    width = bench.size(width, 32)
    with bench.device:
        module: Any = nn.Sequential(*(_Gated(width) for _ in range(bench.size(layers, 1)))).to(precision(bench))
        features = torch.randn(bench.size(rows, 16), width, dtype=precision(bench))
    if is_compiled:
        module = torch.compile(module)

    def loss(target: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = module(features)
        return (outputs.float().mean(0) - target[0]).square().mean()

    return Model(module, loss, Source(torch.randn(64, width), 1), optimizer_of(module), bench.device)
