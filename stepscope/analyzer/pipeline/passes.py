"""Passes of one rank: its marked micro-batches, and the optimizer that follows them.

torch's multi-stage schedules mark every action of a rank: passes (`PP:2F0`, `PP:0B3`, split backwards `PP:0I3` and
`PP:0W3`, two at once `PP:(0F5;7B2)OVERLAP_F_B`) and others (`PP:2RECV_F0`, `PP:0SEND_F1`, `PP:0UNSHARD`, `PP:0RESHARD`,
`PP:2REDUCE_GRAD`). GPipe marks `Forward 0` and `Backward 0` without the stage. torch's 1F1B marks nothing; the
reference workload writes `PP:` marks for it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, contains, time_of
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.pipeline.schedules import MicroBatch, Pass, Task
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import distinct

_PASS_MARK = re.compile(r"^PP:(\d+)([FBIW])(\d+)$")
_OVERLAP_MARK = re.compile(r"^PP:\((\d+)F(\d+);(\d+)([BI])(\d+)\)OVERLAP_F_B$")
_PLAIN_MARK = re.compile(r"^(Forward|Backward) (\d+)$")

FORWARD_SHARE = 1 / 3
"""Share of the forward in a mark with a backward, which has twice as many matrix products."""


def host_micro_batches(trace: TraceColumns, lane: int, steps: HostSteps) -> list[MicroBatch]:
    """Passes of micro-batches marked on the training loop's thread inside the steps, by start.

    The stage is NONE where the mark has none. Without steps all marks count as one step's.
    """
    rows, tasks = _marks(trace, lane, steps)
    where = steps.position_of(trace.start_ns[rows])
    found = []
    for row, place, marked in zip(rows.tolist(), where.tolist(), tasks, strict=True):
        step = int(steps.index[place]) if place != NONE else NONE
        start, end = int(trace.start_ns[row]), int(trace.end_ns[row])
        for task, first, last in _within(marked, start, end):
            found.append(MicroBatch(task, step, first, last))
    return found


def device_micro_batches(
    trace: TraceColumns, steps: HostSteps, activities: Activities, kernels: IntColumn, owned_ns: Nanoseconds
) -> list[MicroBatch]:
    """Passes of micro-batches with the kernels launched during each mark by any thread (autograd has its own).

    Without steps all marks count as one step's.

    Args:
        kernels: positions of the compute kernels in `activities`.
        owned_ns: the time attributed to each of them.
    """
    rows, tasks = _marks(trace, steps.main_lane, steps)
    if not len(rows):
        return []
    where = steps.position_of(trace.start_ns[rows])
    launch = activities.launch_ns[kernels]
    mark = np.searchsorted(trace.start_ns[rows], launch, side="right") - 1
    inside = (mark >= 0) & (launch < trace.end_ns[rows[np.maximum(mark, 0)]]) & (owned_ns > 0)
    mark, kernels = mark[inside], kernels[inside]
    busy = np.bincount(mark, weights=owned_ns[inside], minlength=len(rows))
    begin = np.full(len(rows), np.iinfo(np.int64).max)
    end = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(begin, mark, activities.start_ns[kernels])
    np.maximum.at(end, mark, activities.end_ns[kernels])
    found = []
    for place, marked in enumerate(tasks):
        step = int(steps.index[where[place]]) if where[place] != NONE else NONE
        launched = int(trace.start_ns[rows[place]]), int(trace.end_ns[rows[place]])
        empty = busy[place] == 0  # a pass without kernels still has a position in the order
        first, last = (launched[0], launched[0]) if empty else (int(begin[place]), int(end[place]))
        for task, start, stop in _within(marked, first, last):
            share = 1.0 if len(marked) == 1 else FORWARD_SHARE if task is marked[0] else 1 - FORWARD_SHARE
            found.append(MicroBatch(task, step, start, stop, float(busy[place]) * share, launched))
    return found


def _marks(trace: TraceColumns, lane: int, steps: HostSteps) -> tuple[IntColumn, list[tuple[Task, ...]]]:
    """Rows of the marks by start, and the tasks of each; marks with a stage are preferred to those without."""
    rows = trace.rows_of(Category.USER_ANNOTATION)
    rows = rows[trace.lane[rows] == lane]
    if len(steps):
        rows = rows[steps.position_of(trace.start_ns[rows]) != NONE]
    read = {name: task for name in distinct(trace.name[rows]).tolist() if (task := _read(trace.names[name]))}
    staged = {name: tasks for name, tasks in read.items() if tasks[0].stage != NONE}
    read = staged or read
    rows = rows[np.isin(trace.name[rows], list(read))]
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    return rows, [read[name] for name in trace.name[rows].tolist()]


def _read(name: str) -> tuple[Task, ...] | None:
    """Tasks of a mark in order, or None for other names."""
    if match := _PASS_MARK.match(name):
        return (Task(Pass(match.group(2)), int(match.group(1)), int(match.group(3))),)
    if match := _OVERLAP_MARK.match(name):
        forward = Task(Pass.FORWARD, int(match.group(1)), int(match.group(2)))
        return forward, Task(Pass(match.group(4)), int(match.group(3)), int(match.group(5)))
    if match := _PLAIN_MARK.match(name):
        return (Task(Pass(match.group(1)[0]), NONE, int(match.group(2))),)
    return None


def _within(tasks: tuple[Task, ...], start: int, end: int) -> list[tuple[Task, int, int]]:
    """Each task's part of a mark."""
    if len(tasks) == 1:
        return [(tasks[0], start, end)]
    middle = start + round((end - start) * FORWARD_SHARE)
    return [(tasks[0], start, middle), (tasks[1], middle, end)]


