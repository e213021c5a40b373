"""GPU models and their peak rates, from the vendors' data sheets. To add one, add a row.

The most particular name stands first. All rates are dense: where a sheet gives the rate with structured sparsity, half
of it. FP16 and BF16 are those that accumulate in FP32, as torch's products do (GeForce cards are twice as fast with
FP16 accumulation, which it never asks for). FP64 is that of the matrix units where there are any. A link's bandwidth is
one direction's, half of what most sheets print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

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


class Row(NamedTuple):
    """One GPU. 0 means that it has none of it, or that the sheet does not tell.

    Attributes:
        name: words of the driver's device name that identify it.
        fp16, bf16, tf32, fp32, fp64, fp8: TFLOP/s of matrix products.
        memory_gb: memory bandwidth, GB/s.
        num_sms: streaming multiprocessors, or compute units.
        link_gb: all scale-up links together in one direction, GB/s.
        source: the document.
    """

    name: str
    fp16: float
    bf16: float
    tf32: float
    fp32: float
    fp64: float
    fp8: float
    memory_gb: float
    num_sms: int
    link_gb: float
    source: str


# fmt: off
ROWS: tuple[Row, ...] = (
    # name, fp16, bf16, tf32, fp32, fp64, fp8 (TFLOP/s), memory (GB/s), SMs, link (GB/s), source
    Row("GB300", 2500, 2500, 1250, 80, 1.3, 5000, 8000, 152, 900, "NVIDIA GB300 NVL72 data sheet, a 72nd"),
    Row("GB200", 2500, 2500, 1250, 80, 40, 5000, 8000, 152, 900, "NVIDIA GB200 NVL72 data sheet, a 72nd"),
    Row("B300", 2250, 2250, 1125, 75, 1.25, 4500, 8000, 148, 900, "NVIDIA HGX B300 data sheet, an 8th"),
    Row("B200", 2250, 2250, 1125, 75, 37, 4500, 8000, 148, 900, "NVIDIA HGX and DGX B200 data sheets, an 8th"),
    Row("GH200", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 4000, 132, 450, "NVIDIA GH200 data sheet, 96 GB HBM3"),
    Row("H200 NVL", 835.5, 835.5, 417.5, 60, 60, 1670.5, 4800, 132, 450, "NVIDIA H200 data sheet, NVL"),
    Row("H200", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 4800, 132, 450, "NVIDIA H200 data sheet, SXM"),
    Row("H100 NVL", 835.5, 835.5, 417.5, 60, 60, 1670.5, 3900, 132, 300, "NVIDIA H100 data sheet, NVL"),
    Row("H100 PCIe", 756.5, 756.5, 378, 51.2, 51.2, 1513, 2000, 114, 300, "NVIDIA H100 data sheet, PCIe"),
    Row("H100", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 3350, 132, 450, "NVIDIA H100 data sheet, SXM"),
    Row("H800 PCIe", 756.5, 756.5, 378, 51.2, 0, 1513, 2000, 114, 200, "NVIDIA H800 data sheet, PCIe, FP64 left out"),
    Row("H800", 989.4, 989.4, 494.7, 66.9, 1, 1978.9, 3350, 132, 200, "NVIDIA H800 data sheet, SXM"),
    Row("H20", 148, 148, 74, 44, 1, 296, 4000, 78, 450, "NVIDIA H20 data sheet"),
    Row("A100-SXM4-80GB", 312, 312, 156, 19.5, 19.5, 0, 2039, 108, 300, "NVIDIA A100 data sheet, 80 GB SXM"),
    Row("A100 80GB PCIe", 312, 312, 156, 19.5, 19.5, 0, 1935, 108, 300, "NVIDIA A100 data sheet, 80 GB PCIe"),
    Row("A100", 312, 312, 156, 19.5, 19.5, 0, 1555, 108, 300, "NVIDIA A100 data sheet, 40 GB"),
    Row("A800-SXM4-80GB", 312, 312, 156, 19.5, 19.5, 0, 2039, 108, 200, "NVIDIA A800 data sheet, 80 GB SXM"),
    Row("A800 80GB PCIe", 312, 312, 156, 19.5, 19.5, 0, 1935, 108, 200, "NVIDIA A800 data sheet, 80 GB PCIe"),
    Row("A40", 149.7, 149.7, 74.8, 37.4, 0, 0, 696, 84, 56.25, "NVIDIA A40 data sheet"),
    Row("A30", 165, 165, 82, 10.3, 10.3, 0, 933, 56, 100, "NVIDIA A30 data sheet"),
    Row("A10G", 70, 70, 35, 35, 0, 0, 600, 80, 0, "NVIDIA and AWS A10G data sheet, 2022"),
    Row("A10", 125, 125, 62.5, 31.2, 0, 0, 600, 72, 0, "NVIDIA A10 data sheet"),
    Row("L40S", 362.05, 362.05, 183, 91.6, 0, 733, 864, 142, 0, "NVIDIA L40S data sheet"),
    Row("L40", 181.05, 181.05, 90.5, 90.5, 0, 362, 864, 142, 0, "NVIDIA L40 data sheet"),
    Row("L20", 119.5, 119.5, 59.8, 59.8, 0, 239, 864, 92, 0, "NVIDIA L20 data sheet"),
    Row("L4", 121, 121, 60, 30.3, 0, 242.5, 300, 58, 0, "NVIDIA L4 data sheet"),
    Row("T4", 65, 0, 0, 8.1, 0, 0, 320, 40, 0, "NVIDIA T4 data sheet, Turing white paper"),
    Row("RTX 5090", 209.5, 209.5, 104.8, 104.8, 0, 419, 1792, 170, 0, "NVIDIA RTX Blackwell white paper"),
    Row("RTX 4090", 165.2, 165.2, 82.6, 82.6, 0, 330.3, 1008, 128, 0, "NVIDIA Ada white paper"),
    Row("RTX 3090", 71, 71, 35.6, 35.6, 0, 0, 936, 82, 56.25, "NVIDIA Ampere GA102 white paper"),
    Row("RTX A6000", 154.8, 154.8, 77.4, 38.7, 0, 0, 768, 84, 56.25, "NVIDIA RTX A6000 data sheet"),
    Row("RTX 6000 Ada", 364.2, 364.2, 182.1, 91.1, 0, 728.5, 960, 142, 0, "NVIDIA RTX 6000 Ada data sheet"),
    Row("RTX 2080 Ti", 53.8, 0, 0, 13.4, 0, 0, 616, 68, 50, "NVIDIA Turing white paper, reference clocks"),
    Row("V100S", 130, 0, 0, 16.4, 8.2, 0, 1134, 80, 0, "NVIDIA V100 data sheet, V100S PCIe"),
    Row("V100-PCIE", 112, 0, 0, 14, 7, 0, 900, 80, 0, "NVIDIA V100 data sheet, PCIe"),
    Row("V100-DGXS", 125, 0, 0, 15.7, 7.8, 0, 900, 80, 100, "NVIDIA DGX Station data sheet, a 4th"),
    Row("V100", 125, 0, 0, 15.7, 7.8, 0, 900, 80, 150, "NVIDIA V100 data sheet, SXM2"),
    Row("MI355X", 2516.6, 2516.6, 0, 157.3, 78.6, 5033.2, 8000, 256, 537.6, "AMD Instinct MI355X data sheet"),
    Row("MI350X", 2306.9, 2306.9, 0, 144.2, 72.1, 4613.7, 8000, 256, 537.6, "AMD Instinct MI350X data sheet"),
    Row("MI325X", 1307.4, 1307.4, 653.7, 163.4, 163.4, 2614.9, 6000, 304, 448, "AMD Instinct MI325X data sheet"),
    Row("MI300X", 1307.4, 1307.4, 653.7, 163.4, 163.4, 2614.9, 5300, 304, 448, "AMD Instinct MI300X data sheet"),
    Row("MI250X", 191.5, 191.5, 0, 47.9, 47.9, 0, 1638.4, 110, 0, "AMD Instinct MI250X data sheet, one of two dies"),
    Row("MI250", 181, 181, 0, 45.3, 45.3, 0, 1638.4, 104, 0, "AMD Instinct MI250 data sheet, one of two dies"),
    Row("MI210", 181, 181, 0, 45.3, 45.3, 0, 1638.4, 104, 150, "AMD Instinct MI210 data sheet"),
    Row("MI100", 184.6, 92.3, 0, 46.1, 11.5, 0, 1228.8, 120, 0, "AMD Instinct MI100 data sheet"),
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


# fmt: on

OTHER_CARDS = ("laptop", "max-q", "mobile", "4090 d", "5090 d", "mig ")
"""Words in the names of slower cards that are called like one of the rows, and of slices of a card."""

BOARD_WATTS: tuple[tuple[str, float], ...] = (
    ("GB300", 1400), ("GB200", 1200), ("B300", 1400), ("B200", 1000), ("GH200", 900), ("H200 NVL", 600), ("H200", 700),
    ("H100 NVL", 400), ("H100 PCIe", 350), ("H100", 700), ("H800 PCIe", 350), ("H800", 700), ("H20", 400),
    ("A100-SXM4", 400), ("A100 80GB PCIe", 300), ("A100-PCIE", 250), ("A800-SXM4", 400), ("A800 80GB PCIe", 300),
    ("A40", 300), ("A30", 165), ("A10G", 300), ("A10", 150), ("L40S", 350), ("L40", 300), ("L20", 275), ("L4", 72),
    ("T4", 70), ("RTX 5090", 575), ("RTX 4090", 450), ("RTX 3090", 350), ("RTX A6000", 300), ("RTX 6000 Ada", 300),
    ("RTX 2080 Ti", 250), ("V100S", 250), ("V100-PCIE", 250), ("V100-DGXS", 300), ("V100", 300),
)  # fmt: skip
"""Power that the data sheet allows a board, by words of the driver's device name, the most particular first. The limit
that the driver enforces may be lower; a dcgm-exporter's default page does not have it."""


