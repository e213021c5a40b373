"""Which kernels are the optimizer's? It follows the schedule, and is no part of the pipelined span."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, contains, time_of
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns

_MARK = re.compile(r"^Optimizer\.step#|^optimizer$")
_OPERATOR = re.compile(r"^aten::_(fused_(adamw?|sgd|adagrad)|foreach)_")
_KERNEL = re.compile(r"multi_tensor_apply|adam|lamb_|sgd|adagrad|adafactor", re.IGNORECASE)
_BETWEEN_STAGES = re.compile(r"SendRecv")


def optimizer_time(trace: TraceColumns, lane: int) -> Intervals:
    """What the optimizer's annotations on a thread cover."""
    rows = trace.rows_named(_MARK.match, Category.USER_ANNOTATION, Category.CPU_OP)
    return time_of(trace, rows[trace.lane[rows] == lane])


def launched_by_optimizer(
    trace: TraceColumns, activities: Activities, kernels: IntColumn, steps: HostSteps
) -> npt.NDArray[np.bool_]:
    """By compute kernel: under the optimizer's annotations; where nothing is annotated, the end of each step.

    The end of a step begins with the first pass over lists of tensors (fused and foreach optimizers, and the clipping
    of gradients before them) after autograd's thread launched its last kernel and the stages exchanged their last
    message.

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
    operators = trace.rows_named(_OPERATOR.match, Category.CPU_OP)
    operators = operators[trace.lane[operators] == steps.main_lane]
    passes = contains(time_of(trace, operators), launch) | trace.named(activities.row[kernels], _is_list_pass)
    begins = on_loop & passes & (launch > _ends(trace, activities, kernels, steps)[place])
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, place[begins], launch[begins])
    at_end: npt.NDArray[np.bool_] = on_loop & (launch >= first[place])
    return at_end


def _ends(trace: TraceColumns, activities: Activities, kernels: IntColumn, steps: HostSteps) -> npt.NDArray[np.int64]:
    """By step, the last launch of another thread's kernel, or of a message between stages."""
    messages = activities.of(Work.COMMUNICATION)
    messages = messages[trace.named(activities.row[messages], lambda name: bool(_BETWEEN_STAGES.search(name)))]
    others = kernels[activities.launch_lane[kernels] != steps.main_lane]
    launch = activities.launch_ns[np.concatenate([messages, others])]
    place = steps.position_of(launch)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(last, place[place != NONE], launch[place != NONE])
    return last


def _is_list_pass(name: str) -> bool:
    return bool(_KERNEL.search(name))
