"""What were a convolution's sizes where the trace keeps no strides and paddings (torch before 2.1)?

Its backward pass is told all three tensors, input, weight and gradient, and the gradient is as large as the result was.
The operators inside it that compute one gradient each are told two of them: they are read with its sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.membership import distinct
from stepscope.analyzer.roofline.convolution_cost import FORWARDS, PARTS, WHOLE_BACKWARDS, convolution_cost
from stepscope.analyzer.roofline.operator_call import Dims, OperatorCost, distinct_calls, parse_call
from stepscope.trace.columns import NONE, Category, IntColumn, Shapes, TraceColumns

OutputSizes = Mapping[tuple[Dims, Dims], Dims | None]
"""Dimensions of a convolution's result by those of its input and weight; None where they met different ones."""


def recorded_shapes(trace: TraceColumns, operator: IntColumn) -> IntColumn:
    """Index into the shape table for each operator row (or NONE): its own, or those of the backward pass around it."""
    shapes: IntColumn = np.where(operator != NONE, trace.shapes[operator], NONE)
    whole = trace.rows_named(WHOLE_BACKWARDS.__contains__, Category.CPU_OP)
    if not len(whole):
        return shapes
    parts = np.flatnonzero(operator != NONE)
    parts = parts[trace.named(operator[parts].astype(np.intp), PARTS.__contains__)]
    for lane in distinct(trace.lane[operator[parts]]):
        mine = parts[trace.lane[operator[parts]] == lane]
        around = whole[trace.lane[whole] == lane]
        shapes[mine] = _shapes_around(trace, operator[mine], around, shapes[mine])
    return shapes


def _shapes_around(
    trace: TraceColumns, parts: IntColumn, whole: npt.NDArray[np.intp], own: IntColumn
) -> npt.NDArray[np.signedinteger]:
    """Shapes of the whole backward pass that each part lies in (of one thread; they do not nest), else its own."""
    if not len(whole):
        return own
    whole = whole[np.argsort(trace.start_ns[whole], kind="stable")]
    place = np.searchsorted(trace.start_ns[whole], trace.start_ns[parts], side="right") - 1
    inside = (place >= 0) & (trace.end_ns[whole[place]] >= trace.end_ns[parts])
    return np.where(inside, trace.shapes[whole[place]], own)


def learn_outputs(trace: TraceColumns) -> OutputSizes:
    """Collect the sizes of all backward passes in the trace that record the three tensors."""
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
    """Cost of a forward call whose backward was seen; None for other operators and what was never seen."""
    row, call = FORWARDS.get(name), parse_call(shapes)
    if row is None or row.transposed is True or call is None:
        return None
    source, weight = call.tensor(0), call.tensor(1)
    output = outputs.get((source, weight)) if source and weight else None
    if not source or not weight or not output:
        return None
    return convolution_cost(call, source=source, weight=weight, output=output, passes=1, at=0)
