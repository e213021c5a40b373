"""How much arithmetic and how much memory traffic does an operator need at the least?

Only exact and simple models: an operator, or a form of it, that is not surely understood has no cost. The tables are
in arithmetic_cost (matrix products, attention, convolutions) and traffic_cost (all that streams through memory).
"""

from __future__ import annotations

from stepscope.analyzer.roofline.arithmetic_cost import ARITHMETIC_MODELS
from stepscope.analyzer.roofline.operator_call import CostModel, OperatorCost, parse_call
from stepscope.analyzer.roofline.traffic_cost import TRAFFIC_MODELS, generated_kernel
from stepscope.trace.columns import Shapes

_MODELS: dict[str, CostModel] = {**TRAFFIC_MODELS, **ARITHMETIC_MODELS}
_GENERATED = ("triton_poi_", "triton_red_", "triton_per_")


def operator_cost(name: str, shapes: Shapes) -> OperatorCost | None:
    """Cost of one call of an operator (its profiler name, e.g. "aten::mm"), or None where no model is sure of it."""
    model = _MODELS.get(name)
    if model is None and name.startswith(_GENERATED):
        model = generated_kernel
    if model is None:
        return None
    call = parse_call(shapes)
    return model(call) if call is not None else None
