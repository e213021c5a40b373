"""Time breakdown of a run without a device (CPU and gloo): category of each instant of the main thread.

Priority: checkpoint and data loading with everything inside them; Python's garbage collection, which is the host's;
operators and simulated compute; communication in flight without an open operator; the rest is the host's. Nested spans
need no stack, as each class is a union of spans.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, intersect, join, single, subtract, time_of
from stepscope.analyzer.ledger.host_spans import garbage_rows, host_annotations
from stepscope.analyzer.ledger.segments import CategorySpans, Segments, assemble
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.trace.columns import NONE, Category, TraceColumns

_COMMUNICATION_OPERATOR = re.compile(r"^(c10d::|_c10d_functional::|record_param_comms)|wait_tensor")
_BACKEND_SPAN = re.compile(r"^(gloo|mpi|ucc):")
"""On worker threads, and on the main thread from an asynchronous send until it is waited for; what the main thread does
inside is not part of it."""
_AUTOGRAD_NODE = re.compile(r"^autograd::engine::evaluate_function: |^\w+Backward\d*$")
"""Encloses the operators of a backward step and, with FSDP, the reduction that its hook waits for."""
_SIMULATED_COMPUTE = re.compile(r"^simulated_compute")


def main_lane(trace: TraceColumns, steps: HostSteps) -> int:
    """Time breakdown: thread of the training loop: that of the steps, else that with most operators; or NONE."""
    if steps.main_lane != NONE:
        return steps.main_lane
    operators = trace.rows_of(Category.CPU_OP)
    if not len(operators):
        return NONE
    return int(np.bincount(trace.lane[operators]).argmax())


def host_window(trace: TraceColumns, steps: HostSteps) -> Window:
    """The steps on the host; without steps, first to last event of the main thread."""
    if len(steps):
        return Window(int(steps.start_ns[0]), int(steps.end_ns[-1]), steps.index, steps.start_ns, 0)
    rows = np.flatnonzero(trace.lane == main_lane(trace, steps))
    start, end = int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())
    return Window(start, end, np.array([0]), np.array([start], np.int64), 0)


def attribute_host_time(trace: TraceColumns, steps: HostSteps, window: Window) -> Segments:
    """Attribute the main thread's window."""
    lane = main_lane(trace, steps)
    annotations = host_annotations(trace, [lane])
    rows = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION)
    operators, communicating = _classes(trace, rows, lane)
    left = single(window.start_ns, window.end_ns)
    parts = []
    for cover, category, cause in (
        (annotations[TimeCategory.CHECKPOINT], TimeCategory.CHECKPOINT, None),
        (annotations[TimeCategory.DATA_LOADING], TimeCategory.DATA_LOADING, None),
        (time_of(trace, garbage_rows(trace)), TimeCategory.HOST_BOUND, None),
        (operators, TimeCategory.COMPUTE_OTHER, Cause.COMPUTE_BOUND),
        (communicating, TimeCategory.COMMUNICATION_UNSPLIT, None),
        (annotations[TimeCategory.PROFILER], TimeCategory.PROFILER, None),
    ):
        parts.append(CategorySpans(intersect(left, cover), category, cause))
        left = subtract(left, cover)
    return assemble([*parts, CategorySpans(left, TimeCategory.HOST_BOUND)])


def _classes(trace: TraceColumns, rows: npt.NDArray[np.intp], lane: int) -> tuple[Intervals, Intervals]:
    """Time in operators outside communication, and time in which communication was in flight on any thread."""
    is_communication = trace.named(rows, _COMMUNICATION_OPERATOR.search)
    is_backend = trace.named(rows, _BACKEND_SPAN.search)
    on_main = trace.lane[rows] == lane
    is_node = trace.named(rows, _AUTOGRAD_NODE.search)
    computes = _computes(trace, rows, lane)
    communicating = time_of(trace, rows[(on_main & is_communication) | is_backend])
    nodes = subtract(time_of(trace, rows[computes & is_node]), communicating)
    operators = join(time_of(trace, rows[computes & ~is_node]), nodes)
    return subtract(operators, time_of(trace, rows[on_main & is_communication])), communicating


def computing_rows(trace: TraceColumns, lane: int) -> npt.NDArray[np.intp]:
    """Time breakdown of a CPU run: a thread's operators outside communication and simulated compute; they may nest."""
    rows = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION)
    return rows[_computes(trace, rows, lane)]


def _computes(trace: TraceColumns, rows: npt.NDArray[np.intp], lane: int) -> npt.NDArray[np.bool_]:
    is_operator = trace.category[rows] == Category.CPU_OP
    is_simulated = trace.named(rows, _SIMULATED_COMPUTE.search)
    computes: npt.NDArray[np.bool_] = (is_operator | is_simulated) & (trace.lane[rows] == lane)
    return computes & ~trace.named(rows, _COMMUNICATION_OPERATOR.search)
