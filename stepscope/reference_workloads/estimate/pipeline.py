"""Pipeline of a plan: the order of each rank's passes, replayed for its period and bubble, and layouts not modelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.pipeline import schedules
from stepscope.analyzer.pipeline.schedules import Order, Pass, Task, interleaved_order
from stepscope.core.errors import UsageError
from stepscope.reference_workloads import plan as plans


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Estimated time of one micro-batch's passes through one pipeline stage."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class SchedulePeriod:
    """Estimated time of one pipeline schedule, without the optimizer.

    Attributes:
        busy_seconds: of each pipeline rank.
        bubble: share of the period in which a rank waits, the mean over ranks.
        textbook: (P-1)/(vM+P-1), for stages alike and transfers free; None for schedules that split the backward pass,
            of which that formula is not.
    """

    seconds: float
    busy_seconds: tuple[float, ...]
    bubble: float
    textbook: float | None


def replay_schedule(
    plan: plans.ParallelPlan, stages: Mapping[int, StageSeconds], *, transfer_seconds: float
) -> SchedulePeriod:
    """Estimate a pipeline's step by running its schedule with these durations of stages."""
    order = schedule_order(plan)
    durations = {task: _seconds(task, stages[task.stage]) for tasks in order for task in tasks}
    # The replay does not care about the unit.
    result = schedules.replay_schedule(order, durations, num_stages=plan.num_stages, transfer_ns=transfer_seconds)
    chunks = plans.NUM_CHUNKS if plan.is_multi_stage else 1
    textbook: float | None = (plan.pp - 1) / (chunks * plan.num_micro_batches + plan.pp - 1)
    if plan.pp > 1 and plan.schedule in plans.SPLIT_BACKWARD_SCHEDULES:
        textbook = None
    bubble = 1 - sum(result.busy_ns) / len(result.busy_ns) / result.period_ns
    return SchedulePeriod(result.period_ns, result.busy_ns, bubble, textbook)


def _seconds(task: Task, stage: StageSeconds) -> float:
    if task.kind is Pass.FORWARD:
        return stage.forward
    return stage.backward if task.kind is Pass.BACKWARD else stage.backward / 2


def schedule_order(plan: plans.ParallelPlan) -> Order:
    """Order of passes in torch's pipeline schedules, by pipeline rank, as an estimate replays it."""
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
    return interleaved_order(plan.pp, plan.num_micro_batches, plans.NUM_CHUNKS if plan.is_multi_stage else 1)


def _looped(plan: plans.ParallelPlan, rank: int) -> list[Task]:
    """All forwards of a stage, then of the rank's next one; backwards the other way round."""
    stages, numbers = plan.stages_of(rank), range(plan.num_micro_batches)
    forwards = [Task(Pass.FORWARD, stage, number) for stage in stages for number in numbers]
    return forwards + [Task(Pass.BACKWARD, task.stage, task.micro_batch) for task in reversed(forwards)]


def _zero_bubble(plan: plans.ParallelPlan, rank: int) -> list[Task]:
    """ZB1P as torch's ScheduleInterleavedZeroBubble deals it: the weights' half comes `rank` backwards later."""
    chunk_order, round_size = _chunk_order(plan)
    forwards = [Task(Pass.FORWARD, chunk * plan.pp + rank, number) for chunk, number in chunk_order]
    backwards = [((plans.NUM_CHUNKS - 1 - chunk) * plan.pp + rank, number) for chunk, number in chunk_order]
    warmup = min((plans.NUM_CHUNKS - 1) * round_size + plan.pp - 1 - rank, len(chunk_order))
    order = forwards[:warmup]
    num_weights = 0
    for ordinal, (stage, number) in enumerate(backwards):
        order += forwards[warmup + ordinal : warmup + ordinal + 1]
        order.append(Task(Pass.BACKWARD_INPUT, stage, number))
        if ordinal >= rank:
            order.append(Task(Pass.BACKWARD_WEIGHT, *backwards[num_weights]))
            num_weights += 1
    return order + [Task(Pass.BACKWARD_WEIGHT, *backward) for backward in backwards[num_weights:]]


def _chunk_order(plan: plans.ParallelPlan) -> tuple[list[tuple[int, int]], int]:
    """(chunk, micro-batch) in the order of the forward passes, and the micro-batches of a round."""
    num_micro_batches = plan.num_micro_batches
    round_size = num_micro_batches // max(1, num_micro_batches // plan.pp)
    order = [
        (chunk, number)
        for first in range(0, num_micro_batches, round_size)
        for chunk in range(plans.NUM_CHUNKS)
        for number in range(first, min(first + round_size, num_micro_batches))
    ]
    return order, round_size


KNOWN_SCHEDULES = plans.SINGLE_STAGE_SCHEDULES + plans.LOOPED_SCHEDULES


def refuse_not_estimated(plan: plans.ParallelPlan, preset: plans.Preset) -> None:
    """Refuse layouts and models that no estimate covers."""
    unknown = [
        option.replace("_", " ")
        for option in ("sequence_parallel", "loss_parallel", "cpu_offload")
        if getattr(plan, option)
    ]
    if preset.image is not None:
        unknown.append("a model of images, whose memory is mostly activations")
    if plan.pp > 1 and plan.schedule not in KNOWN_SCHEDULES:
        unknown.append(f"the {plan.schedule} schedule")
    if unknown:
        raise UsageError(
            f"no estimate knows {' and '.join(unknown)}", what_next="plan without it, or run it and measure"
        )
