"""Traces written by hand of GPUs that run a given pipeline schedule, for any order of passes."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.analyzer.pipeline.schedules import Order, Pass, Task
from tests.analyzer.build import AUTOGRAD, GEMM, MAIN, TraceBuilder

TRANSFER_US = 2

Place = tuple[bool, int, int]
"""(is gradient, stage that makes it, micro-batch)"""


def gpipe_order(num_devices: int, num_micro_batches: int) -> Order:
    """All forwards, then all backwards."""
    return [
        [Task(kind, d, m) for kind in (Pass.FORWARD, Pass.BACKWARD) for m in range(num_micro_batches)]
        for d in range(num_devices)
    ]


def scheduled(
    order: Order,
    duration_us: Callable[[Task], int],
    *,
    marked: bool,
    steps: int = 3,
    tail_us: int = 0,
    tail_kernel: str | None = None,
    loading_us: int = 0,
    first_rank: int = 0,
    world: int | None = None,
) -> list[TraceBuilder]:
    """One rank a device; activations and gradients travel as send/receive kernels; nothing but the order delays anyone.

    Args:
        marked: whether the host writes torch's marks around each pass and each send and receive.
        tail_us: an optimizer kernel at the end of each step.
        tail_kernel: its name, where nothing annotates the optimizer.
        loading_us: before each step the first device's host waits for data so long, and only then launches.
        first_rank, world: the ranks of one pipeline among several.
    """
    devices = len(order)
    traces = [TraceBuilder(rank=first_rank + device, world_size=world or devices) for device in range(devices)]
    free = [100_000] * devices
    for step in range(steps):
        launches = [step * 10_000 + 1] * devices
        done: dict[Place, int] = {}
        queues = [list(tasks) for tasks in order]
        begin = free[0]
        if loading_us:
            free[0] = begin + loading_us
            launches[0] = free[0] - 1
            traces[0].annotation("prof.data", begin - 5, free[0] - 1)
        for trace in traces[1:] if loading_us else traces:
            trace.step(step, step * 10_000, step * 10_000 + 10_000)
        while any(queues):
            for device, queue in enumerate(queues):
                if queue and (start := _start(order, queue[0], done, free[device])) is not None:
                    task = queue.pop(0)
                    launches[device] = _record(
                        traces[device], order, task, start, launches[device], duration_us, marked
                    )
                    free[device] = start[1] + duration_us(task)
                    done[task.kind is not Pass.FORWARD, task.stage, task.micro_batch] = free[device]
        if tail_us:
            for device, trace in enumerate(traces):
                if tail_kernel is None:
                    trace.annotation("Optimizer.step#AdamW.step", launches[device], launches[device] + 2)
                end = free[device] + tail_us
                trace.kernel(free[device], end, launch=launches[device], name=tail_kernel or GEMM)
                free[device] += tail_us
        if loading_us:
            traces[0].step(step, begin - 5, free[0] - 5)
    return traces


def _start(order: Order, task: Task, done: dict[Place, int], free: int) -> tuple[int, int] | None:
    """When the device asks for its input and when it has it; None while the input is not made."""
    last = max(t.stage for tasks in order for t in tasks)
    if task.kind is Pass.BACKWARD_WEIGHT:
        return free, free
    source = task.stage - 1 if task.kind is Pass.FORWARD else task.stage + 1
    if not 0 <= source <= last:
        return free, free
    made = done.get((task.kind is not Pass.FORWARD, source, task.micro_batch))
    if made is None:
        return None
    return (
        (free, max(made, free) + TRANSFER_US) if _device(order, source) != _device(order, task.stage) else (free, free)
    )


def _device(order: Order, stage: int) -> int:
    return next(device for device, tasks in enumerate(order) if any(task.stage == stage for task in tasks))


def _record(
    trace: TraceBuilder,
    order: Order,
    task: Task,
    start: tuple[int, int],
    launch: int,
    duration_us: Callable[[Task], int],
    marked: bool,
) -> int:
    """Write one pass with its receive before and its send after; returns where the host is then."""
    forward = task.kind is Pass.FORWARD
    last = max(t.stage for tasks in order for t in tasks)
    own = _device(order, task.stage)
    group = tuple(range((trace.rank or 0) - own, (trace.rank or 0) - own + len(order)))
    asked, begin = start
    end = begin + duration_us(task)
    letter = "F" if forward else "B"
    if begin > asked:
        source = _device(order, task.stage - 1 if forward else task.stage + 1)
        if marked:
            trace.annotation(f"PP:{task.stage}RECV_{letter}{task.micro_batch}", launch, launch + 2)
        trace.point_to_point(asked, begin, launch=launch, group=group, receive_from=[group[source]], stream=20)
        launch += 3
    if marked:
        trace.annotation(f"PP:{task.stage}{task.kind}{task.micro_batch}", launch, launch + 2)
    trace.kernel(begin, end, launch=launch, thread=MAIN if forward else AUTOGRAD)
    launch += 3
    following = task.stage + 1 if forward else task.stage - 1
    if task.kind is not Pass.BACKWARD_WEIGHT and 0 <= following <= last and _device(order, following) != own:
        if marked:
            trace.annotation(f"PP:{task.stage}SEND_{letter}{task.micro_batch}", launch, launch + 2)
        destination = _device(order, following)
        trace.point_to_point(
            end, end + TRANSFER_US, launch=launch, group=group, send_to=[group[destination]], stream=21
        )
        launch += 3
    return launch
