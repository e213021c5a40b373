"""Operator cost: FLOPs and bytes follow from shapes, and uncertain operators are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import OperatorCost
from stepscope.analyzer.roofline.operator_cost import operator_cost
from stepscope.trace.columns import Shapes

BF16 = "c10::BFloat16"


def cost(name: str, dims: Sequence[object], types: list[str], values: list[str] | None = None) -> OperatorCost | None:
    return operator_cost(name, Shapes(json.dumps(dims), json.dumps(types), json.dumps(values) if values else ""))


def known(name: str, dims: Sequence[object], types: list[str], values: list[str] | None = None) -> OperatorCost:
    found = cost(name, dims, types, values)
    assert found is not None
    return found


SIZE = st.integers(1, 5000)


@given(m=SIZE, n=SIZE, k=SIZE)
def test_matrix_product_needs_two_flops_a_multiply_add(m: int, n: int, k: int) -> None:
    found = known("aten::mm", [[m, k], [k, n]], [BF16, BF16])
    assert (found.flops, found.num_bytes) == (2 * m * n * k, 2 * (m * k + k * n + m * n))
    assert found.dtype == "bfloat16"
    assert found.families == {Family.MATMUL}


def test_all_forms_of_one_product_cost_the_same_flops() -> None:
    flops = 2.0 * 8 * 16 * 32
    assert known("aten::addmm", [[16], [8, 32], [32, 16], [], []], ["float"] * 3 + ["Scalar"] * 2).flops == flops
    assert known("aten::linear", [[2, 4, 32], [16, 32], [16]], ["float"] * 3).flops == flops
    assert known("aten::bmm", [[3, 8, 32], [3, 32, 16]], ["float"] * 2).flops == 3 * flops
    assert known("aten::baddbmm", [[3, 8, 16], [3, 8, 32], [3, 32, 16]], ["float"] * 3).flops == 3 * flops
    assert known("aten::_grouped_mm", [[8, 32], [5, 32, 16], [5]], [BF16, BF16, "int"]).flops == flops


def test_eight_bit_product_writes_sixteen_bit_results() -> None:
    found = known("aten::_scaled_mm", [[8, 32], [32, 16], [], []], ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2)
    assert (found.dtype, found.num_bytes) == ("float8", 8 * 32 + 32 * 16 + 2 * 8 * 16)


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([[8, 32], [31, 16]], [BF16, BF16]),
        ([[8, 32], []], [BF16, BF16]),
        ([[8, 32]], [BF16]),
        ([[8, 32], [32, 16]], ["Unheard", "Unheard"]),
        ([], []),
    ],
)
def test_a_product_that_makes_no_sense_has_no_cost(dims: Sequence[object], types: list[str]) -> None:
    assert cost("aten::mm", dims, types) is None


@pytest.mark.parametrize("text", ["", "null", "[[1", "3", '{"a": 1}'])
def test_broken_shapes_have_no_cost(text: str) -> None:
    assert operator_cost("aten::mm", Shapes(text, text, text)) is None


def test_unknown_operator_has_no_cost() -> None:
    assert cost("mylib::magic", [[8, 8]], [BF16]) is None


CUDNN = ["", "", "", "", "", "", "2048", "2048", "True", "0.", "True", "False", ""]


def test_causal_attention_needs_half_the_flops() -> None:
    dims: Sequence[object] = [[4, 16, 2048, 128]] * 3 + [[]] * 10
    types = [BF16] * 3 + [""] * 3 + ["Scalar"] * 6 + [""]
    full = [*CUDNN[:10], "False", *CUDNN[11:]]
    causal = known("aten::_cudnn_attention_forward", dims, types, CUDNN)
    assert causal.flops == 2 * 2 * 4 * 16 * 2048 * 2048 * 128 / 2
    assert known("aten::_cudnn_attention_forward", dims, types, full).flops == 2 * causal.flops
    assert causal.num_bytes == 4 * prod([4, 16, 2048, 128]) * 2


def test_attention_backward_is_five_products_of_which_one_is_recomputed() -> None:
    dims: Sequence[object] = [[4, 16, 2048, 128]] * 5 + [[4, 16, 2048, 1]] + [[]] * 10
    types = [BF16] * 5 + ["float", "long int", "long int", "", "", "", "Scalar", "Scalar", "Scalar", "Scalar", ""]
    values = [""] * 11 + ["2048", "2048", "0.", "True", ""]
    found = known("aten::_cudnn_attention_backward", dims, types, values)
    product = 2 * 4 * 16 * 2048 * 2048 * 128 / 2
    assert (found.flops, found.recomputed_flops) == (5 * product, product)


def test_flash_attention_has_its_heads_after_the_sequence() -> None:
    dims: Sequence[object] = [[4, 197, 12, 64], [4, 197, 2, 64], [4, 197, 2, 64], *[[]] * 8]
    values = ["", "", "", "", "", "197", "197", "0.", "False", "False", ""]
    found = known("aten::_flash_attention_forward", dims, [BF16] * 3 + [""] * 8, values)
    assert found.flops == 4 * 4 * 12 * 197 * 197 * 64


@given(queries=st.integers(1, 40), keys=st.integers(1, 40), bottom_right=st.booleans())
def test_causal_pairs_are_those_under_the_diagonal(queries: int, keys: int, bottom_right: bool) -> None:
    dims: Sequence[object] = [[1, queries, 1, 8], [1, keys, 1, 8], [1, keys, 1, 8], *[[]] * 11]
    values = [""] * 9 + ["2" if bottom_right else "1"] + [""] * 4
    found = known("aten::_efficient_attention_forward", dims, [BF16] * 3 + [""] * 11, values)
    offset = keys - queries if bottom_right else 0
    pairs = sum(max(0, min(keys, query + 1 + offset)) for query in range(queries))
    # closed forms count half of the diagonal
    assert found.flops / (4 * 8) == pairs - min(queries, keys) / 2


def test_packed_sequences_cost_what_equal_lengths_would() -> None:
    dims: Sequence[object] = [[24, 2, 64], [24, 2, 64], [24, 2, 64], [4], [4]]
    values = ["", "", "", "", "", "12", "12", "0.", "True"]
    packed = known("aten::_flash_attention_forward", dims, [BF16] * 3 + ["int"] * 2, values)
    apart: Sequence[object] = [[3, 8, 2, 64], [3, 8, 2, 64], [3, 8, 2, 64], [], []]
    assert packed.flops == known("aten::_flash_attention_forward", apart, [BF16] * 3 + [""] * 2, values).flops


@pytest.mark.parametrize(
    "values",
    [[], ["", "", "", "", "", "8", "8", "0.", "True", "False", "", "4", "0"]],
    ids=["mask not recorded", "sliding window"],
)
def test_attention_whose_work_is_not_in_its_shapes_has_no_cost(values: list[str]) -> None:
    dims: Sequence[object] = [[1, 8, 2, 64]] * 3 + [[], []]
    assert cost("aten::_flash_attention_forward", dims, [BF16] * 3 + [""] * 2, values) is None


def test_convolution_counts_its_filter_for_every_output_element() -> None:
    dims: Sequence[object] = [[32, 3, 224, 224], [64, 3, 7, 7], *[[]] * 7]
    values = ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    found = known("aten::cudnn_convolution", dims, ["float", "float"] + ["ScalarList"] * 7, values)
    assert found.flops == 2 * 32 * 64 * 112 * 112 * 3 * 7 * 7


def test_convolution_backward_costs_one_forward_for_each_gradient_wanted() -> None:
    dims: Sequence[object] = [[32, 64, 112, 112], [32, 3, 224, 224], [64, 3, 7, 7], *[[]] * 8]
    values = ["", "", "", "[0]", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    types = ["float"] * 3 + ["ScalarList"] * 8
    forward = 2 * 32 * 64 * 112 * 112 * 3 * 7 * 7
    assert known("aten::convolution_backward", dims, types, values).flops == 2 * forward
    weights_only = [*values[:10], "[False, True, False]"]
    assert known("aten::convolution_backward", dims, types, weights_only).flops == forward
    assert cost("aten::convolution_backward", dims, types, []) is None


def test_convolution_without_recorded_strides_has_no_cost() -> None:
    dims: Sequence[object] = [[32, 3, 224, 224], [64, 3, 7, 7], *[[]] * 7]
    assert cost("aten::cudnn_convolution", dims, ["float", "float", *["GenericList"] * 7]) is None


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "expected"),
    [
        ("aten::add", [[4, 8], [4, 8], []], [BF16, BF16, "Scalar"], [], 3 * 64),
        ("aten::add", [[4, 8], [8], []], [BF16, "float", "Scalar"], [], 64 + 32 + 128),
        ("aten::add_", [[4, 8], [4, 8], []], [BF16, BF16, "Scalar"], [], 3 * 64),
        ("aten::mul", [[4, 8], [], [4, 8]], [BF16, "double", BF16], [], 2 * 64),
        ("aten::eq", [[4, 8], []], ["float", "Scalar"], [], 128 + 32),
        ("aten::addcmul_", [[4, 8]] * 3 + [[]], ["float"] * 3 + ["Scalar"], [], 4 * 128),
        ("aten::copy_", [[4, 8], [4, 8], []], ["float", BF16, "Scalar"], [], 128 + 64),
        ("aten::fill_", [[4, 8], []], ["float", "Scalar"], [], 128),
        ("aten::sum", [[4, 8], [], [], []], ["float", "ScalarList", "Scalar", ""], ["", "[0]", "True", ""], 128 + 32),
        ("aten::sum", [[4, 8], []], ["float", ""], [], 128),
        ("aten::native_layer_norm", [[4, 8], [], [8], [8], []], [BF16, "", BF16, BF16, ""], [], 64 + 16 + 16 + 64),
        ("aten::_log_softmax_backward_data", [[4, 8], [4, 8], [], []], ["float", "float", "", ""], [], 3 * 128),
        ("aten::embedding", [[100, 8], [4, 2]], ["float", "long int"], [], 2 * 8 * 8 * 4),
        ("aten::index_select", [[100, 8], [], [5]], ["float", "Scalar", "long int"], ["", "0", ""], 2 * 5 * 8 * 4),
        ("aten::gather", [[100, 8], [], [5, 8]], ["float", "Scalar", "long int"], [], 2 * 40 * 4),
        ("aten::embedding_dense_backward", [[4, 8], [4], []], ["float", "long int", ""], ["", "", "100"], 128 + 3200),
        ("aten::nll_loss_forward", [[4, 8], [4], []], ["float", "long int", ""], [], 4 * 4 + 4 * 8),
        ("triton_poi_fused_add_0", [[4, 8], [4, 8], []], [BF16, BF16, "Scalar"], [], 2 * 64),
    ],
)
def test_streaming_operators_move_each_tensor_once(
    name: str, dims: Sequence[object], types: list[str], values: list[str], expected: int
) -> None:
    found = known(name, dims, types, values)
    assert (found.flops, found.num_bytes) == (0, expected)


def test_tensor_lists_without_element_types_have_no_cost() -> None:
    assert (
        cost("aten::_foreach_add_", [[[4, 8], [4]], [[4, 8], [4]], []], ["TensorList", "TensorList", "Scalar"]) is None
    )
    assert cost("triton_poi_fused_add_0", [[4, 8]], ["Unheard"]) is None


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "expected"),
    [
        ("aten::cat", [[[2, 3], [4, 3]], []], ["TensorList", "Scalar"], [], 2 * 18 * 2),
        ("aten::_chunk_cat", [[[4, 8], [4]], [], [], [2, 18]], ["TensorList", "Scalar", "Scalar", BF16], [],
         2 * 36 * 2),
        ("aten::index", [[5, 6, 7], [[2, 3], []]], ["float", "TensorList"], [], 2 * 6 * 6 * 7 * 4),
        ("aten::index_put_", [[5, 7], [[3]], [3, 7], []], ["float", "TensorList", "float", "Scalar"],
         ["", "", "", "True"], 3 * 21 * 4),
        ("aten::scatter_add_", [[9, 4], [], [3, 4], [3, 4]], ["float", "Scalar", "long int", "float"], [], 3 * 12 * 4),
        ("aten::native_dropout", [[8], [], []], [BF16, "Scalar", "Scalar"], [], 2 * 16 + 8),
        ("aten::exp", [[]], ["float"], [], 8),
        ("aten::copy_", [[4, 8], [4, 8], []], [BF16, "float", "Scalar"], [], 32 * (2 + 4)),
    ],
)  # fmt: skip
def test_joins_and_lookups_move_each_element_once_each_way(
    name: str, dims: Sequence[object], types: list[str], values: list[str], expected: int
) -> None:
    shapes = Shapes(json.dumps(dims), json.dumps(types), json.dumps(values))
    found = operator_cost(name, shapes, kernel_name="CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 3>")
    assert found is not None
    assert (found.num_bytes, found.flops) == (expected, 0.0)


def test_any_elementwise_kernel_of_torch_reads_its_operands_and_writes_their_common_shape() -> None:
    shapes = Shapes("[[4, 1], [8]]", '["float", "float"]', "")
    kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::hypot_kernel_cuda(...)>(int)"
    found = operator_cost("aten::hypot", shapes, kernel_name=kernel)
    assert found is not None
    assert found.num_bytes == 4 * (4 + 8 + 32)
    assert operator_cost("aten::hypot", shapes, kernel_name="mystery") is None


@given(batch=st.integers(1, 64), factor=st.integers(2, 5))
@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::bmm", [[1, 8, 32], [1, 32, 16]], [BF16, BF16]),
        ("aten::native_layer_norm", [[1, 64], [], [64], [64]], ["float"] * 4),
        ("aten::_softmax", [[1, 64], [], []], ["float", "Scalar", "Scalar"]),
        ("aten::mul", [[1, 64], [1, 64]], ["float", "float"]),
        ("aten::sum", [[1, 64]], ["float"]),
    ],
)
def test_costs_are_never_negative_and_grow_with_the_batch(
    name: str, dims: Sequence[list[int]], types: list[str], batch: int, factor: int
) -> None:
    def of(size: int) -> OperatorCost:
        # only the operands that carry the batch, those whose first dimension is 1
        return known(name, [[size, *entry[1:]] if entry[:1] == [1] else entry for entry in dims], types)

    small, large = of(batch), of(batch * factor)
    assert small.flops >= 0
    assert large.flops == factor * small.flops
    assert 0 < large.num_bytes - small.num_bytes == (factor - 1) * batch * (of(2).num_bytes - of(1).num_bytes)


def test_a_type_that_is_no_word_is_not_known() -> None:
    assert operator_cost("aten::mul", Shapes("[[],[2,3]]", '[["float"],"float"]', "")) is not None
