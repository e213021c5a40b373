"""How long would one period of a pipeline schedule take if each forward and backward took just its given time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Schedule(StrEnum):
    """Pipeline schedules by torch's names."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True)
class Task:
    """One forward or backward: `stage` is the virtual stage (its place in the chain of model parts)."""

    is_forward: bool
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The period's length, and the busy time of each device, nanoseconds."""

    period_ns: float
    busy_ns: tuple[float, ...]


def schedule_order(schedule: Schedule, num_devices: int, num_micro_batches: int) -> list[list[Task]]:
    """Each device's tasks in order, for the schedules with one stage a device."""
    order = []
    for device in range(num_devices):
        forwards = [Task(True, device, m) for m in range(num_micro_batches)]
        backwards = [Task(False, device, m) for m in range(num_micro_batches)]
        if schedule is Schedule.GPIPE:
            order.append(forwards + backwards)
            continue
        warmup = min(num_devices - 1 - device, num_micro_batches)
        steady = [task for m in range(num_micro_batches - warmup) for task in (forwards[warmup + m], backwards[m])]
        order.append(forwards[:warmup] + steady + backwards[num_micro_batches - warmup :])
    return order


def replay(
    order: Sequence[Sequence[Task]], duration_ns: Mapping[Task, float], *, num_stages: int, transfer_ns: float = 0.0
) -> Replay:
    """Run every device's tasks in their order, each as soon as its input is there.

    A forward needs the previous stage's forward, a backward its own forward and the next stage's backward;
    between devices the input travels for `transfer_ns`.

    Raises:
        ValueError: the order waits for itself or for a task that nobody runs.
    """
    device_of_stage = {task.stage: device for device, tasks in enumerate(order) for task in tasks}
    end: dict[Task, float] = {}
    free = [0.0] * len(order)
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
                free[device] = end[task] = max(free[device], ready) + duration_ns[task]
                next_task[device] += 1
                remaining -= 1
                progressed = True
        if not progressed:
            raise ValueError("the pipeline's order waits for itself")
    busy = tuple(sum(duration_ns[task] for task in tasks) for tasks in order)
    return Replay(max(free), busy)


def _ready(
    task: Task, end: Mapping[Task, float], device_of_stage: Mapping[int, int], num_stages: int, transfer_ns: float
) -> float | None:
    """When the task's inputs are there, or None while one is missing."""
    needs = []
    if task.is_forward:
        if task.stage > 0:
            needs.append(Task(True, task.stage - 1, task.micro_batch))
    else:
        needs.append(Task(True, task.stage, task.micro_batch))
        if task.stage < num_stages - 1:
            needs.append(Task(False, task.stage + 1, task.micro_batch))
    ready = 0.0
    for need in needs:
        if need not in end:
            return None
        travels = device_of_stage[need.stage] != device_of_stage[task.stage]
        ready = max(ready, end[need] + (transfer_ns if travels else 0.0))
    return ready
