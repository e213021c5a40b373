"""Checks of gradients for NaN: what torch's anomaly mode does after each operator of the backward pass."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.trace.columns import Category, TraceColumns
from stepscope.trace.rows import distinct

EVALUATION = "autograd::engine::evaluate_function: "
"""Beginning of the name of the span in which autograd's engine runs an operator and checks what it gives."""
_WITHOUT_RESULT = "AccumulateGrad"
"""An operator that gives nothing to check."""
_CHECK, _READ = "aten::isnan", "aten::item"
"""Operators of a check (`isnan().any().item()`), by engine.cpp of torch 1.5 to 2.13."""


def checked_gradients(trace: TraceColumns) -> float:
    """Share of the backward pass's operators after which their engine checks the results for NaN; 0.0 without any.

    A check is inside of the engine's span and after the operator, unlike one that the operator makes itself.
    """
    spans = trace.rows_named(
        lambda name: name.startswith(EVALUATION) and not name.endswith(_WITHOUT_RESULT), Category.CPU_OP
    )
    if not len(spans):
        return 0.0
    operators = {name.removeprefix(EVALUATION) for name in trace.names if name.startswith(EVALUATION)}
    rows = {
        "operator": trace.rows_named(operators.__contains__, Category.CPU_OP),
        "check": trace.rows_named(_CHECK.__eq__, Category.CPU_OP),
        "read": trace.rows_named(_READ.__eq__, Category.CPU_OP),
    }
    if not all(map(len, rows.values())):
        return 0.0
    num_checked = 0
    for lane in distinct(trace.lane[spans]).tolist():
        own = spans[trace.lane[spans] == lane]
        begins, ends = trace.start_ns[own], trace.end_ns[own]
        operator, check, read = (few[trace.lane[few] == lane] for few in rows.values())
        operator = operator[np.argsort(trace.start_ns[operator], kind="stable")]
        inside = np.searchsorted(trace.start_ns[operator], begins)
        operator_ends = np.append(trace.end_ns[operator], _NEVER)[inside]
        checked = _next(trace.start_ns[check], operator_ends)
        num_checked += int(np.count_nonzero((checked < ends) & (_next(trace.start_ns[read], checked) < ends)))
    return num_checked / len(spans)


_NEVER = np.iinfo(np.int64).max


def _next(times_ns: Nanoseconds, since_ns: Nanoseconds) -> Nanoseconds:
    """For each time the first of `times_ns` that is not before it."""
    ascending = np.append(np.sort(times_ns), _NEVER)
    return ascending[np.searchsorted(ascending, since_ns)]
