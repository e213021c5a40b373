"""How many FLOPs do matrix products need, and how few bytes?

To teach a new operator, add a row to `_MATMULS`. Argument numbers are those of the operator's schema.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import CostModel, OperatorCall, OperatorCost

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
            # 2-D by 3-D: each row meets one expert's matrix; the other forms depend on the offsets' values
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
            # split-K: at least two parts, in float32, are added up
            side_bytes={Family.REDUCTION: 2.0 * batch * m * n * _PARTIAL_BYTES + result},
        )

    return model


MATMUL_MODELS: dict[str, CostModel] = {
    name: _matmul_model(row, grouped="grouped" in name) for name, row in _MATMULS.items()
}
"""By the operator's name."""
