"""Which models and batches are there, by name?"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stepscope.core.errors import UsageError

DTYPES = ("float32", "bfloat16", "float16")
_LLAMA_MULTIPLE = 256


@dataclass(frozen=True, slots=True)
class Preset:
    """Model and batch. `batch_size` is in sequences over all data-parallel ranks; `dtype` is that of the matmuls.

    Attributes:
        num_key_value_heads: of the Llama-like model; the GPT has as many as query heads.
        architecture: "gpt" or "llama", as the workload is called.
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

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"a dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")

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
