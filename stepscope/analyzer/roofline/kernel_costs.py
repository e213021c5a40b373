"""Cost of each kernel: its FLOPs and memory traffic, and how they were found.

First by its operator's cost model; then passes over lists of tensors by their grid; then kernels launched before the
trace by the same kernel seen later.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.convolution_cost import OutputSizes, learn_outputs, learned_cost, recorded_shapes
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_operator import launching_operators, stand_ins
from stepscope.analyzer.roofline.list_passes import list_pass_bytes
from stepscope.analyzer.roofline.operator_call import Floats, distinct_calls
from stepscope.analyzer.roofline.operator_cost import operator_cost, recomputed
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

Codes = npt.NDArray[np.uint8]

DTYPES = ("", "bfloat16", "float16", "tfloat32", "float32", "float64", "float8")
"""Element types of matrix operands by code, as in core.hardware; "" without any."""


class DecidedBy(IntEnum):
    """How a kernel's limit was found."""

    NOTHING = 0
    NAME = 1
    """by its family"""
    MODEL = 2
    """from the shapes that its operator recorded"""
    BORROWED = 3
    """from the same kernel with a known operator"""
    PARAMETERS = 4
    """a pass over the parameters, by its grid and the gradients"""


class KernelCosts(NamedTuple):
    """One entry a kernel; nan where unknown.

    Attributes:
        flops: matrix FLOPs executed.
        model_flops: those without recomputation (in attention's backward, of checkpointed forwards).
        num_bytes: fewest bytes to and from memory.
        dtype: index into DTYPES.
        is_upper_bound: whether the kernel may have needed fewer FLOPs (Winograd's convolutions).
        source: DecidedBy codes, NOTHING where nan.
        operator: row of the operator that launched it, or NONE.
    """

    flops: Floats
    model_flops: Floats
    num_bytes: Floats
    dtype: Codes
    is_upper_bound: npt.NDArray[np.bool_]
    source: Codes
    operator: IntColumn


def kernel_costs(trace: TraceColumns, kernel_rows: IntColumn, launch: IntColumn, family: Codes) -> KernelCosts:
    """Costs of a rank's compute kernels.

    Args:
        launch: row of the call that launched each, or NONE.
        family: their Family codes.
    """
    operator = launching_operators(trace, kernel_rows, launch)
    costs = _by_model(trace, kernel_rows, operator, family)
    costs.model_flops[recomputed(trace, operator)] *= 0.0
    passes = list_pass_bytes(trace, kernel_rows, operator)
    sized = np.isnan(costs.num_bytes) & ~np.isnan(passes.num_bytes)
    costs.flops[sized] = costs.model_flops[sized] = 0.0
    costs.num_bytes[sized] = passes.num_bytes[sized]
    costs.source[sized] = np.where(passes.from_shapes[sized], DecidedBy.MODEL, DecidedBy.PARAMETERS)
    donor = stand_ins(trace, kernel_rows, operator)
    borrows = np.flatnonzero((donor != NONE) & np.isnan(costs.num_bytes))
    donor = donor[borrows]
    for column in (costs.flops, costs.model_flops, costs.num_bytes, costs.dtype, costs.is_upper_bound):
        column[borrows] = column[donor]
    costs.source[borrows] = np.where(np.isnan(costs.num_bytes[donor]), DecidedBy.NOTHING, DecidedBy.BORROWED)
    return costs


def _by_model(trace: TraceColumns, kernel_rows: IntColumn, operator: IntColumn, family: Codes) -> KernelCosts:
    """Each operator's cost, shared among the kernels that do its work in proportion to their durations."""
    duration = trace.end_ns[kernel_rows] - trace.start_ns[kernel_rows]
    distinct, which = distinct_calls(trace, operator, recorded_shapes(trace, operator))
    table = np.full((len(distinct), 3), np.nan)
    side = np.full((len(distinct), len(Family)), np.nan)
    dtype = np.zeros(len(distinct), np.uint8)
    works = np.zeros((len(distinct), len(Family)), np.bool_)
    is_upper_bound = np.zeros(len(distinct), np.bool_)
    kernel_names = trace.name[kernel_rows[_longest(which, duration, len(distinct))]]
    outputs: OutputSizes | None = None
    for place, call in enumerate(distinct):
        if call is None:
            continue
        name, shapes = call
        cost = operator_cost(name, shapes, kernel_name=trace.names[kernel_names[place]])
        if cost is None and "convolution" in name:
            outputs = learn_outputs(trace) if outputs is None else outputs
            cost = learned_cost(name, shapes, outputs)
        if cost is None:
            continue
        table[place] = cost.flops, cost.flops - cost.recomputed_flops, cost.num_bytes
        dtype[place] = DTYPES.index(cost.dtype) if cost.dtype in DTYPES else 0
        works[place, list(cost.families)] = True
        is_upper_bound[place] = cost.is_upper_bound
        for side_family, num_bytes in cost.side_bytes.items():
            side[place, side_family] = num_bytes
    share = _share_of_work(operator, works[which, family], family, duration)
    flops, model_flops, num_bytes = (table[which, column] * share for column in range(3))
    beside = np.isnan(num_bytes) & ~np.isnan(side[which, family])
    num_bytes[beside] = side[which, family][beside]
    flops[beside] = model_flops[beside] = 0.0
    known = ~np.isnan(num_bytes)
    return KernelCosts(
        flops=flops,
        model_flops=model_flops,
        num_bytes=num_bytes,
        dtype=np.where(known & ~beside, dtype[which], 0).astype(np.uint8),
        is_upper_bound=is_upper_bound[which],
        source=np.where(known, DecidedBy.MODEL, DecidedBy.NOTHING).astype(np.uint8),
        operator=operator,
    )


def _longest(which: npt.NDArray[np.intp], duration: IntColumn, num_calls: int) -> npt.NDArray[np.intp]:
    """For each distinct call, the position of its longest kernel."""
    longest = np.zeros(num_calls, np.intp)
    order = np.argsort(duration, kind="stable")
    longest[which[order]] = order  # the last assignment wins
    return longest


def _share_of_work(operator: IntColumn, does_work: npt.NDArray[np.bool_], family: Codes, duration: IntColumn) -> Floats:
    """Share of each kernel in its operator's cost; nan for side kernels."""
    seen = np.zeros(int(operator.max(initial=NONE)) + 2, np.bool_)
    seen[operator + 1] = True  # NONE is a call of its own
    call = (np.cumsum(seen) - 1)[operator + 1]
    # without a kernel of a matching family, those of unknown family do the work
    unnamed = (family == Family.OTHER) | (family == Family.TRITON)
    has_named = np.bincount(call, weights=does_work) > 0
    main = does_work | (unnamed & ~has_named[call])
    weight = np.where(main, np.maximum(duration, 1), 0).astype(np.float64)
    total = np.bincount(call, weights=weight)[call]
    return np.where(main, weight / np.maximum(total, 1.0), np.nan)
