"""How much arithmetic and how much memory traffic does an operator need at the least?

Only exact and simple models: an operator, or a form of it, that is not surely understood has no cost. The tables are
in matmul_cost, attention_cost, convolution_cost, traffic_cost (all that streams through memory) and lookup_cost (rows
and elements picked by index).
"""

from __future__ import annotations

from stepscope.analyzer.roofline.attention_cost import ATTENTION_MODELS
from stepscope.analyzer.roofline.convolution_cost import CONVOLUTION_MODELS
from stepscope.analyzer.roofline.kernel_family import is_elementwise
from stepscope.analyzer.roofline.kernel_types import element_bytes_of
from stepscope.analyzer.roofline.lookup_cost import LOOKUP_MODELS
from stepscope.analyzer.roofline.matmul_cost import MATMUL_MODELS
from stepscope.analyzer.roofline.operator_call import CostModel, OperatorCost, parse_call
from stepscope.analyzer.roofline.traffic_cost import TRAFFIC_MODELS, generated_kernel, pointwise_model
from stepscope.trace.columns import Shapes

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
        kernel_name: the kernel that did most of its work: tells the element type of lists, and that an operator without
            a row in the tables works element by element.
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
