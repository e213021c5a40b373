"""Presets: models and batches by name."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.text.names import unknown_name
from stepscope.core.text.numbers import counted

DTYPES = ("float32", "bfloat16", "float16")
_LLAMA_MULTIPLE = 256
_AT_LEAST_ONE = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_key_value_heads",
    "sequence_length",
    "batch_size",
)
_MAX_LAYERS = 10_000
"""Far above any model; what is estimated layer by layer ends within a second."""
IMAGES = "resnet50"
"""The workload that learns images; the others learn text."""


@dataclass(frozen=True, slots=True)
class ImageModel:
    """What a model of images has: the pixels of a side, and how many bottlenecks of each width."""

    size: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """Model and batch. `batch_size` is in sequences over all data-parallel ranks; `dtype` is that of the matmuls.

    Attributes:
        num_key_value_heads: of the Llama-like model; the GPT has as many as query heads.
        architecture: "gpt", "llama" or "resnet50", as the workload is called.
        image: for a model of images, whose classes are `vocab_size` and an item of the batch one image, so a sequence
            of length 1; `hidden_size` is the width of its first bottlenecks. None for a language model.

    Raises:
        UsageError: a value is out of its range.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    sequence_length: int
    batch_size: int
    learning_rate: float
    dtype: str
    num_loader_workers: int
    num_key_value_heads: int
    architecture: str = "gpt"
    image: ImageModel | None = None

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} must be at least 1, not {getattr(self, name)}")
        if self.num_layers > _MAX_LAYERS:
            raise UsageError(f"a model has at most {_MAX_LAYERS:,} layers here, not {self.num_layers:,}")
        if not 0 < self.learning_rate < math.inf or self.num_loader_workers < 0:
            raise UsageError("a learning rate is above 0, and a loader's number of workers not below")
        if self.hidden_size % self.num_heads:
            raise UsageError(
                f"a hidden size of {self.hidden_size} cannot be divided over {counted(self.num_heads, 'head')}"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"a dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.image is not None and self.num_layers != sum(self.image.blocks):
            raise UsageError(
                f"a ResNet of {counted(sum(self.image.blocks), 'bottleneck')} has not "
                f"{counted(self.num_layers, 'layer')}",
                what_next="leave --layers out",
            )

    @property
    def is_llama(self) -> bool:
        """Whether blocks have RMSNorm, rotary places, grouped queries and SwiGLU."""
        return self.architecture == "llama"

    @property
    def num_groups(self) -> int:
        """Key heads; the query heads share them evenly."""
        return self.num_key_value_heads if self.is_llama else self.num_heads

    @property
    def feed_forward_size(self) -> int:
        """Width between a block's last matrices; Llama's three hold about as much as the GPT's two."""
        if not self.is_llama:
            return 4 * self.hidden_size
        return math.ceil(8 * self.hidden_size / 3 / _LLAMA_MULTIPLE) * _LLAMA_MULTIPLE


@cache
def presets(workload: str = "gpt") -> dict[str, Preset]:
    file = "presets_resnet50.toml" if workload == IMAGES else "presets.toml"
    text = files("stepscope.reference_workloads").joinpath(file).read_text(encoding="utf-8")
    return {name: _preset(name, workload, table) for name, table in tomllib.loads(text).items()}


def _preset(name: str, workload: str, table: dict[str, Any]) -> Preset:
    image = table.pop("image", None)
    if image is None:
        return Preset(name=name, architecture=workload, **table)
    model = ImageModel(image["size"], tuple(image["blocks"]))
    whole: dict[str, Any] = {"num_heads": 1, "num_key_value_heads": 1, "sequence_length": 1}
    return Preset(name=name, architecture=workload, image=model, **(whole | table))


def find_preset(name: str, workload: str = "gpt") -> Preset:
    """The preset of this name for a workload.

    Raises:
        UsageError: there is none.
    """
    known = presets(workload)
    if name not in known:
        raise unknown_name("preset", name, sorted(known))
    return known[name]
