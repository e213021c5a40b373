"""Cost of matrix products and attention: FLOPs and least bytes, forward and backward.

To add an operator, add a row to `_MATMULS` or `_ATTENTIONS`, with the argument numbers of its schema.

A causal mask halves the pairs of queries and keys, as in the usual closed forms (which ignore half the diagonal). Of
packed sequences number and total length are recorded; equal lengths give the fewest pairs and are assumed.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, Dims, OperatorCall, OperatorCost

_MATMUL_KERNELS = frozenset({Family.MATMUL})
_PARTIAL_BYTES = 4

# Matrix products -----------------------------------------------------------------------------------------------------


class _Matmul(NamedTuple):
    left: int
    right: int
    transposed: bool = False
    """the right operand is stored [N, K], as in linear"""


_MATMULS = {
    "aten::mm": _Matmul(0, 1),
    "aten::bmm": _Matmul(0, 1),
    "aten::matmul": _Matmul(0, 1),
    "aten::addmm": _Matmul(1, 2),
    "aten::_addmm_activation": _Matmul(1, 2),
    "aten::baddbmm": _Matmul(1, 2),
    "aten::linear": _Matmul(0, 1, transposed=True),
    "aten::_scaled_mm": _Matmul(0, 1),
    "aten::_int_mm": _Matmul(0, 1),
    "aten::_grouped_mm": _Matmul(0, 1),
    "aten::_scaled_grouped_mm": _Matmul(0, 1),
}


def _matmul_model(row: _Matmul, *, grouped: bool) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        left, right = call.tensor(row.left), call.tensor(row.right)
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return None
        if row.transposed:
            right = (*right[:-2], right[-1], right[-2])
        batch, m, k, n = prod(left[:-2]), left[-2], left[-1], right[-1]
        if right[-2] != k:
            return None
        if grouped:
            # 2-D by 3-D: each row is multiplied by one expert's matrix; other forms depend on the offsets' values
            if len(left) != 2 or len(right) != 3:
                return None
        elif len(right) > 2 and right[:-2] != left[:-2]:
            return None
        width_left, width_right = call.element_bytes(row.left), call.element_bytes(row.right)
        if width_left is None or width_right is None:
            return None
        # 8-bit operands give results of at least 16 bits
        result = batch * m * n * max(width_left, 2)
        return OperatorCost(
            flops=2.0 * batch * m * n * k,
            recomputed_flops=0.0,
            num_bytes=float(prod(left) * width_left + prod(right) * width_right + result),
            dtype=call.compute_dtype(row.left),
            families=_MATMUL_KERNELS,
            # split-K: at least two float32 parts are summed
            side_bytes={Family.REDUCTION: 2.0 * batch * m * n * _PARTIAL_BYTES + result},
        )

    return model


MATMUL_MODELS: dict[str, CostModel] = {
    name: _matmul_model(row, grouped="grouped" in name) for name, row in _MATMULS.items()
}
"""By the operator's name."""


_KERNELS = frozenset({Family.ATTENTION})
_ACCUMULATOR_BYTES = 4


class _Attention(NamedTuple):
    query: int
    """key and value follow it"""
    causal: int
    """a flag; memory-efficient attention has a number: 0 no mask, 1 and 2 the corner where the diagonal starts"""
    heads_first: bool
    """[batch, heads, sequence, dim], else [batch, sequence, heads, dim]"""
    backward: bool = False
    varlen: int | None = None
    """ends of packed sequences, where given"""
    window: int | None = None
    """size of a sliding window"""
    bottom_right: bool = False
    """the mask's diagonal ends in the last corner: the last query attends to all keys"""


_ATTENTIONS = {
    "aten::_flash_attention_forward": _Attention(0, 8, False, varlen=3, window=11, bottom_right=True),
    "aten::_flash_attention_backward": _Attention(1, 11, False, True, varlen=6, window=15, bottom_right=True),
    "aten::_efficient_attention_forward": _Attention(0, 9, False, varlen=4, window=13),
    "aten::_efficient_attention_backward": _Attention(1, 14, False, True, varlen=6, window=18),
    "aten::_cudnn_attention_forward": _Attention(0, 10, True, varlen=4),
    "aten::_cudnn_attention_backward": _Attention(1, 14, True, True, varlen=9),
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 4, True, bottom_right=True),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 11, True, True, varlen=6, bottom_right=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Attention(0, 4, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Attention(1, 7, True, True),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 6, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 11, True, True),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 6, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 14, True, True, varlen=9),
    "flash_attn::_flash_attn_forward": _Attention(0, 5, False, window=6, bottom_right=True),
    "flash_attn::_flash_attn_backward": _Attention(1, 11, False, True, window=12, bottom_right=True),
    "flash_attn::_flash_attn_varlen_forward": _Attention(0, 9, False, varlen=3, window=10, bottom_right=True),
    "flash_attn::_flash_attn_varlen_backward": _Attention(1, 15, False, True, varlen=9, window=16, bottom_right=True),
}


