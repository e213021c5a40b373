"""What can this GPU and this link do? Peak rates from the vendors' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Peaks of one GPU kind.

    Attributes:
        name: the part of the driver's device name that identifies it.
        dense_flops: peak FLOP/s by dtype without sparsity.
        memory_bytes_per_second: HBM bandwidth.
        num_sms: streaming multiprocessors (compute units on AMD).
        link_bytes_per_second: scale-up link bandwidth in one direction, all links together; None without.
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


_AS_FLOAT32 = ("tfloat32", "bfloat16")
"""Where the matrix units do not know these types (before Ampere), products run on the vector units as float32."""


def _flops(**tera: float) -> MappingProxyType[str, float]:
    return MappingProxyType({dtype: value * 1e12 for dtype, value in tera.items()})


GPU_MODELS: tuple[GpuModel, ...] = (
    GpuModel(
        "H200",
        _flops(bfloat16=989.4, float16=989.4, tfloat32=494.7, float32=66.9, float64=33.5, float8=1978.9),
        4.8e12,
        132,
        450e9,
        "NVIDIA H200 data sheet, SXM; sparse figures halved",
    ),
    GpuModel(
        "H100 PCIe",
        _flops(bfloat16=756.5, float16=756.5, tfloat32=378.0, float32=51.2, float64=25.6, float8=1513.0),
        2.0e12,
        114,
        300e9,
        "NVIDIA H100 data sheet, PCIe; sparse figures halved",
    ),
    GpuModel(
        "H100",
        _flops(bfloat16=989.4, float16=989.4, tfloat32=494.7, float32=66.9, float64=33.5, float8=1978.9),
        3.35e12,
        132,
        450e9,
        "NVIDIA H100 data sheet, SXM; sparse figures halved",
    ),
    GpuModel(
        "B200",
        _flops(bfloat16=2250.0, float16=2250.0, tfloat32=1100.0, float32=75.0, float64=37.0, float8=4500.0),
        8.0e12,
        148,
        900e9,
        "NVIDIA HGX B200 data sheet, per GPU; sparse figures halved",
    ),
    GpuModel(
        "A100-SXM4-80GB",
        _flops(bfloat16=312.0, float16=312.0, tfloat32=156.0, float32=19.5, float64=9.7),
        2.039e12,
        108,
        300e9,
        "NVIDIA A100 data sheet, 80 GB SXM",
    ),
    GpuModel(
        "A100",
        _flops(bfloat16=312.0, float16=312.0, tfloat32=156.0, float32=19.5, float64=9.7),
        1.555e12,
        108,
        300e9,
        "NVIDIA A100 data sheet, 40 GB",
    ),
    GpuModel(
        "V100",
        _flops(float16=125.0, float32=15.7, float64=7.8),
        0.9e12,
        80,
        150e9,
        "NVIDIA V100 data sheet, SXM2",
    ),
    GpuModel(
        "MI300X",
        _flops(bfloat16=1307.4, float16=1307.4, tfloat32=653.7, float32=163.4, float64=81.7, float8=2614.9),
        5.3e12,
        304,
        448e9,
        "AMD Instinct MI300X data sheet",
    ),
)
"""Most particular name first."""


def find_gpu(device_name: str | None) -> GpuModel | None:
    """The model behind a driver's device name, or None when it is not in the catalogue."""
    if not device_name:
        return None
    for model in GPU_MODELS:
        if model.name.lower() in device_name.lower():
            return model
    return None
