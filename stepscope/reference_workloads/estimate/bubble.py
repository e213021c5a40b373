"""How long is a pipeline's period, and which share of it do its ranks wait? The schedule's own order is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.pipeline.replay import replay
from stepscope.analyzer.pipeline.tasks import Pass, Task
from stepscope.reference_workloads.estimate.schedule_order import step_order
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.schedules import NUM_CHUNKS, SPLIT_BACKWARD_SCHEDULES


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """One micro-batch's passes through one stage."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Period:
    """One step without its optimizer.

    Attributes:
        seconds: how long it is.
        busy_seconds: of each pipeline rank.
        bubble: share of the period in which a rank waits, the mean over ranks.
        textbook: (P-1)/(vM+P-1), for stages alike and transfers free; None for schedules that split the backward pass,
            of which that formula is not.
    """

    seconds: float
    busy_seconds: tuple[float, ...]
    bubble: float
    textbook: float | None


def replay_step(plan: ParallelPlan, stages: Mapping[int, StageSeconds], *, transfer_seconds: float) -> Period:
    """Run the schedule with these durations; of a split backward both halves take the same time."""
    order = step_order(plan)
    durations = {task: _seconds(task, stages[task.stage]) for tasks in order for task in tasks}
    # The replay does not care about the unit.
    result = replay(order, durations, num_stages=plan.num_stages, transfer_ns=transfer_seconds)
    chunks = NUM_CHUNKS if plan.is_multi_stage else 1
    textbook: float | None = (plan.pp - 1) / (chunks * plan.num_micro_batches + plan.pp - 1)
    if plan.pp > 1 and plan.schedule in SPLIT_BACKWARD_SCHEDULES:
        textbook = None
    bubble = 1 - sum(result.busy_ns) / len(result.busy_ns) / result.period_ns
    return Period(result.period_ns, result.busy_ns, bubble, textbook)


def _seconds(task: Task, stage: StageSeconds) -> float:
    if task.kind is Pass.FORWARD:
        return stage.forward
    return stage.backward if task.kind is Pass.BACKWARD else stage.backward / 2
