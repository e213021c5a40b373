"""Schedules that frameworks run are recognized, first of all those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.schedules import (
    Order,
    Pass,
    ScheduleKind,
    ScheduleReplay,
    Task,
    interleaved_order,
    recognise_schedule,
    replay_schedule,
)
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
    assert recognise_schedule(order) is ScheduleKind.INTERLEAVED


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ScheduleLoopedBFS", ScheduleKind.LOOPED_BFS),
        ("ScheduleInterleavedZeroBubble", ScheduleKind.ZERO_BUBBLE),
        ("ScheduleZBVZeroBubble", ScheduleKind.ZERO_BUBBLE_V),
        ("ScheduleDualPipeV", ScheduleKind.DUAL_PIPE),
    ],
)
@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (2, 8), (4, 8), (4, 16)])
def test_torchs_multi_stage_schedules_are_told_apart(
    name: str, expected: ScheduleKind, devices: int, micro_batches: int
) -> None:
    order = torchs_order(name, devices, micro_batches, 2)
    assert recognise_schedule(order) is expected
    durations = {task: 2.0 if task.kind is Pass.BACKWARD else 1.0 for tasks in order for task in tasks}
    result = replay_schedule(order, durations, num_stages=2 * devices)
    assert set(result.busy_ns) == {6.0 * micro_batches}
    assert result.period_ns >= 6.0 * micro_batches


@pytest.mark.parametrize("devices", [2, 4])
def test_zbv_has_no_bubble_but_the_first_forwards_when_all_passes_take_the_same_time(devices: int) -> None:
    order = torchs_order("ScheduleZBVZeroBubble", devices, 4 * devices, 2)
    durations = {task: 1.0 for tasks in order for task in tasks}
    period = replay_schedule(order, durations, num_stages=2 * devices).period_ns
    assert period - 6.0 * 4 * devices == devices - 1


def test_the_split_backward_makes_a_smaller_bubble_than_1f1b() -> None:
    def period(order: Order) -> float:
        durations = {task: 2.0 if task.kind is Pass.BACKWARD else 1.0 for tasks in order for task in tasks}
        return replay_schedule(order, durations, num_stages=8).period_ns

    assert period(torchs_order("ScheduleInterleavedZeroBubble", 4, 8, 2)) < period(interleaved_order(4, 8, 2))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 8))
def test_plain_schedules_are_recognised(devices: int, micro_batches: int) -> None:
    assert recognise_schedule(gpipe_order(devices, micro_batches)) is ScheduleKind.GPIPE
    assert recognise_schedule(interleaved_order(devices, micro_batches)) is ScheduleKind.ONE_F_ONE_B


def test_gpipes_backwards_may_come_in_either_direction() -> None:
    turned = [tasks[:4] + tasks[:3:-1] for tasks in gpipe_order(2, 4)]
    assert recognise_schedule(turned) is ScheduleKind.GPIPE


def test_what_is_none_of_these_is_unknown() -> None:
    order = gpipe_order(2, 3)
    order[0][0], order[0][1] = order[0][1], order[0][0]
    order[0].insert(2, order[0].pop(3))
    assert recognise_schedule(order) is ScheduleKind.UNKNOWN
    assert recognise_schedule([[Task(Pass.FORWARD, 0, 0)], [Task(Pass.FORWARD, 3, 0)]]) is ScheduleKind.UNKNOWN


orders = st.builds(lambda make, p, m: make(p, m), st.sampled_from([gpipe_order, interleaved_order]), sizes, sizes)


def run(order: Order, forward: float, backward: float) -> ScheduleReplay:
    durations = {task: forward if task.kind is Pass.FORWARD else backward for tasks in order for task in tasks}
    return replay_schedule(order, durations, num_stages=1 + max(task.stage for task in durations))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([gpipe_order, interleaved_order]), sizes, sizes, st.integers(1, 9), st.integers(1, 9))
def test_equal_stages_take_the_textbook_period(
    make: Callable[[int, int], Order], devices: int, micro_batches: int, forward: int, backward: int
) -> None:
    result = run(make(devices, micro_batches), forward, backward)
    assert result.period_ns == (micro_batches + devices - 1) * (forward + backward)
    assert set(result.busy_ns) == {micro_batches * (forward + backward)}


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4), st.integers(1, 9))
def test_interleaved_stages_idle_as_the_textbook_says(devices: int, rounds: int, chunks: int, forward: int) -> None:
    micro_batches = devices * rounds
    result = run(interleaved_order(devices, micro_batches, chunks), forward, 2 * forward)
    busy = chunks * micro_batches * 3 * forward
    assert set(result.busy_ns) == {busy}
    assert 1 - busy / result.period_ns == pytest.approx((devices - 1) / (chunks * micro_batches + devices - 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 4))
def test_a_heavy_last_stage_sets_the_pace_of_1f1b(devices: int, micro_batches: int, unit: int, factor: int) -> None:
    """Filling and draining take the other stages' passes once each; between, the last stage never waits."""
    order = interleaved_order(devices, micro_batches)
    weight = {task: factor if task.stage == devices - 1 else 1 for tasks in order for task in tasks}
    durations = {task: weight[task] * unit * (1 if task.kind is Pass.FORWARD else 2) for task in weight}
    result = replay_schedule(order, durations, num_stages=devices)
    assert result.period_ns == micro_batches * 3 * unit * factor + (devices - 1) * 3 * unit


