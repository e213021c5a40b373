"""Which operators repeat forward work inside backward, as activation checkpointing does?

Backward formulas call other operators than modules do: the gradient of a linear layer is `aten::mm`, that of a
convolution `aten::convolution_backward`. A module's own operators inside a backward node are a forward that runs again.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, contains, intersect, time_of, union
from stepscope.analyzer.membership import distinct
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")
_FORWARD = re.compile(
    r"^aten::(linear|addmm|baddbmm|conv[123]d|convolution|scaled_dot_product_attention|_(flash|efficient|cudnn)_attention"
    r"_forward|embedding|layer_norm|rms_norm|batch_norm|group_norm|cross_entropy_loss)$"
    r"|^flash_attn::_flash_attn(_varlen)?_forward$"
)
"""Entry points of modules that no backward formula calls."""
_PRODUCT = re.compile(r"^aten::(matmul|einsum)$")
"""Called by modules, and by hand-written backward formulas: a repetition only beside an entry point of the others."""


def recomputed(trace: TraceColumns, operator: IntColumn) -> npt.NDArray[np.bool_]:
    """Whether each operator row (or NONE) lies in a forward that runs inside backward."""
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
        again = union(
            np.concatenate((repeated.start, intersect(products, nodes).start)),
            np.concatenate((repeated.end, intersect(products, nodes).end)),
        )
        result[mine] = contains(again, trace.start_ns[operator[mine]])
    return result
