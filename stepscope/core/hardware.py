"""What can this GPU and its link do? Peak rates from the vendors' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from stepscope.core.gpu_catalogue import OTHER_CARDS, ROWS, Row, is_called

_AS_FLOAT32 = ("tfloat32", "bfloat16")
"""Where the matrix units do not know these types (before Ampere), products run on the vector units as float32."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Peaks of one GPU kind.

    Attributes:
        name: the part of the driver's device name that identifies it.
        dense_flops: peak FLOP/s by dtype without sparsity.
        memory_bytes_per_second: HBM bandwidth.
        num_sms: streaming multiprocessors (compute units on AMD).
        link_bytes_per_second: scale-up link bandwidth in one direction, all links together; None without or unknown.
        source: where the figures are from.
    """

    name: str
    dense_flops: MappingProxyType[str, float]
    memory_bytes_per_second: float
    num_sms: int
    link_bytes_per_second: float | None
    source: str

    def peak_flops(self, dtype: str) -> float | None:
        """Dense peak in FLOP/s for an element type of matrix operands, or None when the catalogue has none."""
        peak = self.dense_flops.get(dtype)
        if peak is None and dtype in _AS_FLOAT32:
            return self.dense_flops.get("float32")
        return peak


def _model(row: Row) -> GpuModel:
    tera = {
        "float16": row.fp16,
        "bfloat16": row.bf16,
        "tfloat32": row.tf32,
        "float32": row.fp32,
        "float64": row.fp64,
        "float8": row.fp8,
    }
    return GpuModel(
        name=row.name,
        dense_flops=MappingProxyType({dtype: value * 1e12 for dtype, value in tera.items() if value}),
        memory_bytes_per_second=row.memory_gb * 1e9,
        num_sms=row.num_sms,
        link_bytes_per_second=row.link_gb * 1e9 or None,
        source=row.source,
    )


GPU_MODELS: tuple[GpuModel, ...] = tuple(map(_model, ROWS))
"""Most particular name first."""


@lru_cache(maxsize=256)
def find_gpu(device_name: str | None) -> GpuModel | None:
    """The model behind a driver's device name, or None when it is not in the catalogue."""
    name = (device_name or "").lower()
    if any(word in name for word in OTHER_CARDS):
        return None
    for model in GPU_MODELS:
        if is_called(model.name, name):
            return model
    return None
