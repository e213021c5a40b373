"""Cost of convolutions: FLOPs and least bytes, also where the trace has no strides.

FLOPs are those of the direct form; Winograd and FFT kernels need fewer, and may therefore exceed the peak. To add an
operator, add a row to `FORWARDS` or `WHOLE_BACKWARDS`, with the argument numbers of its schema.

Where strides are missing, sizes come from the backward pass: it gets input, weight and gradient, and the gradient is
as large as the result. The operators inside it that compute one gradient get only two of them and use its sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import (
    CostModel,
    Dims,
    OperatorCall,
    OperatorCost,
    distinct_calls,
    parse_call,
)
from stepscope.trace.columns import NONE, Category, IntColumn, Shapes, TraceColumns
from stepscope.trace.rows import distinct

_KERNELS = frozenset({Family.CONVOLUTION, Family.MATMUL})


class _Forward(NamedTuple):
    """Arguments 0 and 1 are the input and the weight."""

    padding: int
    stride: int
    dilation: int
    transposed: int | bool = False
    """the flag's argument, or its constant value"""


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
    """which gradients of input, weight and bias are computed"""
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
"""Operators of torch < 1.11 that compute one gradient -> arguments of the backward pass around them."""


def is_transposed(call: OperatorCall, transposed: int | bool) -> bool | None:
    """Roofline, convolution cost: a row's `transposed` for a call; None where not recorded."""
    return transposed if isinstance(transposed, bool) else call.flag(transposed)


def convolution_cost(
    call: OperatorCall, *, source: Dims, weight: Dims, output: Dims, passes: int, at: int
) -> OperatorCost | None:
    """Cost from sizes: each output element sums over (input channels of its group) x (kernel window), one filter.

    Args:
        call: its argument `at` gives the element type.
        source, weight, output: dimensions of a convolution that is not transposed.
        passes: multiple of these FLOPs.
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
        transposed = is_transposed(call, row.transposed)
        if not source or not weight or transposed is None:
            return None
        if transposed:
            # each input element is multiplied by one filter of [outputs of its group, window]; the result's size only
            # matters for the bytes and depends on arguments that differ between versions: the input's stands in
            return convolution_cost(call, source=source, weight=weight, output=source, passes=1, at=0)
        output = _output(call, row, source, weight)
        if output is None:
            return None
        return convolution_cost(call, source=source, weight=weight, output=output, passes=1, at=0)

    return model


def _backward_model(row: _Backward, *, is_part: bool) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        gradient, source, weight = call.tensor(row.gradient), call.tensor(row.input), call.tensor(row.weight)
        wanted, transposed = call.flags(row.mask), is_transposed(call, row.transposed)
        if not gradient or not source or not weight or transposed is None:
            return None
        if is_part:
            passes = 1
        elif wanted is None or len(wanted) != 3:
            return None
        else:
            passes = sum(wanted[:2])  # gradients of input and weight; the bias's is a plain sum
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


OutputSizes = Mapping[tuple[Dims, Dims], Dims | None]
"""Dimensions of a convolution's result by those of its input and weight; None where they are ambiguous."""


def recorded_shapes(trace: TraceColumns, operator: IntColumn) -> IntColumn:
    """Roofline, convolution cost: index into the shape table for each operator row (or NONE).

    Its own shapes, or those of the backward pass around it.
    """
    shapes: IntColumn = np.where(operator != NONE, trace.shapes[operator], NONE)
    whole = trace.rows_named(WHOLE_BACKWARDS.__contains__, Category.CPU_OP)
    if not len(whole):
        return shapes
    parts = np.flatnonzero(operator != NONE)
    parts = parts[trace.named(operator[parts], PARTS.__contains__)]
    for lane in distinct(trace.lane[operator[parts]]):
        mine = parts[trace.lane[operator[parts]] == lane]
        around = whole[trace.lane[whole] == lane]
        shapes[mine] = _shapes_around(trace, operator[mine], around, shapes[mine])
    return shapes


def _shapes_around(
    trace: TraceColumns, parts: IntColumn, whole: npt.NDArray[np.intp], own: IntColumn
) -> npt.NDArray[np.signedinteger]:
    """Shapes of the whole backward pass around each part (of one thread; they do not nest), else its own."""
    if not len(whole):
        return own
    whole = whole[np.argsort(trace.start_ns[whole], kind="stable")]
    place = np.searchsorted(trace.start_ns[whole], trace.start_ns[parts], side="right") - 1
    inside = (place >= 0) & (trace.end_ns[whole[place]] >= trace.end_ns[parts])
    return np.where(inside, trace.shapes[whole[place]], own)


def learn_outputs(trace: TraceColumns) -> OutputSizes:
    """Sizes of all backward passes in the trace that record the three tensors."""
    outputs: dict[tuple[Dims, Dims], Dims | None] = {}
    rows = trace.rows_named(WHOLE_BACKWARDS.__contains__, Category.CPU_OP)
    for pair in filter(None, distinct_calls(trace, rows, trace.shapes[rows])[0]):
        row, call = WHOLE_BACKWARDS[pair[0]], parse_call(pair[1])
        if call is None:
            continue
        gradient, source, weight = call.tensor(row.gradient), call.tensor(row.input), call.tensor(row.weight)
        if gradient and source and weight and len(gradient) == len(source) == len(weight):
            outputs[source, weight] = gradient if outputs.get((source, weight), gradient) == gradient else None
    return outputs


def learned_cost(name: str, shapes: Shapes, outputs: OutputSizes) -> OperatorCost | None:
    """Cost of a forward call with a recorded backward; None for other operators and sizes."""
    row, call = FORWARDS.get(name), parse_call(shapes)
    if row is None or row.transposed is True or call is None:
        return None
    source, weight = call.tensor(0), call.tensor(1)
    output = outputs.get((source, weight)) if source and weight else None
    if not source or not weight or not output:
        return None
    return convolution_cost(call, source=source, weight=weight, output=output, passes=1, at=0)