class _Mask(NamedTuple):
    causal: bool
    bottom_right: bool


def _mask(call: OperatorCall, row: _Attention) -> _Mask | None:
    if row.window is not None and (call.integer(row.window) or -1) != -1:
        return None
    corner = call.integer(row.causal)
    if corner is not None:
        return _Mask(corner != 0, corner == 2) if 0 <= corner <= 2 else None
    causal = call.flag(row.causal)
    return _Mask(causal, row.bottom_right) if causal is not None else None


def _pairs(num_queries: float, num_keys: float, mask: _Mask) -> float:
    """Pairs of a query and a key that are not masked, in one head of one sequence."""
    square = num_queries * num_keys
    if not mask.causal:
        return square
    overlap = min(num_queries, num_keys)
    if num_queries <= num_keys:
        before = num_keys - num_queries if mask.bottom_right else 0.0
        return num_queries * before + overlap * overlap / 2
    # queries past the last key attend to all keys; with the diagonal in the last corner, the first ones to none
    past = 0.0 if mask.bottom_right else (num_queries - num_keys) * num_keys
    return overlap * overlap / 2 + past


def _sequences(call: OperatorCall, row: _Attention, query: Dims, key: Dims) -> tuple[float, float, float] | None:
    """(sequences times heads, queries, keys of each); mean lengths where sequences are packed."""
    ends = call.tensor(row.varlen) if row.varlen is not None else None
    if ends:
        if len(ends) != 1 or ends[0] < 2 or (len(query) == 4 and query[0] != 1):
            return None
        count, heads = ends[0] - 1, query[-2]
        tokens = [prod(dims[:-2]) for dims in (query, key)]
        return count * heads, tokens[0] / count, tokens[1] / count
    if len(query) != 4 or len(key) != 4:
        return None
    heads, sequence = (1, 2) if row.heads_first else (2, 1)
    return query[0] * query[heads], query[sequence], key[sequence]


class AttentionSizes(NamedTuple):
    """Sizes of a fused attention call; means over packed sequences."""

    batch_heads: float
    queries: float
    keys: float
    head: int
    is_causal: bool
    is_backward: bool


def attention_sizes(name: str, call: OperatorCall) -> AttentionSizes | None:
    """Roofline, matmul cost: sizes of a fused attention; None for other operators and unknown forms."""
    row = _ATTENTIONS.get(name)
    query, key = (None, None) if row is None else (call.tensor(row.query), call.tensor(row.query + 1))
    if row is None or not query or not key:
        return None
    mask, found = _mask(call, row), _sequences(call, row, query, key)
    return None if mask is None or found is None else AttentionSizes(*found, query[-1], mask.causal, row.backward)


def _attention_model(row: _Attention) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        query, key, value = (call.tensor(row.query + i) for i in range(3))
        mask, width = _mask(call, row), call.element_bytes(row.query)
        if not query or not key or not value or not len(query) == len(key) == len(value) >= 3:
            return None
        sizes = [call.num_bytes(row.query + i) for i in range(3)]
        found = _sequences(call, row, query, key)
        if mask is None or width is None or found is None or None in sizes:
            return None
        pairs = found[0] * _pairs(found[1], found[2], mask)
        scores, mix = 2.0 * pairs * query[-1], 2.0 * pairs * value[-1]
        output = prod(query[:-1]) * value[-1] * width
        traffic = float(sum(size or 0 for size in sizes) + output)
        dtype = call.compute_dtype(row.query)
        if not row.backward:
            return OperatorCost(scores + mix, 0.0, traffic, dtype, _KERNELS)
        # scores again, then dV, dP, dQ, dK; reads Q, K, V, O, dO and writes dQ, dK, dV
        return OperatorCost(
            flops=3.0 * scores + 2.0 * mix,
            recomputed_flops=scores,
            num_bytes=2 * traffic,
            dtype=dtype,
            families=_KERNELS,
            side_bytes={
                Family.REDUCTION: 2.0 * output,  # row sums of O times dO
                Family.COPY_LIKE: prod(query) * (_ACCUMULATOR_BYTES + width),  # dQ from float32
            },
        )

    return model


ATTENTION_MODELS: dict[str, CostModel] = {name: _attention_model(row) for name, row in _ATTENTIONS.items()}
"""By the operator's name."""
