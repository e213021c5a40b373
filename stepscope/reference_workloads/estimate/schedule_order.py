"""In which order does each pipeline rank run its passes?"""

from __future__ import annotations

from stepscope.analyzer.pipeline.schedules import interleaved_order
from stepscope.analyzer.pipeline.tasks import Order, Pass, Task
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.schedules import NUM_CHUNKS


def step_order(plan: ParallelPlan) -> Order:
    """The order of torch's schedule classes, by pipeline rank; without a pipeline one micro-batch after another."""
    numbers = range(plan.num_micro_batches)
    if plan.pp == 1:
        return [[Task(kind, 0, number) for number in numbers for kind in (Pass.FORWARD, Pass.BACKWARD)]]
    if plan.schedule == "gpipe":
        return [
            [Task(kind, rank, number) for kind in (Pass.FORWARD, Pass.BACKWARD) for number in numbers]
            for rank in range(plan.pp)
        ]
    if plan.schedule == "looped-bfs":
        return [_looped(plan, rank) for rank in range(plan.pp)]
    if plan.schedule == "zero-bubble":
        return [_zero_bubble(plan, rank) for rank in range(plan.pp)]
    return interleaved_order(plan.pp, plan.num_micro_batches, NUM_CHUNKS if plan.is_multi_stage else 1)


def _looped(plan: ParallelPlan, rank: int) -> list[Task]:
    """All forwards of a stage, then of the rank's next one; backwards the other way round."""
    stages, numbers = plan.stages_of(rank), range(plan.num_micro_batches)
    forwards = [Task(Pass.FORWARD, stage, number) for stage in stages for number in numbers]
    return forwards + [Task(Pass.BACKWARD, task.stage, task.micro_batch) for task in reversed(forwards)]


def _zero_bubble(plan: ParallelPlan, rank: int) -> list[Task]:
    """ZB1P as torch's ScheduleInterleavedZeroBubble deals it: the weights' half comes `rank` backwards later."""
    dealt, a_round = _dealt(plan)
    forwards = [Task(Pass.FORWARD, chunk * plan.pp + rank, number) for chunk, number in dealt]
    backwards = [((NUM_CHUNKS - 1 - chunk) * plan.pp + rank, number) for chunk, number in dealt]
    warmup = min((NUM_CHUNKS - 1) * a_round + plan.pp - 1 - rank, len(dealt))
    order = forwards[:warmup]
    num_weights = 0
    for ordinal, (stage, number) in enumerate(backwards):
        order += forwards[warmup + ordinal : warmup + ordinal + 1]
        order.append(Task(Pass.BACKWARD_INPUT, stage, number))
        if ordinal >= rank:
            order.append(Task(Pass.BACKWARD_WEIGHT, *backwards[num_weights]))
            num_weights += 1
    return order + [Task(Pass.BACKWARD_WEIGHT, *backward) for backward in backwards[num_weights:]]


def _dealt(plan: ParallelPlan) -> tuple[list[tuple[int, int]], int]:
    """(chunk, micro-batch) in the order of the forward passes, and the micro-batches of a round."""
    num_micro_batches = plan.num_micro_batches
    a_round = num_micro_batches // max(1, num_micro_batches // plan.pp)
    dealt = [
        (chunk, number)
        for first in range(0, num_micro_batches, a_round)
        for chunk in range(NUM_CHUNKS)
        for number in range(first, min(first + a_round, num_micro_batches))
    ]
    return dealt, a_round
