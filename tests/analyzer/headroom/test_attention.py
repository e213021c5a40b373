"""Headroom of fused attention: which kernels belong to an attention, and what replaces them."""

from __future__ import annotations

import pytest

from stepscope.analyzer.headroom.attention import fused_attention
from stepscope.analyzer.headroom.step_model import StepModel
from tests.analyzer.headroom.build import COPY, FACTS, GEMM, SOFTMAX, Kernel, backward, step_of

B, H, N, D = 4, 16, 2048, 64
SCORES, MASK = [B, H, N, N], [B, 1, N, N]
PROJECTION = Kernel("aten::mm", [[B * N, H * D], [H * D, H * D]], 50.0, GEMM, dtype="bfloat16")


def bmm(left: list[int], right: list[int]) -> Kernel:
    return Kernel("aten::bmm", [left, right], 300.0, GEMM, dtype="bfloat16")


def layer(*, masked: bool = True) -> list[Kernel]:
    """Eager attention of one layer, forward and backward."""
    mask = [Kernel("aten::add", [SCORES, MASK, []], 800.0, types=["c10::BFloat16", "c10::BFloat16", "Scalar"])]
    return [
        PROJECTION,
        Kernel("aten::copy_", [[B, H, N, D], [B, H, N, D]], 20.0, COPY),
        bmm([B * H, N, D], [B * H, D, N]),
        Kernel("aten::mul", [SCORES, []], 400.0, types=["c10::BFloat16", "double"]),
        *(mask if masked else []),
        Kernel("aten::_softmax", [SCORES, [], []], 900.0, SOFTMAX, types=["float", "Scalar", "Scalar"]),
        bmm([B * H, N, N], [B * H, N, D]),
        Kernel("aten::copy_", [[B, N, H, D], [B, N, H, D]], 20.0, COPY),
        PROJECTION,
        backward(bmm([B * H, N, N], [B * H, N, D])),
        backward(bmm([B * H, N, D], [B * H, D, N])),
        backward(Kernel("aten::_softmax_backward_data", [SCORES, SCORES], 900.0, SOFTMAX)),
        backward(Kernel("aten::mul", [SCORES, []], 400.0, types=["c10::BFloat16", "double"])),
        backward(bmm([B * H, N, N], [B * H, N, D])),
        backward(PROJECTION),
    ]


def fused(step: StepModel) -> StepModel:
    changed = fused_attention(step, FACTS)
    assert changed is not None
    return changed.step


def fused_us(mask: str) -> float:
    rates = step_of([PROJECTION]).rates
    assert rates is not None
    times = rates.attention_ns("bfloat16", mask, batch_heads=B * H, queries=N, keys=N, head=D)
    assert times is not None
    return sum(times) / 1e3


def test_only_projections_and_the_fused_kernels_are_left() -> None:
    step = step_of(layer(masked=False))
    after = fused(step)
    left = {PROJECTION.us}
    kernels = after.kernels
    assert kernels is not None
    remaining = [at for at in range(len(kernels)) if after.most_ns[at] > 0]
    assert [kernels.operator_of(at) for at in remaining] == [
        "aten::mm",
        "aten::_softmax",
        "aten::mm",
        "aten::_softmax_backward_data",
        "aten::mm",
    ]
    assert left == {50.0}
    replaced_us = sum(after.most_ns[at] for at in remaining if "softmax" in kernels.operator_of(at)) / 1e3
    assert replaced_us == pytest.approx(fused_us("none"), rel=1e-3)
    assert after.step_ms.is_known


def test_a_mask_of_unknown_form_gives_an_interval() -> None:
    after = fused(step_of(layer()))
    assert not after.step_ms.is_known
    spread_ms = after.step_ms.most - after.step_ms.least
    assert spread_ms == pytest.approx((fused_us("added") - fused_us("causal")) / 1e3, rel=0.01)


def test_a_mask_made_by_comparing_positions_is_causal() -> None:
    compare = Kernel("aten::le", [[1, 1, 1, N], [1, 1, N, 1]], 5.0, types=["long int", "long int"])
    assert fused(step_of([compare, *layer()])).step_ms.is_known


def test_a_softmax_over_a_vocabulary_is_not_attention() -> None:
    rows = [
        bmm([1, B * N, H * D], [1, H * D, 32000]),
        Kernel("aten::_softmax", [[B * N, 32000], [], []], 900.0, SOFTMAX, types=["float", "Scalar", "Scalar"]),
        Kernel("aten::_softmax", [[B, N, 8], [], []], 900.0, SOFTMAX, types=["float", "Scalar", "Scalar"]),
    ]
    assert fused_attention(step_of(rows), FACTS) is None


def test_fused_attention_stays_as_it_is() -> None:
    flash = Kernel("aten::_flash_attention_forward", [[B, N, H, D]] * 3, 100.0, "flash_fwd_kernel", dtype="bfloat16")
    assert fused_attention(step_of([PROJECTION, flash]), FACTS) is None
