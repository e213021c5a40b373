"""How many FLOPs do matrix products, attention and convolutions need, and how few bytes?

To teach a new operator, add a row to the table of its kind: `_MATMULS`, `_ATTENTIONS` or `_CONVOLUTIONS`. Argument
numbers are those of the operator's schema.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, Dims, OperatorCall, OperatorCost

_MATMUL_KERNELS = frozenset({Family.MATMUL})
_CONVOLUTION_KERNELS = frozenset({Family.CONVOLUTION, Family.MATMUL})
_ATTENTION_KERNELS = frozenset({Family.ATTENTION})


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
            # 2-D by 3-D: each row meets one expert's matrix; the other forms depend on the offsets' values
            if len(left) != 2 or len(right) != 3:
                return None
        elif len(right) > 2 and right[:-2] != left[:-2]:
            return None
        width_left, width_right = call.element_bytes(row.left), call.element_bytes(row.right)
        if width_left is None or width_right is None:
            return None
        # 8-bit operands give results of at least 16 bits
        traffic = prod(left) * width_left + prod(right) * width_right + batch * m * n * max(width_left, 2)
        return OperatorCost(2.0 * batch * m * n * k, 0.0, float(traffic), call.compute_dtype(row.left), _MATMUL_KERNELS)

    return model


# Attention -----------------------------------------------------------------------------------------------------------


class _Attention(NamedTuple):
    query: int
    """key and value follow it"""
    causal: int
    heads_first: bool
    """[batch, heads, sequence, dim], else [batch, sequence, heads, dim]"""
    backward: bool = False
    varlen: int | None = None
    """cumulative sequence lengths: where given, the work depends on their values"""


_ATTENTIONS = {
    "aten::_flash_attention_forward": _Attention(0, 8, heads_first=False, varlen=3),
    "aten::_flash_attention_backward": _Attention(1, 11, heads_first=False, backward=True, varlen=6),
    "aten::_efficient_attention_forward": _Attention(0, 9, heads_first=False, varlen=4),
    "aten::_efficient_attention_backward": _Attention(1, 14, heads_first=False, backward=True, varlen=6),
    "aten::_cudnn_attention_forward": _Attention(0, 10, heads_first=True, varlen=4),
    "aten::_cudnn_attention_backward": _Attention(1, 14, heads_first=True, backward=True, varlen=9),
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 4, heads_first=True),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 11, heads_first=True, backward=True, varlen=6),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 6, heads_first=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 11, heads_first=True, backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 6, heads_first=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 14, heads_first=True, backward=True, varlen=9),
    "flash_attn::_flash_attn_forward": _Attention(0, 5, heads_first=False),
    "flash_attn::_flash_attn_backward": _Attention(1, 11, heads_first=False, backward=True),
}


def _attention_model(row: _Attention) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        query, key, value = (call.tensor(row.query + i) for i in range(3))
        causal = call.flag(row.causal)
        if query is None or key is None or value is None or not len(query) == len(key) == len(value) == 4:
            return None
        if causal is None or (row.varlen is not None and call.tensor(row.varlen) is not None):
            return None
        heads, sequence = (1, 2) if row.heads_first else (2, 1)
        num_queries, num_keys = query[sequence], key[sequence]
        if causal and num_queries != num_keys:
            return None  # top-left and bottom-right masks differ here
        sizes = [call.num_bytes(row.query + i) for i in range(3)]
        width = call.element_bytes(row.query)
        if width is None or None in sizes:
            return None
        pairs = query[0] * query[heads] * num_queries * num_keys * (0.5 if causal else 1.0)
        scores, mix = 2.0 * pairs * query[3], 2.0 * pairs * value[3]
        output = prod(query[:3]) * value[3] * width
        forward_traffic = sum(size or 0 for size in sizes) + output
        if not row.backward:
            return OperatorCost(
                scores + mix, 0.0, float(forward_traffic), call.compute_dtype(row.query), _ATTENTION_KERNELS
            )
        # scores again, then dV, dP, dQ, dK; reads Q, K, V, O, dO and writes dQ, dK, dV
        return OperatorCost(
            3.0 * scores + 2.0 * mix,
            scores,
            float(2 * forward_traffic),
            call.compute_dtype(row.query),
            _ATTENTION_KERNELS,
        )

    return model


# Convolutions --------------------------------------------------------------------------------------------------------


class _Convolution(NamedTuple):
    padding: int
    stride: int
    dilation: int
    transposed: int | None = None


_CONVOLUTIONS = {
    "aten::cudnn_convolution": _Convolution(2, 3, 4),
    "aten::miopen_convolution": _Convolution(3, 4, 5),
    "aten::miopen_depthwise_convolution": _Convolution(3, 4, 5),
    "aten::convolution": _Convolution(4, 3, 5, transposed=6),
    "aten::_convolution": _Convolution(4, 3, 5, transposed=6),
}


def _convolution_cost(
    call: OperatorCall, *, input_at: int, weight_at: int, output: Dims, passes: int
) -> OperatorCost | None:
    weight = call.tensor(weight_at)
    read, weights, width = call.num_bytes(input_at), call.num_bytes(weight_at), call.element_bytes(input_at)
    if weight is None or read is None or weights is None or width is None:
        return None
    # each output element sums over (input channels of its group) x (kernel window) = one filter
    flops = 2.0 * prod(output) * prod(weight[1:]) * passes
    traffic = (read + weights) * passes + prod(output) * width
    return OperatorCost(flops, 0.0, float(traffic), call.compute_dtype(input_at), _CONVOLUTION_KERNELS)


def _convolution_model(row: _Convolution) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        source, weight = call.tensor(0), call.tensor(1)
        padding, stride, dilation = (call.integers(at) for at in (row.padding, row.stride, row.dilation))
        if source is None or weight is None or padding is None or stride is None or dilation is None:
            return None
        if row.transposed is not None and call.flag(row.transposed) is not False:
            return None
        rank = len(source) - 2
        if rank < 1 or len(weight) != rank + 2 or not len(padding) == len(stride) == len(dilation) == rank:
            return None
        spatial = tuple(
            (source[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
            for i in range(rank)
        )
        return _convolution_cost(call, input_at=0, weight_at=1, output=(source[0], weight[0], *spatial), passes=1)

    return model


def _convolution_backward(call: OperatorCall) -> OperatorCost | None:
    gradient, wanted = call.tensor(0), call.flags(10)
    if gradient is None or wanted is None or len(wanted) != 3 or call.flag(7) is not False:
        return None
    passes = sum(wanted[:2])  # of the input's and the weight's gradient; the bias's is a plain sum
    if passes == 0:
        return None
    return _convolution_cost(call, input_at=1, weight_at=2, output=gradient, passes=passes)


ARITHMETIC_MODELS: dict[str, CostModel] = {
    **{name: _matmul_model(row, grouped="grouped" in name) for name, row in _MATMULS.items()},
    **{name: _attention_model(row) for name, row in _ATTENTIONS.items()},
    **{name: _convolution_model(row) for name, row in _CONVOLUTIONS.items()},
    "aten::convolution_backward": _convolution_backward,
}
"""By the operator's name."""