@settings(max_examples=80, deadline=None)
@given(orders, st.data())
def test_any_durations_run_through_and_take_no_less_than_the_busiest_device(order: Order, data: st.DataObject) -> None:
    durations = {task: data.draw(st.integers(0, 9)) for tasks in order for task in tasks}
    result = replay_schedule(order, durations, num_stages=len(order))
    assert max(result.busy_ns) <= result.period_ns <= sum(durations.values())


def test_transfers_count_between_devices_only() -> None:
    order = [[Task(Pass.FORWARD, 0, 0), Task(Pass.FORWARD, 1, 0)], [Task(Pass.FORWARD, 2, 0)]]
    durations = {task: 10.0 for tasks in order for task in tasks}
    assert replay_schedule(order, durations, num_stages=3, transfer_ns=5.0).period_ns == 35.0


def test_a_split_backward_passes_its_gradient_on_before_its_weights_are_done() -> None:
    stages = [
        [Task(kind, stage, 0) for kind in (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)] for stage in (0, 1)
    ]
    durations = {task: 10.0 for tasks in stages for task in tasks}
    assert replay_schedule(stages, durations, num_stages=2).period_ns == 50.0  # as whole backwards 60
    whole = [[Task(kind, stage, 0) for kind in (Pass.FORWARD, Pass.BACKWARD)] for stage in (0, 1)]
    durations = {task: 10.0 if task.kind is Pass.FORWARD else 20.0 for tasks in whole for task in tasks}
    assert replay_schedule(whole, durations, num_stages=2).period_ns == 60.0


def test_weights_before_their_gradient_wait_for_ever() -> None:
    order = [[Task(Pass.FORWARD, 0, 0), Task(Pass.BACKWARD_WEIGHT, 0, 0), Task(Pass.BACKWARD_INPUT, 0, 0)]]
    with pytest.raises(ValueError, match="waits for itself"):
        replay_schedule(order, dict.fromkeys(order[0], 1.0), num_stages=1)


def test_an_order_that_waits_for_itself_is_refused() -> None:
    order = [[Task(Pass.BACKWARD, 0, 0), Task(Pass.FORWARD, 0, 0)]]
    with pytest.raises(ValueError, match="waits for itself"):
        replay_schedule(order, dict.fromkeys(order[0], 1.0), num_stages=1)


def test_a_task_that_nobody_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        replay_schedule([[Task(Pass.FORWARD, 1, 0)]], {Task(Pass.FORWARD, 1, 0): 1.0}, num_stages=2)
