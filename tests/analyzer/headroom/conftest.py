"""A table of kernel times that is known exactly: half of the roofline everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from stepscope.analyzer.headroom import rates
from stepscope.core.hardware import kernel_times_h200
from stepscope.core.hardware.gpu_catalogue import find_gpu

SHARE = 0.5
_TYPES = ("bfloat16", "tfloat32", "float32")


def simple_rows() -> str:
    """Lines as of a measurement in which every kernel reaches half of its roofline."""
    gpu = find_gpu("NVIDIA H200")
    assert gpu is not None

    def us(flops: float, dtype: str, num_bytes: float) -> str:
        peak = gpu.peak_flops(dtype) or 1.0
        return f"{max(flops / peak, num_bytes / gpu.memory_bytes_per_second, 2e-6) / SHARE * 1e6:.6g}"

    lines = []
    sizes = (64, 1024, 16384)
    for dtype, layout, m, n in product(_TYPES, ("nt", "nn", "tn"), sizes, sizes):
        width = 2 if dtype == "bfloat16" else 4
        of_k = (f"{k}:{us(2.0 * m * n * k, dtype, width * (m * k + n * k + m * n))}" for k in sizes)
        lines.append(f"product {dtype} {layout} {m} {n} {' '.join(of_k)}")
    for dtype, mask, length, head in product(_TYPES, ("none", "causal", "added"), (128, 8192), (64, 128)):
        heads, width = 16 * (16384 // length), 2 if dtype == "bfloat16" else 4
        pairs = heads * length * length * (0.5 if mask == "causal" else 1.0)
        traffic = 2.0 * heads * length * head * width
        forward = float(us(4 * pairs * head, dtype, 2 * traffic))
        backward = float(us(10 * pairs * head, dtype, 4 * traffic))
        times = f"forward:{forward:.6g} both:{forward + backward:.6g}"
        lines.append(f"attention {dtype} {mask} {heads // 16} 16 {length} {head} {times}")
    for dtype, layout, passes in product((*_TYPES, "float16"), ("nchw", "nhwc"), ((64, 56, 64, 3), (512, 14, 512, 1))):
        channels, size, filters, window = passes
        width = 2 if "16" in dtype else 4
        flops = 2.0 * 64 * size**2 * filters * channels * window**2
        num_bytes = width * (64 * channels * size**2 + filters * channels * window**2 + 64 * size**2 * filters)
        time = float(us(flops, dtype, num_bytes)) * (3.0 if layout == "nchw" else 1.0)
        times = " ".join(f"{one}:{time:.6g}" for one in ("forward", "input", "weight"))
        lines.append(f"convolution {dtype} {layout} 64 {channels} {size} {filters} {window} 1 1 {times}")
    for name, dtype, layout in product(
        ("batch_norm", "group_norm", "max_pool"), ("bfloat16", "float32"), ("nchw", "nhwc")
    ):
        width = 2 if dtype == "bfloat16" else 4
        time = float(us(0.0, dtype, 2.0 * 64 * 64 * 56**2 * width)) * (2.0 if layout == "nchw" else 1.0)
        lines.append(f"{name} {dtype} {layout} 64 64 56 forward:{time:.6g} both:{2 * time:.6g}")
    lines += [
        f"elementwise bfloat16 1 {elements} us:{us(0.0, 'bfloat16', 4.0 * elements)}"
        for elements in (2**16, 2**20, 2**28)
    ]
    for name, way, dtype, accesses in product(("AdamW", "SGD"), ("fused", "foreach"), ("float32", "bfloat16"), (7, 5)):
        if accesses == rates.ACCESSES[name]:
            width = 2 if dtype == "bfloat16" else 4
            lines.append(f"optimizer {name} {way} {dtype} 100 100000000 us:{us(0.0, dtype, 1e8 * width * accesses)}")
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def simple_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel reaches half of the roofline."""
    monkeypatch.setattr(kernel_times_h200, "ROWS", simple_rows())
    rates.measured.cache_clear()
    yield
    rates.measured.cache_clear()
