"""Rates of kernels: measured points, between them, and on other GPUs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.headroom.matrix_work import _filtering
from stepscope.analyzer.headroom.rates import KNOWN_ERROR, SCALED_ERROR, Convolution, KernelRates
from stepscope.analyzer.roofline.operator_call import parse_call
from stepscope.core.hardware.gpu_catalogue import find_gpu
from stepscope.trace.columns import Shapes
from tests.analyzer.headroom.conftest import SHARE

sizes = st.integers(1, 200_000)


def rates_of(name: str) -> KernelRates:
    gpu = find_gpu(name)
    assert gpu is not None
    return KernelRates(gpu)


def test_a_product_takes_the_measured_share_of_its_roofline() -> None:
    flops = 2.0 * 8192**3
    assert rates_of("NVIDIA H200").product_ns("bfloat16", "nt", 8192, 8192, 8192) == pytest.approx(
        flops / 989.4e12 / SHARE * 1e9, rel=1e-3
    )


@given(m=sizes, n=sizes, k=sizes, batch=st.integers(1, 256), layout=st.sampled_from(["nt", "nn", "tn"]))
def test_no_product_is_faster_than_the_roofline(m: int, n: int, k: int, batch: int, layout: str) -> None:
    time_ns = rates_of("NVIDIA H200").product_ns("bfloat16", layout, m, n, k, batch)
    assert time_ns is not None
    num_bytes = 2.0 * batch * (m * k + n * k + m * n)
    assert time_ns >= max(2.0 * batch * m * n * k / 989.4e12, num_bytes / 4.8e12) * 1e9


def test_sizes_beyond_64_bits_take_a_finite_time() -> None:
    time_ns = rates_of("NVIDIA H200").product_ns("bfloat16", "nt", 2**40, 2**40, 2**40, 2**40)
    assert time_ns is not None
    assert math.isfinite(time_ns)


@pytest.mark.parametrize("dims", ["[[-8, 8], [8, 8]]", "[[9223372036854775807, 8], [8, 8]]"])
def test_sizes_that_no_tensor_has_are_unknown(dims: str) -> None:
    call = parse_call(Shapes(dims, '["float", "float"]', ""))
    assert call is not None
    assert call.tensor(0) is None
    assert call.tensor(1) == (8, 8)


def test_a_convolution_with_an_empty_weight_has_no_sizes() -> None:
    dims = "[[8, 4, 16, 16], [0, 4, 3, 3], [], [], [], [], [], [], []]"
    values = '["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]'
    types = '["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]'
    call = parse_call(Shapes(dims, types, values))
    assert call is not None
    assert _filtering("aten::convolution", call) is None


def test_another_gpu_scales_by_its_peaks_with_a_larger_error() -> None:
    h200, a100 = rates_of("NVIDIA H200"), rates_of("NVIDIA A100-SXM4-80GB")
    assert (h200.error, a100.error) == (KNOWN_ERROR, SCALED_ERROR)
    times = [rates.product_ns("bfloat16", "nt", 8192, 8192, 8192) or 0.0 for rates in (h200, a100)]
    assert times[1] / times[0] == pytest.approx(989.4 / 312, rel=1e-6)


def test_half_of_the_scores_of_a_causal_mask_are_never_computed() -> None:
    rates = rates_of("NVIDIA H200")
    plain, causal = (
        rates.attention_ns("bfloat16", mask, batch_heads=64, queries=4096, keys=4096, head=64)
        for mask in ("none", "causal")
    )
    assert plain is not None
    assert causal is not None
    assert causal[0] == pytest.approx(plain[0] / 2, rel=1e-3)
    assert plain[1] == pytest.approx(2.5 * plain[0], rel=1e-3)


def test_kinds_that_were_not_measured_have_no_time() -> None:
    rates = rates_of("NVIDIA H200")
    assert rates.product_ns("float64", "nt", 64, 64, 64) is None
    depthwise = Convolution(64, 96, 56, 96, 3, 1, 96)
    assert rates.convolution_ns("bfloat16", "nhwc", "forward", depthwise) is None
    assert rates.optimizer_ns("AdamW", "fused", "float32", 0.0) is None
