"""How long would one period of a pipeline schedule take if each pass took just its given time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.analyzer.pipeline.tasks import Pass, Task


@dataclass(frozen=True, slots=True)
class Replay:
    """One period, nanoseconds.

    Attributes:
        period_ns: its length.
        busy_ns: by device, the time in passes.
        idle_ns: by device, how long it idles before each pass whose input comes from another device; what it idles at
            the end of a period counts before its first pass.
    """

    period_ns: float
    busy_ns: tuple[float, ...]
    idle_ns: tuple[tuple[float, ...], ...]


def replay(
    order: Sequence[Sequence[Task]],
    duration_ns: Mapping[Task, float],
    *,
    num_stages: int,
    transfer_ns: float = 0.0,
    between_ns: float = 0.0,
) -> Replay:
    """Run every device's tasks in their order, each as soon as its input is there.

    A forward needs the previous stage's forward, a backward its own forward and the next stage's backward (of a split
    one the half for the input), the half for the weights its own other half; between devices the input travels for
    `transfer_ns`, and a device takes `between_ns` from one task to its next.

    Raises:
        ValueError: the order waits for itself or for a task that nobody runs.
    """
    device_of_stage = {task.stage: device for device, tasks in enumerate(order) for task in tasks}
    end: dict[tuple[bool, int, int], float] = {}  # (is gradient, stage, micro-batch) -> when it is there
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
                if received(task, device_of_stage, num_stages):
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
        if tasks and received(tasks[0], device_of_stage, num_stages):
            idle[device][0] += max(free) - free[device]
    return Replay(max(free), busy, tuple(map(tuple, idle)))


def received(task: Task, device_of_stage: Mapping[int, int], num_stages: int) -> list[tuple[bool, int]]:
    """(is gradient, stage) of the task's inputs that are made on another device."""
    own = device_of_stage[task.stage]
    return [(is_grad, stage) for is_grad, stage in _needs(task, num_stages) if device_of_stage[stage] != own]


def _ready(
    task: Task,
    end: Mapping[tuple[bool, int, int], float],
    device_of_stage: Mapping[int, int],
    num_stages: int,
    transfer_ns: float,
) -> float | None:
    """When the task's inputs are there, or None while one is missing."""
    ready = 0.0
    for is_gradient, stage in _needs(task, num_stages):
        made = end.get((is_gradient, stage, task.micro_batch))
        if made is None:
            return None
        travels = device_of_stage[stage] != device_of_stage[task.stage]
        ready = max(ready, made + (transfer_ns if travels else 0.0))
    return ready


def _needs(task: Task, num_stages: int) -> list[tuple[bool, int]]:
    """(is gradient, stage) of what a task takes."""
    if task.kind is Pass.FORWARD:
        return [(False, task.stage - 1)] if task.stage else []
    if task.kind is Pass.BACKWARD_WEIGHT:
        return [(True, task.stage)]
    needs = [(False, task.stage)]
    if task.stage < num_stages - 1:
        needs.append((True, task.stage + 1))
    return needs
