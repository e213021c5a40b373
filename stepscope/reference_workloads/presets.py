"""Which models and batches are there, by name?"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Preset:
    """Model and batch. `batch_size` is in sequences over all data-parallel ranks; `dtype` is that of the matmuls."""

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


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    text = files("stepscope.reference_workloads").joinpath("presets.toml").read_text(encoding="utf-8")
    return {name: Preset(name=name, **table) for name, table in tomllib.loads(text).items()}


def find_preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in presets():
        raise UsageError(f"there is no preset {name!r}", what_next=f"choose one of {', '.join(sorted(presets()))}")
    return presets()[name]
