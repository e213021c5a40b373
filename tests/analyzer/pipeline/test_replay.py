"""Does a replayed pipeline take as long as theory says, and does it never wait for itself?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.replay import Replay, replay
from stepscope.analyzer.pipeline.schedules import interleaved_order
from stepscope.analyzer.pipeline.tasks import Order, Pass, Task
from tests.analyzer.pipeline.scheduled import gpipe_order

sizes = st.integers(1, 6)
orders = st.builds(lambda make, p, m: make(p, m), st.sampled_from([gpipe_order, interleaved_order]), sizes, sizes)


def run(order: Order, forward: float, backward: float) -> Replay:
    durations = {task: forward if task.kind is Pass.FORWARD else backward for tasks in order for task in tasks}
    return replay(order, durations, num_stages=1 + max(task.stage for task in durations))


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
    result = replay(order, durations, num_stages=devices)
    assert result.period_ns == micro_batches * 3 * unit * factor + (devices - 1) * 3 * unit


@settings(max_examples=80, deadline=None)
@given(orders, st.data())
def test_any_durations_run_through_and_take_no_less_than_the_busiest_device(order: Order, data: st.DataObject) -> None:
    durations = {task: data.draw(st.integers(0, 9)) for tasks in order for task in tasks}
    result = replay(order, durations, num_stages=len(order))
    assert max(result.busy_ns) <= result.period_ns <= sum(durations.values())


def test_transfers_count_between_devices_only() -> None:
    order = [[Task(Pass.FORWARD, 0, 0), Task(Pass.FORWARD, 1, 0)], [Task(Pass.FORWARD, 2, 0)]]
    durations = {task: 10.0 for tasks in order for task in tasks}
    assert replay(order, durations, num_stages=3, transfer_ns=5.0).period_ns == 35.0


def test_a_split_backward_passes_its_gradient_on_before_its_weights_are_done() -> None:
    stages = [
        [Task(kind, stage, 0) for kind in (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)] for stage in (0, 1)
    ]
    durations = {task: 10.0 for tasks in stages for task in tasks}
    assert replay(stages, durations, num_stages=2).period_ns == 50.0  # as whole backwards 60
    whole = [[Task(kind, stage, 0) for kind in (Pass.FORWARD, Pass.BACKWARD)] for stage in (0, 1)]
    durations = {task: 10.0 if task.kind is Pass.FORWARD else 20.0 for tasks in whole for task in tasks}
    assert replay(whole, durations, num_stages=2).period_ns == 60.0


def test_weights_before_their_gradient_wait_for_ever() -> None:
    order = [[Task(Pass.FORWARD, 0, 0), Task(Pass.BACKWARD_WEIGHT, 0, 0), Task(Pass.BACKWARD_INPUT, 0, 0)]]
    with pytest.raises(ValueError, match="waits for itself"):
        replay(order, dict.fromkeys(order[0], 1.0), num_stages=1)


def test_an_order_that_waits_for_itself_is_refused() -> None:
    order = [[Task(Pass.BACKWARD, 0, 0), Task(Pass.FORWARD, 0, 0)]]
    with pytest.raises(ValueError, match="waits for itself"):
        replay(order, dict.fromkeys(order[0], 1.0), num_stages=1)


def test_a_task_that_nobody_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        replay([[Task(Pass.FORWARD, 1, 0)]], {Task(Pass.FORWARD, 1, 0): 1.0}, num_stages=2)
