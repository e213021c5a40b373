"""Are the orders that frameworks run recognised, torch's own above all?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.replay import replay
from stepscope.analyzer.pipeline.schedules import Schedule, interleaved_order, recognise
from stepscope.analyzer.pipeline.tasks import Order, Pass, Task
from tests.analyzer.pipeline.scheduled import gpipe_order

sizes = st.integers(1, 6)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([gpipe_order, interleaved_order]), sizes, sizes)
def test_every_pass_runs_once_and_no_backward_before_its_forward(
    make: Callable[[int, int], Order], devices: int, micro_batches: int
) -> None:
    for device, tasks in enumerate(make(devices, micro_batches)):
        assert len(set(tasks)) == len(tasks) == 2 * micro_batches
        for number in range(micro_batches):
            forward, backward = (tasks.index(Task(k, device, number)) for k in (Pass.FORWARD, Pass.BACKWARD))
            assert forward < backward


def test_1f1b_holds_no_more_activations_than_it_has_stages_behind_it() -> None:
    for device, tasks in enumerate(interleaved_order(4, 8)):
        held = most = 0
        for task in tasks:
            held += 1 if task.kind is Pass.FORWARD else -1
            most = max(most, held)
        assert most == 4 - device


def torchs_order(name: str, devices: int, micro_batches: int, chunks: int) -> Order:
    """What torch would run; the schedule is made as on each rank, without processes."""
    schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules")
    maker = getattr(schedules, name)
    one = maker.__new__(maker)
    one.pp_group_size, one._n_microbatches, one._num_stages = devices, micro_batches, devices * chunks
    one._stages, one.n_local_stages, one.num_stages = [None] * chunks, chunks, devices * chunks
    one.number_of_rounds = max(1, micro_batches // devices)
    one.microbatches_per_round = micro_batches // one.number_of_rounds
    with patch.object(schedules.logger, "debug"):
        actions = [one._calculate_single_rank_operations(rank) for rank in range(devices)]
    return [[task for action in own if action is not None for task in tasks_of(action)] for own in actions]


def tasks_of(action: Any) -> list[Task]:
    if action.sub_actions:
        return [task for sub in action.sub_actions for task in tasks_of(sub)]
    return [Task(Pass(action.computation_type.value), action.stage_index, action.microbatch_index)]


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 2), (2, 4), (4, 4), (4, 8), (4, 10), (8, 16)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_torchs_interleaved_order_is_ours(devices: int, micro_batches: int, chunks: int) -> None:
    order = torchs_order("ScheduleInterleaved1F1B", devices, micro_batches, chunks)
    assert order == interleaved_order(devices, micro_batches, chunks)
    assert recognise(order) is Schedule.INTERLEAVED


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ScheduleLoopedBFS", Schedule.LOOPED_BFS),
        ("ScheduleInterleavedZeroBubble", Schedule.ZERO_BUBBLE),
        ("ScheduleZBVZeroBubble", Schedule.ZERO_BUBBLE_V),
        ("ScheduleDualPipeV", Schedule.DUAL_PIPE),
    ],
)
@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (2, 8), (4, 8), (4, 16)])
def test_torchs_multi_stage_schedules_are_told_apart(
    name: str, expected: Schedule, devices: int, micro_batches: int
) -> None:
    order = torchs_order(name, devices, micro_batches, 2)
    assert recognise(order) is expected
    durations = {task: 2.0 if task.kind is Pass.BACKWARD else 1.0 for tasks in order for task in tasks}
    result = replay(order, durations, num_stages=2 * devices)
    assert set(result.busy_ns) == {6.0 * micro_batches}
    assert result.period_ns >= 6.0 * micro_batches


@pytest.mark.parametrize("devices", [2, 4])
def test_zbv_has_no_bubble_but_the_first_forwards_when_all_passes_take_the_same_time(devices: int) -> None:
    order = torchs_order("ScheduleZBVZeroBubble", devices, 4 * devices, 2)
    durations = {task: 1.0 for tasks in order for task in tasks}
    period = replay(order, durations, num_stages=2 * devices).period_ns
    assert period - 6.0 * 4 * devices == devices - 1


def test_the_split_backward_makes_a_smaller_bubble_than_1f1b() -> None:
    def period(order: Order) -> float:
        durations = {task: 2.0 if task.kind is Pass.BACKWARD else 1.0 for tasks in order for task in tasks}
        return replay(order, durations, num_stages=8).period_ns

    assert period(torchs_order("ScheduleInterleavedZeroBubble", 4, 8, 2)) < period(interleaved_order(4, 8, 2))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 8))
def test_plain_schedules_are_recognised(devices: int, micro_batches: int) -> None:
    assert recognise(gpipe_order(devices, micro_batches)) is Schedule.GPIPE
    assert recognise(interleaved_order(devices, micro_batches)) is Schedule.ONE_F_ONE_B


def test_gpipes_backwards_may_come_in_either_direction() -> None:
    turned = [tasks[:4] + tasks[:3:-1] for tasks in gpipe_order(2, 4)]
    assert recognise(turned) is Schedule.GPIPE


def test_what_is_none_of_these_is_unknown() -> None:
    order = gpipe_order(2, 3)
    order[0][0], order[0][1] = order[0][1], order[0][0]
    order[0].insert(2, order[0].pop(3))
    assert recognise(order) is Schedule.UNKNOWN
    assert recognise([[Task(Pass.FORWARD, 0, 0)], [Task(Pass.FORWARD, 3, 0)]]) is Schedule.UNKNOWN