MEMORY_GIB: tuple[tuple[str, float], ...] = (
    ("GB300", 288), ("GB200", 192), ("B300", 288), ("B200", 192), ("GH200", 96), ("H200 NVL", 141), ("H200", 141),
    ("H100 NVL", 94), ("H100 PCIe", 80), ("H100", 80), ("H800 PCIe", 80), ("H800", 80), ("H20", 96),
    ("A100-SXM4-80GB", 80), ("A100 80GB PCIe", 80), ("A100", 40), ("A800-SXM4-80GB", 80), ("A800 80GB PCIe", 80),
    ("A40", 48), ("A30", 24), ("A10G", 24), ("A10", 24), ("L40S", 48), ("L40", 48), ("L20", 48), ("L4", 24), ("T4", 16),
    ("RTX 5090", 32), ("RTX 4090", 24), ("RTX 3090", 24), ("RTX A6000", 48), ("RTX 6000 Ada", 48), ("RTX 2080 Ti", 11),
    ("V100S", 32), ("V100-PCIE", 32), ("V100-DGXS", 32), ("V100", 32), ("MI355X", 288), ("MI350X", 288),
    ("MI325X", 256), ("MI300X", 192), ("MI250X", 64), ("MI250", 64), ("MI210", 64), ("MI100", 32),
)  # fmt: skip
"""The largest memory that the data sheet has of each; of two dies, one's. No more than these GiB can be allocated, and
ECC, firmware and the driver take some of them."""


def board_power_watts(device_name: str) -> float | None:
    """The data sheet's power limit of a device, None where it is not in the table."""
    return _called(device_name, BOARD_WATTS)


def memory_gib(device_name: str) -> float | None:
    """The data sheet's memory of a device, None where it is not in the table."""
    return _called(device_name, MEMORY_GIB)


def _called(device_name: str, table: tuple[tuple[str, float], ...]) -> float | None:
    name = device_name.lower()
    if any(word in name for word in OTHER_CARDS):
        return None
    return next((value for words, value in table if is_called(words, name)), None)


def is_called(words: str, device_name: str) -> bool:
    """Whether a device's name has these words, whole: A100 is no A10."""
    return re.search(rf"(?<![a-z0-9]){re.escape(words.lower())}(?![a-z0-9])", device_name.lower()) is not None
