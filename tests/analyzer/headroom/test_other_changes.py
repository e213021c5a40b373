"""Headroom of the layout of images, the optimizer, fusion, and memory to spare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.headroom.fused_kernels import COMPILER_SHARE, fused_kernels
from stepscope.analyzer.headroom.image_layout import channels_last
from stepscope.analyzer.headroom.optimizer import fused_optimizer
from stepscope.analyzer.headroom.spare_memory import larger_batch, no_recomputation
from stepscope.core.documents.training_settings import ModelSettings, TrainingSettings
from tests.analyzer.headroom.build import COPY, ELEMENTWISE, FACTS, FLOAT, GEMM, Kernel, step_of

CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>(T)"
NORM = "void at::native::batch_norm_transform_input_kernel<c10::BFloat16>(T)"
REDUCE = "reduce_kernel<512, 1, at::native::ReduceOp<float>>"
IMAGE = [64, 64, 56, 56]
MATMUL = Kernel("aten::mm", [[4096, 1024], [1024, 1024]], 30.0, GEMM, dtype="bfloat16")


def convolution(us: float, name: str) -> Kernel:
    types = ["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList"]
    values = ["", "", "[1, 1]", "[1, 1]", "[1, 1]"]
    dtype = "bfloat16" if name == CONV else ""
    operator = "aten::cudnn_convolution"
    return Kernel(operator, [IMAGE, [64, 64, 3, 3]], us, name, types=types, values=values, dtype=dtype)


def test_convolutions_norms_and_permuting_copies_change_with_the_layout() -> None:
    permute = Kernel("aten::copy_", [IMAGE, IMAGE], 400.0, COPY)
    rows = [
        convolution(300.0, CONV),
        convolution(100.0, TO_NHWC),
        Kernel("aten::native_batch_norm", [IMAGE], 200.0, NORM),
    ]
    step = step_of([*rows, permute])
    kernels = step.kernels
    assert kernels is not None
    kernels.work[1] = kernels.work[0]  # the convolution's own kernel
    changed = channels_last(step, FACTS)
    assert changed is not None
    after = changed.step
    assert after.most_ns[1] == 0.0
    assert after.most_ns[2] == pytest.approx(step.most_ns[2] / 2)
    assert after.most_ns[3] == 0.0
    assert after.least_ns[0] <= after.most_ns[0] == pytest.approx((step.most_ns[0] + step.most_ns[1]) / 3, rel=1e-3)


def test_images_with_the_channels_last_have_nothing_to_change() -> None:
    assert channels_last(step_of([convolution(300.0, CONV)]), FACTS) is None


def adam(size: int) -> list[Kernel]:
    """Adam's update of one parameter, operator by operator."""
    shape = [[size], [size]]
    names = ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div", "aten::add_", "aten::addcdiv_")
    return [Kernel(name, shape, 40.0, ELEMENTWISE, types=[FLOAT], by_optimizer=True) for name in names]


def test_an_optimizer_of_many_passes_takes_one() -> None:
    step = step_of([MATMUL, *adam(10_000_000), *adam(10_000_000)])
    changed = fused_optimizer(step, FACTS)
    assert changed is not None
    assert changed.step.most_ns[0] == step.most_ns[0]
    update_us = changed.step.most_ns[1:].sum() / 1e3
    assert update_us == pytest.approx(2 * 7 * 4 * 1e7 / 4.8e12 / 0.5 * 1e6, rel=1e-3)
    assert "14 kernels of the optimizer" in changed.why


def test_a_fused_optimizer_stays() -> None:
    fused = Kernel("aten::_fused_adamw_", [[1]], 300.0, "multi_tensor_apply_kernel<FusedAdamMath>", by_optimizer=True)
    assert fused_optimizer(step_of([MATMUL, fused]), FACTS) is None


