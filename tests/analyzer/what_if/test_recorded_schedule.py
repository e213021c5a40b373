"""Awaited transfers between pipeline stages are measured apart from other time between the passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.schedules import Order, Pass, Task, interleaved_order
from stepscope.analyzer.what_if.pipeline_schedule import PassRun, PipelineSchedule, between_passes

Step = dict[Task, PassRun]


def _step(order: Order, own: dict[Task, int], *, transfer: int, between: int) -> Step:
    """Two devices run their passes in order, each as soon as its input is there."""
    ran: Step = {}
    waiting = [list(tasks) for tasks in order]
    free = [0, 0]
    while any(waiting):
        for device, tasks in enumerate(waiting):
            if not tasks:
                continue
            task = tasks[0]
            other = Task(task.kind, 1 - device, task.micro_batch)
            needs_other = device == (1 if task.kind is Pass.FORWARD else 0)
            if needs_other and other not in ran:
                continue
            begin = free[device] + between if free[device] else 0
            if needs_other:
                begin = max(begin, ran[other].end_ns + transfer)
            free[device] = begin + own[task]
            ran[tasks.pop(0)] = PassRun(free[device], own[task])
    return ran


def _shifted(step: Step, stage: int, by: int) -> Step:
    """The same with a clock that is off on one stage."""
    return {task: PassRun(ran.end_ns + by * (task.stage == stage), ran.own_ns) for task, ran in step.items()}


def _even(order: Order, own: int) -> dict[Task, int]:
    return {task: own for tasks in order for task in tasks}


def test_a_hand_over_and_what_lies_between_passes_are_measured_apart() -> None:
    order = interleaved_order(2, 4)
    step = _step(order, _even(order, 100), transfer=7, between=2)
    transfer, between = between_passes(order, [step, step])
    assert transfer == pytest.approx(7)
    assert between == pytest.approx(2)


def test_clocks_that_are_off_cancel_between_the_ways_there_and_back() -> None:
    order = interleaved_order(2, 4)
    step = _step(order, _even(order, 100), transfer=7, between=0)
    there, back = (between_passes(order, [_shifted(step, 1, by)])[0] for by in (5, -5))
    assert there is not None
    assert back is not None
    assert (there + back) / 2 == pytest.approx(7, abs=2)


def test_a_pipeline_in_which_nobody_waits_tells_no_hand_over() -> None:
    order = interleaved_order(2, 2)
    own = {task: 10 if task.stage == 0 else 1 for tasks in order for task in tasks}
    alone = {task: PassRun(0, 1.0) for task in own}
    assert between_passes(order, [alone]) == (None, 0.0)


@given(st.lists(st.lists(st.integers(50, 500), min_size=16, max_size=16), min_size=1, max_size=4), st.integers(0, 30))
def test_each_step_is_replayed_with_its_own_passes(passes: list[list[int]], transfer: int) -> None:
    order = interleaved_order(2, 4)
    tasks = [task for of_device in order for task in of_device]
    steps = [_step(order, dict(zip(tasks, own, strict=True)), transfer=transfer, between=0) for own in passes]
    hand_over, between = between_passes(order, steps)
    measured = sum(max(ran.end_ns for ran in step.values()) for step in steps) / len(steps)
    schedule = PipelineSchedule(
        chain=(0, 1),
        order=order,
        pass_ns=[{task: ran.own_ns for task, ran in step.items()} for step in steps],
        transfer_ns=float(transfer) if hand_over is None else hand_over,
        between_ns=between,
        tail_ns=0.0,
        period_ns=measured,
        steps=list(range(len(steps))),
    )
    # of a hand-over that ended while the receiver still computed only a part was waited for
    assert schedule.step_ns() == pytest.approx(measured, rel=0.1)
