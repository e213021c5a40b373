"""How many FLOPs did the operators of a trace ask for, whatever kernels they launched?

That is all there is to count on a CPU. A modelled operator often calls another (convolution, _convolution,
mkldnn_convolution): the outermost one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.membership import distinct
from stepscope.analyzer.roofline.convolution_shapes import recorded_shapes
from stepscope.analyzer.roofline.operator_call import distinct_calls
from stepscope.analyzer.roofline.operator_cost import operator_cost
from stepscope.analyzer.roofline.recomputation import recomputed
from stepscope.trace.columns import NONE, Category, TraceColumns

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperatorFlops:
    """Operators with matrix FLOPs, one entry a call.

    Attributes:
        row: index into the trace's columns.
        flops: executed.
        model_flops: those that repeat nothing.
    """

    row: npt.NDArray[np.intp]
    flops: Floats
    model_flops: Floats


def operator_flops(trace: TraceColumns) -> OperatorFlops:
    """Matrix FLOPs of the host's operators."""
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
    counts = _outermost(trace, rows[flops > 0])
    counted = np.flatnonzero(flops > 0)[counts]
    rows = rows[counted]
    return OperatorFlops(rows, flops[counted], np.where(recomputed(trace, rows), 0.0, model_flops[counted]))


def _outermost(trace: TraceColumns, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Whether no other of the rows encloses each of them on its thread."""
    outermost = np.ones(len(rows), np.bool_)
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    for lane in distinct(trace.lane[rows]):
        mine = np.flatnonzero(trace.lane[rows] == lane)
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        reach = np.maximum.accumulate(end[mine])
        outermost[mine[1:]] = start[mine[1:]] >= reach[:-1]
    return outermost