def chain() -> list[Kernel]:
    """A norm that is written out: six kernels, of which one input and one output are needed."""
    shape, one = [8192, 4096], [8192, 1]
    return [
        Kernel("aten::copy_", [shape, shape, []], 40.0, COPY, types=[FLOAT, "c10::BFloat16", "Scalar"]),
        Kernel("aten::pow", [shape, []], 60.0, types=[FLOAT, "Scalar"]),
        Kernel("aten::mean", [shape, []], 30.0, REDUCE, types=[FLOAT, "ScalarList"], values=["", "[-1]"]),
        Kernel("aten::mul", [shape, one], 80.0, types=[FLOAT, FLOAT]),
        Kernel("aten::copy_", [shape, shape, []], 40.0, COPY, types=["c10::BFloat16", FLOAT, "Scalar"]),
        Kernel("aten::mul", [[4096], shape], 60.0, types=["c10::BFloat16", "c10::BFloat16"]),
    ]


def test_a_run_reads_what_comes_from_outside_and_writes_what_leaves() -> None:
    step = step_of([MATMUL, *chain(), MATMUL])
    changed = fused_kernels(step, FACTS)
    assert changed is not None
    after = changed.step
    own_ns, fused_us = step.most_ns[1:7].sum(), 2 * 2 * 8192 * 4096 / 4.8e12 / 0.5 * 1e6
    saved_us = (own_ns / 1e3 - fused_us - 0.8) * COMPILER_SHARE[1]
    assert own_ns / 1e3 - after.least_ns[1:7].sum() / 1e3 == pytest.approx(saved_us, rel=0.01)
    assert after.least_ns.sum() < after.most_ns.sum() < step.most_ns.sum()


def test_a_reduction_over_columns_reads_its_input_again() -> None:
    shape = [8192, 4096]
    rows = [
        Kernel("aten::gelu_backward", [shape, shape], 60.0),
        Kernel("aten::sum", [shape, []], 60.0, REDUCE, types=["c10::BFloat16", "ScalarList"], values=["", "[0]"]),
    ]
    changed = fused_kernels(step_of([MATMUL, *rows]), FACTS)
    assert changed is None  # three tensors and one of them again: as much as now


def test_compiled_models_and_generated_kernels_have_no_runs_left() -> None:
    step = step_of([MATMUL, *chain(), MATMUL])
    compiled = TrainingSettings(models=[ModelSettings("Llama", ["bfloat16"], compiled=True)])
    assert fused_kernels(step, replace(FACTS, settings=compiled)) is None
    generated = Kernel("triton_per_fused_add_mul_0", [[8192, 4096]], 400.0, "triton_per_fused_add_mul_0")
    assert fused_kernels(step_of([MATMUL, *chain(), generated]), FACTS) is None


def test_recomputation_goes_as_far_as_memory_allows() -> None:
    again = replace(MATMUL, repeats_forward=True)
    step = step_of([MATMUL, again, again])
    facts = replace(FACTS, peak_memory_bytes=10e9, memory_bytes=100 * 10**9)
    changed = no_recomputation(step, facts)
    assert changed is not None
    assert changed.step.most_ns.tolist() == [step.most_ns[0], 0.0, 0.0]
    assert no_recomputation(step, replace(facts, peak_memory_bytes=95e9)) is None
    unknown = no_recomputation(step, FACTS)
    assert unknown is not None
    assert not unknown.step.step_ms.is_known
    assert no_recomputation(step_of([MATMUL]), facts) is None


def test_kernels_of_few_blocks_and_the_optimizer_take_more_samples_at_no_cost() -> None:
    small = replace(MATMUL, blocks=8, us=200.0)
    facts = replace(FACTS, peak_memory_bytes=10e9, batch_bytes=10e9, memory_bytes=100 * 10**9)
    step = step_of([small, *adam(1_000_000)])
    changed = larger_batch(step, facts)
    assert changed is not None
    assert changed.knob.startswith("4 times")
    assert changed.step.step_ms.middle == pytest.approx(step.step_ms.middle / 4, rel=1e-6)
    assert larger_batch(step, FACTS) is None
    assert larger_batch(step_of([MATMUL]), facts) is None
