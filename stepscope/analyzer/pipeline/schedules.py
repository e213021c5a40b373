"""Pipeline schedules: passes, known orders (named after torch's classes), and the replay of one period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from stepscope.trace.columns import NONE


class Pass(StrEnum):
    """Kind of pass of a micro-batch through one pipeline stage, with torch's letter."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    """the half of a split backward that the previous stage waits for"""
    BACKWARD_WEIGHT = "W"
    """the other half, with which zero-bubble schedules fill their gaps"""

    @property
    def sends_gradient(self) -> bool:
        """Whether the previous stage needs it."""
        return self in (Pass.BACKWARD, Pass.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of one micro-batch in a pipeline; `stage` is the virtual stage (index in the chain of model parts)."""

    kind: Pass
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Marked pass of one micro-batch through one pipeline stage.

    Attributes:
        task: the pass; its stage is NONE where the mark has none.
        step: the step number it was launched in, or NONE without steps.
        start_ns, end_ns: on the rank's clock; on a device of the kernels launched during the mark.
        busy_ns: time attributed to those kernels; None without a device.
        launched_ns: the mark's span on the host, on the rank's own clock, as in its graph; None without a device.
    """

    task: Task
    step: int
    start_ns: int
    end_ns: int
    busy_ns: float | None = None
    launched_ns: tuple[int, int] | None = None

    def task_of(self, place: int) -> Task:
        """The pass; a mark without a stage is of the only stage of its rank, `place` in the pipeline."""
        return self.task if self.task.stage != NONE else replace(self.task, stage=place)


Order = list[list[Task]]
"""By device, its tasks in the order in which it runs them."""


class ScheduleKind(StrEnum):
    """Pipeline schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    ZERO_BUBBLE = "zero_bubble"
    """ZB1P and its interleaved form: split backwards, stages in round-robin order over devices"""
    ZERO_BUBBLE_V = "zero_bubble_v"
    """ZBV: split backwards, a device holds one stage of the way down and one of the way back"""
    DUAL_PIPE = "dual_pipe_v"
    """stages as in ZBV, with a forward of one stage beside a backward of the other"""
    UNKNOWN = "unknown"


def recognise_schedule(order: Order) -> ScheduleKind:
    """Pipeline schedule with this order, or UNKNOWN.

    Of schedules that are equal for few micro-batches, 1F1B and interleaved 1F1B win.
    """
    stages = [sorted({task.stage for task in tasks}) for tasks in order]
    num_devices, num_chunks = len(order), len(stages[0]) if stages else 0
    goes_round = stages == [list(range(d, num_devices * num_chunks, num_devices)) for d in range(num_devices)]
    goes_back = stages == [[d, 2 * num_devices - 1 - d] for d in range(num_devices)]
    is_split = any(task.kind is Pass.BACKWARD_WEIGHT for tasks in order for task in tasks)
    if goes_back and not (goes_round and not is_split):
        if is_split:
            return ScheduleKind.DUAL_PIPE if _crosses(order) else ScheduleKind.ZERO_BUBBLE_V
        return ScheduleKind.UNKNOWN
    if not goes_round:
        return ScheduleKind.UNKNOWN
    if is_split:
        return ScheduleKind.ZERO_BUBBLE
    num_micro_batches = len({task.micro_batch for tasks in order for task in tasks})
    if order == interleaved_order(num_devices, num_micro_batches, num_chunks):
        return ScheduleKind.ONE_F_ONE_B if num_chunks == 1 else ScheduleKind.INTERLEAVED
    if all(_forwards_first(tasks) for tasks in order):
        return ScheduleKind.GPIPE if num_chunks == 1 else ScheduleKind.LOOPED_BFS
    return ScheduleKind.UNKNOWN


def interleaved_order(num_devices: int, num_micro_batches: int, num_chunks: int = 1) -> Order:
    """Pipeline analysis: order of the 1F1B schedule with `num_chunks` stages per device, as Megatron and torch.

    One chunk: plain 1F1B. Micro-batches go in rounds of about `num_devices`; a round passes one stage of a device, then
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
    """Whether no backward precedes a forward, and several stages follow one another."""
    forwards = [task for task in tasks if task.kind is Pass.FORWARD]
    in_turn = all(a.stage <= b.stage for a, b in pairwise(forwards))
    return in_turn and tasks[: len(forwards)] == forwards


def _crosses(order: Order) -> bool:
    """Whether forwards are mostly followed by a backward of another stage."""
    crossed = same = 0
    for tasks in order:
        for task, following in pairwise(tasks):
            if task.kind is Pass.FORWARD and following.kind is not Pass.FORWARD:
                crossed += following.stage != task.stage
                same += following.stage == task.stage
    return crossed > same


class ScheduleReplay(NamedTuple):
    """One replayed period of a pipeline schedule.

    Attributes:
        period_ns: its length.
        busy_ns: by device, the time in passes.
        idle_ns: by device, idle time before each pass whose input comes from another device; idle time at the end of a
            period counts before its first pass.
    """

    period_ns: float
    busy_ns: tuple[float, ...]
    idle_ns: tuple[tuple[float, ...], ...]


def replay_schedule(
    order: Sequence[Sequence[Task]],
    duration_ns: Mapping[Task, float],
    *,
    num_stages: int,
    transfer_ns: float = 0.0,
    between_ns: float = 0.0,
) -> ScheduleReplay:
    """Simulate one period of a pipeline: every device runs its tasks in order, each as soon as its inputs are ready.

    A forward needs the previous stage's forward; a backward its own forward and the next stage's backward (if split,
    the half for the input); the half for the weights needs its other half. Inputs from another device take
    `transfer_ns`, and a device takes `between_ns` between two tasks.

    Raises:
        ValueError: the order is a deadlock, or a needed task is missing.
    """
    device_of_stage = {task.stage: device for device, tasks in enumerate(order) for task in tasks}
    end: dict[tuple[bool, int, int], float] = {}  # (is gradient, stage, micro-batch) -> when it is ready
    free = [0.0] * len(order)
    idle: list[list[float]] = [[] for _ in order]
    next_task = [0] * len(order)
    remaining = sum(map(len, order))
    while remaining:
        progressed = False
        for device, tasks in enumerate(order):
            while next_task[device] < len(tasks):
                task = tasks[next_task[device]]
                ready = _ready(task, end, device_of_stage, num_stages, transfer_ns)
                if ready is None:
                    break
                if next_task[device]:
                    free[device] += between_ns
                if received_inputs(task, device_of_stage, num_stages):
                    idle[device].append(max(ready - free[device], 0.0))
                free[device] = max(free[device], ready) + duration_ns[task]
                if task.kind is not Pass.BACKWARD_WEIGHT:
                    end[task.kind.sends_gradient, task.stage, task.micro_batch] = free[device]
                next_task[device] += 1
                remaining -= 1
                progressed = True
        if not progressed:
            raise ValueError("the pipeline's order waits for itself")
    busy = tuple(sum(duration_ns[task] for task in tasks) for tasks in order)
    for device, tasks in enumerate(order):
        if tasks and received_inputs(tasks[0], device_of_stage, num_stages):
            idle[device][0] += max(free) - free[device]
    return ScheduleReplay(max(free), busy, tuple(map(tuple, idle)))


def received_inputs(task: Task, device_of_stage: Mapping[int, int], num_stages: int) -> list[tuple[bool, int]]:
    """Pipeline analysis: (is gradient, stage) of a scheduled task's inputs from other devices."""
    own = device_of_stage[task.stage]
    return [(is_grad, stage) for is_grad, stage in _needs(task, num_stages) if device_of_stage[stage] != own]


def _ready(
    task: Task,
    end: Mapping[tuple[bool, int, int], float],
    device_of_stage: Mapping[int, int],
    num_stages: int,
    transfer_ns: float,
) -> float | None:
    """When the task's inputs are ready, or None while one is missing."""
    ready = 0.0
    for is_gradient, stage in _needs(task, num_stages):
        made = end.get((is_gradient, stage, task.micro_batch))
        if made is None:
            return None
        travels = device_of_stage[stage] != device_of_stage[task.stage]
        ready = max(ready, made + (transfer_ns if travels else 0.0))
    return ready


def _needs(task: Task, num_stages: int) -> list[tuple[bool, int]]:
    """(is gradient, stage) of a task's inputs."""
    if task.kind is Pass.FORWARD:
        return [(False, task.stage - 1)] if task.stage else []
    if task.kind is Pass.BACKWARD_WEIGHT:
        return [(True, task.stage)]
    needs = [(False, task.stage)]
    if task.stage < num_stages - 1:
        needs.append((True, task.stage + 1))
    return needs
