"""ResNet-50 (v1.5: the middle convolution of a bottleneck strides), in channels_last."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stepscope.reference_workloads.models.mixed_precision import low_precision
from stepscope.reference_workloads.models.simulated_compute import simulate_compute
from stepscope.reference_workloads.models.transformer import name_seed
from stepscope.reference_workloads.plan import ImageModel, Preset

EXPANSION = 4
"""A bottleneck puts out so many times the channels of its middle convolution."""


class Bottleneck(nn.Module):
    """ResNet bottleneck: three convolutions around a shortcut, with an optional sleep that simulates compute."""

    def __init__(self, num_inputs: int, width: int, stride: int, simulate_milliseconds: float) -> None:
        super().__init__()
        num_outputs = EXPANSION * width
        self.simulate_milliseconds = simulate_milliseconds
        self.conv1 = nn.Conv2d(num_inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, num_outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(num_outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(num_inputs, num_outputs, 1, stride, bias=False), nn.BatchNorm2d(num_outputs))
            if stride != 1 or num_inputs != num_outputs
            else nn.Identity()
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, num_inputs, height, width) in; (batch, 4 width, height / stride, width / stride) out."""
        if self.simulate_milliseconds:
            hidden = simulate_compute(hidden, self.simulate_milliseconds)
        inner = functional.relu(self.norm1(self.conv1(hidden)))
        inner = functional.relu(self.norm2(self.conv2(inner)))
        return functional.relu(self.norm3(self.conv3(inner)) + self.shortcut(hidden))


class ResNet(nn.Module):
    """ResNet: a stem, bottlenecks of growing width, and a linear head."""

    def __init__(self, preset: Preset, simulate_milliseconds: float = 0.0) -> None:
        super().__init__()
        image = _image_model(preset)
        width = preset.hidden_size
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[Bottleneck] = []
        num_channels = width
        for group, num_blocks in enumerate(image.blocks):
            for block in range(num_blocks):
                stride = 2 if group and not block else 1
                blocks.append(Bottleneck(num_channels, width << group, stride, simulate_milliseconds))
                num_channels = EXPANSION * (width << group)
        self.blocks = nn.ModuleDict({str(number): block for number, block in enumerate(blocks)})
        self.head = nn.Linear(num_channels, preset.vocab_size)
        self._low_precision = low_precision(preset)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (batch, 3, height, width) of uint8 in; logits (batch, classes) out."""
        hidden = images.contiguous(memory_format=torch.channels_last).float() / 127.5 - 1.0
        with nullcontext() if self._low_precision is None else torch.autocast(images.device.type, self._low_precision):
            hidden = functional.relu(self.norm(self.stem(hidden)))
            hidden = functional.max_pool2d(hidden, 3, stride=2, padding=1)
            for block in self.blocks.values():
                hidden = block(hidden)
            logits: torch.Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


def _image_model(preset: Preset) -> ImageModel:
    """Image options of the preset, which must be one of a model of images."""
    assert preset.image is not None
    return preset.image


def seeded_resnet(preset: Preset, *, seed: int, device: torch.device, simulate_milliseconds: float = 0.0) -> ResNet:
    """A ResNet whose weights depend on the seed and the kind of device alone (He's normal ones), in channels_last."""
    torch.backends.cudnn.benchmark = True  # shapes stay the same: the first steps find the fastest kernels
    with device:
        model = ResNet(preset, simulate_milliseconds)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            generator = torch.Generator(device).manual_seed(name_seed(seed, name))
            fan_out = parameter.shape[0] * math.prod(parameter.shape[2:])
            std = math.sqrt(2 / fan_out) if parameter.dim() > 2 else 0.01
            with torch.no_grad():
                parameter.normal_(std=std, generator=generator)
    nn.init.zeros_(model.head.bias)  # torch draws it from the process's own generator
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return model


def training_flops(preset: Preset) -> float:
    """FLOPs of training a ResNet model on one image: convolutions and head, backward twice the forward."""
    size = _image_model(preset).size
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad(), counter:
        ResNet(replace(preset, dtype="float32")).eval()(torch.empty(1, 3, size, size, dtype=torch.uint8))
    return 3.0 * counter.get_total_flops()
