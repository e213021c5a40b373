"""Which pipeline schedule is it? Told by the order in which the devices ran their passes, compared with the known ones.

Names follow torch's classes. Other profilers print the schedule that the configuration names; an order that was
observed also convicts a framework that runs another one than it was asked for.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise

from stepscope.analyzer.pipeline.tasks import Order, Pass, Task


class Schedule(StrEnum):
    """Pipeline schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    ZERO_BUBBLE = "zero_bubble"
    """ZB1P and its interleaved form: backwards are split, stages go round"""
    ZERO_BUBBLE_V = "zero_bubble_v"
    """ZBV: backwards are split, a device holds one stage of the way down and one of the way back"""
    DUAL_PIPE = "dual_pipe_v"
    """placed like ZBV, with a forward of one stage beside a backward of the other"""
    UNKNOWN = "unknown"


def recognise(order: Order) -> Schedule:
    """The schedule whose order this is; UNKNOWN when it is none of the known ones.

    Of two schedules that are the same for so few micro-batches, 1F1B and interleaved 1F1B win.
    """
    stages = [sorted({task.stage for task in tasks}) for tasks in order]
    num_devices, num_chunks = len(order), len(stages[0]) if stages else 0
    goes_round = stages == [list(range(d, num_devices * num_chunks, num_devices)) for d in range(num_devices)]
    goes_back = stages == [[d, 2 * num_devices - 1 - d] for d in range(num_devices)]
    is_split = any(task.kind is Pass.BACKWARD_WEIGHT for tasks in order for task in tasks)
    if goes_back and not (goes_round and not is_split):
        if is_split:
            return Schedule.DUAL_PIPE if _crosses(order) else Schedule.ZERO_BUBBLE_V
        return Schedule.UNKNOWN
    if not goes_round:
        return Schedule.UNKNOWN
    if is_split:
        return Schedule.ZERO_BUBBLE
    num_micro_batches = len({task.micro_batch for tasks in order for task in tasks})
    if order == interleaved_order(num_devices, num_micro_batches, num_chunks):
        return Schedule.ONE_F_ONE_B if num_chunks == 1 else Schedule.INTERLEAVED
    if all(_forwards_first(tasks) for tasks in order):
        return Schedule.GPIPE if num_chunks == 1 else Schedule.LOOPED_BFS
    return Schedule.UNKNOWN


def interleaved_order(num_devices: int, num_micro_batches: int, num_chunks: int = 1) -> Order:
    """1F1B with so many stages a device (one: plain 1F1B), as Megatron and torch order it.

    Micro-batches are dealt in rounds of about `num_devices`; a round goes through one stage of a device, then through
    its next.
    """
    num_rounds = max(1, num_micro_batches // num_devices)
    a_round = num_micro_batches // num_rounds if num_micro_batches % num_rounds == 0 else num_devices
    total = num_chunks * num_micro_batches
    dealt = [
        (chunk, number)
        for first in range(0, num_micro_batches, a_round)
        for chunk in range(num_chunks)
        for number in range(first, min(first + a_round, num_micro_batches))
    ]
    order = []
    for device in range(num_devices):
        forwards = [Task(Pass.FORWARD, chunk * num_devices + device, number) for chunk, number in dealt]
        backwards = [
            Task(Pass.BACKWARD, (num_chunks - 1 - chunk) * num_devices + device, number) for chunk, number in dealt
        ]
        hops = num_devices - 1 - device
        warmup = min(hops if num_chunks == 1 else (num_chunks - 1) * a_round + 2 * hops, total)
        steady = [task for i in range(total - warmup) for task in (forwards[warmup + i], backwards[i])]
        order.append(forwards[:warmup] + steady + backwards[total - warmup :])
    return order


def _forwards_first(tasks: list[Task]) -> bool:
    """No backward before a forward, and of several stages one after another."""
    forwards = [task for task in tasks if task.kind is Pass.FORWARD]
    in_turn = all(a.stage <= b.stage for a, b in pairwise(forwards))
    return in_turn and tasks[: len(forwards)] == forwards


def _crosses(order: Order) -> bool:
    """Whether forwards are mostly followed by a backward of another stage than their own."""
    crossed = same = 0
    for tasks in order:
        for task, following in pairwise(tasks):
            if task.kind is Pass.FORWARD and following.kind is not Pass.FORWARD:
                crossed += following.stage != task.stage
                same += following.stage == task.stage
    return crossed > same
