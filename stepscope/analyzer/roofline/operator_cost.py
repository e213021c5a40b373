"""Cost of operators: least FLOPs and bytes, FLOPs of a whole trace, recomputed operators.

Only exact and simple models: an operator, or a form of it, that is not fully understood has no cost. The tables are in
matmul_cost (matrix products and attention), convolution_cost and traffic_cost (operators that stream through memory or
select by index).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, contains, intersect, join, time_of
from stepscope.analyzer.roofline.convolution_cost import CONVOLUTION_MODELS, recorded_shapes
from stepscope.analyzer.roofline.element_types import element_bytes_of
from stepscope.analyzer.roofline.kernel_family import is_elementwise
from stepscope.analyzer.roofline.matmul_cost import ATTENTION_MODELS, MATMUL_MODELS
from stepscope.analyzer.roofline.operator_call import CostModel, Floats, OperatorCost, distinct_calls, parse_call
from stepscope.analyzer.roofline.traffic_cost import LOOKUP_MODELS, TRAFFIC_MODELS, generated_kernel, pointwise_model
from stepscope.trace.columns import NONE, Category, IntColumn, Shapes, TraceColumns
from stepscope.trace.rows import distinct, outermost

_MODELS: dict[str, CostModel] = {
    **TRAFFIC_MODELS,
    **LOOKUP_MODELS,
    **MATMUL_MODELS,
    **ATTENTION_MODELS,
    **CONVOLUTION_MODELS,
}
_GENERATED = ("triton_poi_", "triton_red_", "triton_per_")
_OTHER_POINTWISE = {in_place: pointwise_model(None, in_place=in_place, comparison=False) for in_place in (False, True)}


def operator_cost(name: str, shapes: Shapes, *, kernel_name: str = "") -> OperatorCost | None:
    """Cost of one call of an operator, or None where no model is sure of it.

    Args:
        name: its profiler name, e.g. "aten::mm".
        shapes: what it was called with.
        kernel_name: the kernel that did most of its work: gives the element type of lists, and shows that an operator
            without a row in the tables works element by element.
    """
    model = _MODELS.get(name)
    if model is None and name.startswith(_GENERATED):
        model = generated_kernel
    if model is None and name.startswith("aten::") and is_elementwise(kernel_name):
        model = _OTHER_POINTWISE[name.endswith("_")]
    if model is None:
        return None
    call = parse_call(shapes, list_element_bytes=element_bytes_of(kernel_name))
    return model(call) if call is not None else None


_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")
_FORWARD = re.compile(
    r"^aten::(linear|addmm|baddbmm|conv[123]d|convolution|scaled_dot_product_attention|_(flash|efficient|cudnn)_attention"
    r"_forward|embedding|layer_norm|rms_norm|batch_norm|group_norm|cross_entropy_loss)$"
    r"|^flash_attn::_flash_attn(_varlen)?_forward$"
)
"""Entry points of modules that no backward formula calls."""
_PRODUCT = re.compile(r"^aten::(matmul|einsum)$")
"""Called by modules and by hand-written backward formulas: recomputation only beside one of the other entry points."""


def recomputed(trace: TraceColumns, operator: IntColumn) -> npt.NDArray[np.bool_]:
    """Roofline, operator cost: whether each operator row (or NONE) is part of a forward run again inside backward.

    Backward formulas call other operators than modules do: the gradient of a linear layer is `aten::mm`, that of a
    convolution `aten::convolution_backward`. So a module's own operators inside a backward node are recomputation.
    """
    result = np.zeros(len(operator), np.bool_)
    forward = trace.rows_named(_FORWARD.match, Category.CPU_OP)
    backward = trace.rows_named(_BACKWARD.search, Category.CPU_OP)
    if not len(forward) or not len(backward):
        return result
    product = trace.rows_named(_PRODUCT.match, Category.CPU_OP)
    known = np.flatnonzero(operator != NONE)
    for lane in distinct(trace.lane[backward]):
        mine = known[trace.lane[operator[known]] == lane]
        nodes, starts, products = (
            time_of(trace, some[trace.lane[some] == lane]) for some in (backward, forward, product)
        )
        repeated = intersect(starts, nodes)
        holds_forward = np.searchsorted(repeated.start, nodes.end) > np.searchsorted(repeated.start, nodes.start)
        nodes = Intervals(nodes.start[holds_forward], nodes.end[holds_forward])
        result[mine] = contains(join(repeated, intersect(products, nodes)), trace.start_ns[operator[mine]])
    return result


class OperatorFlops(NamedTuple):
    """Operators with matrix FLOPs, one entry a call.

    Attributes:
        row: index into the trace's columns.
        flops: executed.
        model_flops: those without recomputation.
    """

    row: npt.NDArray[np.intp]
    flops: Floats
    model_flops: Floats


def operator_flops(trace: TraceColumns) -> OperatorFlops:
    """Matrix FLOPs of the host's operators: of a CPU run all there is to count.

    A modelled operator often calls another (convolution, _convolution, mkldnn_convolution): the outermost one counts.
    """
    rows = trace.rows_of(Category.CPU_OP)
    shapes = recorded_shapes(trace, rows)
    rows, shapes = rows[shapes != NONE], shapes[shapes != NONE]
    distinct, which = distinct_calls(trace, rows, shapes)
    table = np.zeros((len(distinct), 2))
    for place, call in enumerate(distinct):
        cost = operator_cost(*call) if call is not None else None
        if cost is not None:
            table[place] = cost.flops, cost.flops - cost.recomputed_flops
    flops, model_flops = table[which].T
    counted = np.flatnonzero(np.isin(rows, outermost(trace, rows[flops > 0])))
    rows = rows[counted]
    return OperatorFlops(rows, flops[counted], np.where(recomputed(trace, rows), 0.0, model_flops[counted]))
