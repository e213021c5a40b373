"""How many FLOPs do convolutions need, forward and backward, and how few bytes?

The arithmetic is that of the direct form: Winograd and FFT kernels need less, and may beat the peak by it. To teach a
new operator, add a row to `FORWARDS` or `WHOLE_BACKWARDS`. Argument numbers are those of the operator's schema.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, Dims, OperatorCall, OperatorCost

_KERNELS = frozenset({Family.CONVOLUTION, Family.MATMUL})


class _Forward(NamedTuple):
    """Arguments 0 and 1 are the input and the weight."""

    padding: int
    stride: int
    dilation: int
    transposed: int | bool = False
    """the flag's argument, or what it always is"""


FORWARDS = {
    "aten::cudnn_convolution": _Forward(2, 3, 4),
    "aten::cudnn_convolution_transpose": _Forward(2, 4, 5, transposed=True),
    "aten::cudnn_convolution_relu": _Forward(4, 3, 5),
    "aten::cudnn_convolution_add_relu": _Forward(6, 5, 7),
    "aten::miopen_convolution": _Forward(3, 4, 5),
    "aten::miopen_convolution_transpose": _Forward(3, 5, 6, transposed=True),
    "aten::miopen_depthwise_convolution": _Forward(3, 4, 5),
    "aten::mkldnn_convolution": _Forward(3, 4, 5),
    "aten::_conv_depthwise2d": _Forward(5, 4, 6),
    "aten::convolution": _Forward(4, 3, 5, transposed=6),
    "aten::_convolution": _Forward(4, 3, 5, transposed=6),
}


class _Backward(NamedTuple):
    gradient: int
    input: int
    weight: int
    mask: int
    """which of the gradients of input, weight and bias are wanted"""
    transposed: int | bool = False


WHOLE_BACKWARDS = {
    "aten::convolution_backward": _Backward(0, 1, 2, mask=10, transposed=7),
    "aten::cudnn_convolution_backward": _Backward(1, 0, 2, mask=10),
    "aten::miopen_convolution_backward": _Backward(1, 0, 2, mask=9),
    "aten::mkldnn_convolution_backward": _Backward(1, 0, 2, mask=7),
}
PARTS = {
    f"aten::{library}_convolution_backward_{part}": WHOLE_BACKWARDS[f"aten::{library}_convolution_backward"]
    for library in ("cudnn", "miopen", "mkldnn")
    for part in ("input", "weight", "weights")
}
"""Operators of torch before 1.11 that compute one gradient, by the whole whose sizes they are read with."""


def _is_transposed(call: OperatorCall, transposed: int | bool) -> bool | None:
    return transposed if isinstance(transposed, bool) else call.flag(transposed)


def convolution_cost(
    call: OperatorCall, *, source: Dims, weight: Dims, output: Dims, passes: int, at: int
) -> OperatorCost | None:
    """Each output element sums over (input channels of its group) x (kernel window): one filter.

    Args:
        call: gives the element type, argument `at`'s.
        source, weight, output: dimensions of a convolution that is not transposed.
        passes: how often that much arithmetic is done.
    """
    width = call.element_bytes(at)
    if width is None:
        return None
    flops = 2.0 * prod(output) * prod(weight[1:]) * passes
    traffic = float((prod(source) + prod(weight) + prod(output)) * passes * width)
    return OperatorCost(flops, 0.0, traffic, call.compute_dtype(at), _KERNELS, is_upper_bound=True)


def _output(call: OperatorCall, row: _Forward, source: Dims, weight: Dims) -> Dims | None:
    """Dimensions of the result, or None where stride, padding or dilation were not recorded."""
    padding, stride, dilation = (call.integers(at) for at in (row.padding, row.stride, row.dilation))
    rank = len(source) - 2
    if padding is None or stride is None or dilation is None:
        return None
    if rank < 1 or len(weight) != rank + 2 or not len(padding) == len(stride) == len(dilation) == rank:
        return None
    return (
        source[0],
        weight[0],
        *(
            (source[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
            for i in range(rank)
        ),
    )


def _forward_model(row: _Forward) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        source, weight = call.tensor(0), call.tensor(1)
        transposed = _is_transposed(call, row.transposed)
        if not source or not weight or transposed is None:
            return None
        if transposed:
            # each input element is multiplied by one filter of [outputs of its group, window]; of the result only the
            # bytes count, and its size follows from parameters that differ between versions: the input's stands for it
            return convolution_cost(call, source=source, weight=weight, output=source, passes=1, at=0)
        output = _output(call, row, source, weight)
        if output is None:
            return None
        return convolution_cost(call, source=source, weight=weight, output=output, passes=1, at=0)

    return model


def _backward_model(row: _Backward, *, is_part: bool) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        gradient, source, weight = call.tensor(row.gradient), call.tensor(row.input), call.tensor(row.weight)
        wanted, transposed = call.flags(row.mask), _is_transposed(call, row.transposed)
        if not gradient or not source or not weight or transposed is None:
            return None
        if is_part:
            passes = 1
        elif wanted is None or len(wanted) != 3:
            return None
        else:
            passes = sum(wanted[:2])  # of the input's and the weight's gradient; the bias's is a plain sum
        if passes == 0:
            return None
        output = source if transposed else gradient
        return convolution_cost(call, source=source, weight=weight, output=output, passes=passes, at=row.gradient)

    return model


CONVOLUTION_MODELS: dict[str, CostModel] = {
    **{name: _forward_model(row) for name, row in FORWARDS.items()},
    **{name: _backward_model(row, is_part=False) for name, row in WHOLE_BACKWARDS.items()},
    **{name: _backward_model(row, is_part=True) for name, row in PARTS.items()},
}
"""By the operator's name."""
