"""Headroom of the tensor cores: float32 as TF32 and in bf16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.headroom.tensor_core_sizes import aligned_sizes
from stepscope.analyzer.headroom.tensor_cores import autocast, tf32_convolutions, tf32_products
from stepscope.core.documents.training_settings import TrainingSettings
from tests.analyzer.headroom.build import ELEMENTWISE, FACTS, FLOAT, GEMM, SGEMM, Kernel, backward, step_of

SCUDNN = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(T)"


def product(m: int, n: int, k: int, us: float, *, dtype: str = "float32", name: str = SGEMM) -> Kernel:
    kind = FLOAT if dtype.endswith("32") else "c10::BFloat16"
    return Kernel("aten::mm", [[m, k], [k, n]], us, name, types=[kind, kind], dtype=dtype)


CONVOLUTION = Kernel(
    "aten::cudnn_convolution",
    [[64, 64, 56, 56], [64, 64, 3, 3]],
    4_000.0,
    SCUDNN,
    types=[FLOAT, FLOAT, "ScalarList", "ScalarList", "ScalarList"],
    values=["", "", "[1, 1]", "[1, 1]", "[1, 1]"],
    dtype="float32",
)


def test_products_off_the_tensor_cores_take_what_tf32_takes() -> None:
    step = step_of([product(8192, 4096, 4096, 6_000.0), Kernel("aten::gelu", [[8192, 4096]], 100.0, types=[FLOAT])])
    changed = tf32_products(step, FACTS)
    assert changed is not None
    assert step.rates is not None
    time_ns = step.rates.product_ns("tfloat32", "nt", 8192, 4096, 4096)
    assert changed.step.most_ns.tolist() == pytest.approx([time_ns, step.most_ns[1]])
    assert "6.0 ms per step in float32" in changed.why


@pytest.mark.parametrize("dtype", ["tfloat32", "bfloat16"])
def test_products_on_the_tensor_cores_have_no_tf32(dtype: str) -> None:
    assert tf32_products(step_of([product(8192, 4096, 4096, 900.0, dtype=dtype, name=GEMM)]), FACTS) is None


def test_convolutions_off_the_tensor_cores_unless_the_setting_allows_them() -> None:
    step = step_of([CONVOLUTION])
    assert tf32_convolutions(step, FACTS) is not None
    allowed = replace(FACTS, settings=TrainingSettings(cudnn_allow_tf32=True))
    assert tf32_convolutions(step, allowed) is None


def test_autocast_halves_element_wise_work_at_best_and_adds_casts() -> None:
    rows = [product(8192, 4096, 4096, 6_000.0), Kernel("aten::gelu", [[8192, 4096]], 100.0, ELEMENTWISE, types=[FLOAT])]
    step = step_of([*rows, backward(product(4096, 4096, 8192, 6_000.0))])
    changed = autocast(step, FACTS)
    assert changed is not None
    after = changed.step
    assert (after.least_ns[1], after.most_ns[1]) == pytest.approx((step.most_ns[1] / 2, step.most_ns[1]))
    assert 0 < after.added.least < after.added.most
    assert after.most_ns[0] < step.most_ns[0] / 5


def test_a_size_that_no_tensor_core_kernel_fits_is_padded() -> None:
    odd = product(8192, 50257, 768, 3_000.0, dtype="bfloat16", name="cutlass_80_tensorop_bf16_s16816gemm_align1")
    step = step_of([odd, product(8192, 768, 768, 40.0, dtype="bfloat16", name=GEMM)])
    changed = aligned_sizes(step, FACTS)
    assert changed is not None
    assert changed.knob.startswith("50304 instead of 50257")
    assert changed.step.most_ns[0] < step.most_ns[0]
    assert changed.step.most_ns[1] == step.most_ns[1]


def test_sizes_that_fit_stay() -> None:
    assert aligned_sizes(step_of([product(8192, 50304, 768, 3_000.0, dtype="bfloat16", name=GEMM)]), FACTS) is None
    few = product(8192, 10, 768, 30.0, dtype="bfloat16", name=GEMM)
    assert aligned_sizes(step_of([few]), FACTS) is None