_OPTIMIZER_MARK = re.compile(r"^Optimizer\.step#|^optimizer$")
_OPTIMIZER_OPERATOR = re.compile(r"^aten::_(fused_(adamw?|sgd|adagrad)|foreach)_")
_LIST_PASS_KERNEL = re.compile(r"multi_tensor_apply|adam|lamb_|sgd|adagrad|adafactor", re.IGNORECASE)
_BETWEEN_STAGES = re.compile(r"SendRecv")


def optimizer_time(trace: TraceColumns, lane: int) -> Intervals:
    """Time under the annotations of the optimizer, which follows the pipeline's passes, on a thread."""
    rows = trace.rows_named(_OPTIMIZER_MARK.match, Category.USER_ANNOTATION, Category.CPU_OP)
    return time_of(trace, rows[trace.lane[rows] == lane])


def launched_by_optimizer(
    trace: TraceColumns, activities: Activities, kernels: IntColumn, steps: HostSteps
) -> npt.NDArray[np.bool_]:
    """Whether each kernel is the optimizer's, which follows the pipeline's passes: by annotations, else by place.

    That end begins with the first pass over lists of tensors (fused and foreach optimizers, and gradient clipping
    before them) after autograd's thread launched its last kernel and the stages exchanged their last message.

    Args:
        kernels: positions of the compute kernels in `activities`.
    """
    launch, lane = activities.launch_ns[kernels], activities.launch_lane[kernels]
    marked = optimizer_time(trace, steps.main_lane)
    if len(marked) or not len(steps):
        inside: npt.NDArray[np.bool_] = (launch != NONE) & contains(marked, launch)
        return inside
    place = steps.position_of(launch)
    on_loop = (place != NONE) & (lane == steps.main_lane)
    operators = trace.rows_named(_OPTIMIZER_OPERATOR.match, Category.CPU_OP)
    operators = operators[trace.lane[operators] == steps.main_lane]
    passes = contains(time_of(trace, operators), launch) | trace.named(
        activities.row[kernels], _LIST_PASS_KERNEL.search
    )
    begins = on_loop & passes & (launch > _ends(trace, activities, kernels, steps)[place])
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, place[begins], launch[begins])
    at_end: npt.NDArray[np.bool_] = on_loop & (launch >= first[place])
    return at_end


def _ends(trace: TraceColumns, activities: Activities, kernels: IntColumn, steps: HostSteps) -> npt.NDArray[np.int64]:
    """By step, the last launch of another thread's kernel, or of a message between stages."""
    messages = activities.of(Work.COMMUNICATION)
    messages = messages[trace.named(activities.row[messages], _BETWEEN_STAGES.search)]
    others = kernels[activities.launch_lane[kernels] != steps.main_lane]
    launch = activities.launch_ns[np.concatenate([messages, others])]
    place = steps.position_of(launch)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(last, place[place != NONE], launch[place != NONE])
    return last
