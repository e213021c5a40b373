"""Does a replayed pipeline take as long as theory says, and does it never wait for itself?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.replay import Replay, Schedule, Task, replay, schedule_order

schedules = st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B])
sizes = st.integers(1, 6)


def run(schedule: Schedule, devices: int, micro_batches: int, forward: float, backward: float) -> Replay:
    order = schedule_order(schedule, devices, micro_batches)
    durations = {task: forward if task.is_forward else backward for tasks in order for task in tasks}
    return replay(order, durations, num_stages=devices)


@settings(max_examples=80, deadline=None)
@given(schedules, sizes, sizes, st.integers(1, 9), st.integers(1, 9))
def test_equal_stages_take_the_textbook_period(
    schedule: Schedule, devices: int, micro_batches: int, forward: int, backward: int
) -> None:
    result = run(schedule, devices, micro_batches, forward, backward)
    assert result.period_ns == (micro_batches + devices - 1) * (forward + backward)
    assert set(result.busy_ns) == {micro_batches * (forward + backward)}


@settings(max_examples=80, deadline=None)
@given(schedules, sizes, sizes, st.data())
def test_any_durations_run_through_and_take_no_less_than_the_busiest_device(
    schedule: Schedule, devices: int, micro_batches: int, data: st.DataObject
) -> None:
    order = schedule_order(schedule, devices, micro_batches)
    tasks = [task for of_device in order for task in of_device]
    durations = {task: data.draw(st.integers(0, 9)) for task in tasks}
    result = replay(order, durations, num_stages=devices)
    assert result.period_ns >= max(result.busy_ns)
    assert result.period_ns <= sum(durations.values())


@settings(max_examples=40, deadline=None)
@given(schedules, sizes, sizes)
def test_every_task_runs_once_and_no_backward_before_its_forward(
    schedule: Schedule, devices: int, micro_batches: int
) -> None:
    for device, tasks in enumerate(schedule_order(schedule, devices, micro_batches)):
        assert len(set(tasks)) == len(tasks) == 2 * micro_batches
        for number in range(micro_batches):
            assert tasks.index(Task(True, device, number)) < tasks.index(Task(False, device, number))


def test_1f1b_holds_no_more_activations_than_it_has_stages_behind_it() -> None:
    for device, tasks in enumerate(schedule_order(Schedule.ONE_F_ONE_B, 4, 8)):
        held = most = 0
        for task in tasks:
            held += 1 if task.is_forward else -1
            most = max(most, held)
        assert most == 4 - device


def test_transfers_count_between_devices_only() -> None:
    order = [[Task(True, 0, 0), Task(True, 1, 0)], [Task(True, 2, 0)]]
    durations = {task: 10.0 for tasks in order for task in tasks}
    assert replay(order, durations, num_stages=3, transfer_ns=5.0).period_ns == 35.0


def test_an_order_that_waits_for_itself_is_refused() -> None:
    order = [[Task(False, 0, 0), Task(True, 0, 0)]]
    with pytest.raises(ValueError, match="waits for itself"):
        replay(order, dict.fromkeys(order[0], 1.0), num_stages=1)


def test_a_task_that_nobody_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        replay([[Task(True, 1, 0)]], {Task(True, 1, 0): 1.0}, num_stages=2)
