"""Schedule and bubble of a GPU job, from marks of the host or from communication alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepscope.analyzer.pipeline.schedules import Order, Pass, Task, interleaved_order, replay_schedule
from stepscope.analyzer.pipeline.stages import order_from_traffic
from stepscope.core.documents.analysis import Pipeline
from stepscope.core.vocabulary import Cause
from tests.analyzer.pipeline.scheduled import gpipe_order, scheduled
from tests.analyzer.readings import analyse, cause_us, row_of, view_of


def usual(task: Task) -> int:
    return 200 if task.kind is Pass.BACKWARD else 100


def heavy_last(task: Task) -> int:
    return usual(task) * (3 if task.stage == 7 else 1)


def figures(order: Order, duration_us: Callable[[Task], int], *, marked: bool) -> Pipeline:
    pipeline = analyse(*scheduled(order, duration_us, marked=marked, tail_us=50)).pipeline
    assert pipeline is not None
    assert pipeline.structural + pipeline.imbalance + pipeline.variance == pytest.approx(pipeline.measured)
    return pipeline


def split_order(devices: int, micro_batches: int) -> Order:
    """1F1B whose backwards leave the weights for later."""
    order: Order = []
    for tasks in interleaved_order(devices, micro_batches):
        halves = [Task(Pass.BACKWARD_INPUT, t.stage, t.micro_batch) if t.kind is Pass.BACKWARD else t for t in tasks]
        weights = [Task(Pass.BACKWARD_WEIGHT, t.stage, t.micro_batch) for t in tasks if t.kind is Pass.BACKWARD]
        order.append(halves + weights)
    return order


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("order", "name", "chunks"),
    [
        (interleaved_order(4, 4), "1f1b", 1),
        (interleaved_order(2, 6), "1f1b", 1),
        (gpipe_order(3, 4), "gpipe", 1),
        (interleaved_order(4, 4, 2), "interleaved_1f1b", 2),
        (interleaved_order(4, 8, 2), "interleaved_1f1b", 2),
        (interleaved_order(3, 6, 3), "interleaved_1f1b", 3),
    ],
)
def test_even_stages_are_all_structure(order: Order, name: str, chunks: int, marked: bool) -> None:
    found = figures(order, usual, marked=marked)
    assert (found.schedule, found.chunks, found.stages) == (name, chunks, len(order))
    assert found.structural == pytest.approx(found.textbook, abs=0.02)
    assert found.imbalance == pytest.approx(0, abs=0.01)
    assert found.variance == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("marked", [True, False])
def test_an_optimizer_that_nothing_annotates_is_told_by_its_kernels(marked: bool) -> None:
    def parts(tail_kernel: str | None) -> Pipeline | None:
        traces = scheduled(interleaved_order(4, 2), usual, marked=marked, tail_us=300, tail_kernel=tail_kernel)
        return analyse(*traces).pipeline

    assert parts("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>") == parts(None)


def test_no_part_is_negative_even_where_the_optimizer_cannot_be_told() -> None:
    found = analyse(*scheduled(interleaved_order(4, 2), usual, marked=False, tail_us=300, tail_kernel="tail")).pipeline
    assert found is not None
    assert min(found.structural, found.imbalance, found.variance) >= 0
    assert found.structural + found.imbalance + found.variance == pytest.approx(found.measured)


def test_a_split_backward_is_told_by_its_marks() -> None:
    order = split_order(4, 6)
    found = figures(order, usual, marked=True)
    assert (found.schedule, found.micro_batches) == ("zero_bubble", 6)
    expected = replay_schedule(order, {task: 100.0 for tasks in order for task in tasks}, num_stages=4)
    assert found.structural == pytest.approx(1 - expected.busy_ns[0] / expected.period_ns, abs=0.02)
    assert found.structural < found.textbook - 0.05


def test_a_heavy_last_stage_of_interleaved_ones_is_imbalance_and_its_rank_is_named() -> None:
    order = interleaved_order(4, 8, 2)
    analysis = analyse(*scheduled(order, heavy_last, marked=True))
    found = analysis.pipeline
    assert found is not None
    even = replay_schedule(order, {task: usual(task) * 1.25 for tasks in order for task in tasks}, num_stages=8)
    uneven = replay_schedule(order, {task: heavy_last(task) for tasks in order for task in tasks}, num_stages=8)
    assert found.structural == pytest.approx((even.period_ns - even.busy_ns[0]) / uneven.period_ns, abs=0.02)
    assert found.imbalance == pytest.approx((uneven.period_ns - even.period_ns) / uneven.period_ns, abs=0.02)
    assert found.imbalance > found.structural
    assert row_of(analysis, Cause.IMBALANCE).ranks == [3]
    assert analysis.verdict.cause is Cause.IMBALANCE


def test_an_order_that_no_framework_runs_is_replayed_as_it_was() -> None:
    order = interleaved_order(2, 6)
    order[0] = [*order[0][:1], *order[0][3:4], *order[0][1:3], *order[0][4:]]  # three forwards ahead instead of two
    order[0] = sorted(order[0][:4], key=lambda task: task.kind is not Pass.FORWARD) + order[0][4:]
    found = figures(order, usual, marked=False)
    assert found.schedule == "unknown"
    assert found.variance == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("marked", [True, False])
def test_waiting_for_the_first_stages_loader_is_no_bubble_wherever_it_comes_first(marked: bool) -> None:
    order = interleaved_order(4, 6)
    healthy = analyse(*scheduled(order, usual, marked=marked, steps=4))
    analysis = analyse(*scheduled(order, usual, marked=marked, steps=4, loading_us=500))
    # nothing precedes the first step: what the schedule allows for the end of the one before takes loading there
    no_end_before = 200 + 400 + 600
    bubble = cause_us(healthy, Cause.PIPELINE_BUBBLE) + no_end_before
    assert cause_us(analysis, Cause.PIPELINE_BUBBLE) == pytest.approx(bubble, rel=0.02)
    # all four ranks lose 500 us a step; before the first one the loader ran before the trace
    lost = cause_us(analysis, Cause.DATA_LOADING) + cause_us(analysis, Cause.BEFORE_WINDOW)
    assert lost == pytest.approx(4 * 3 * 500 + 3 * 500 - no_end_before, rel=0.04)
    assert row_of(analysis, Cause.DATA_LOADING).ranks == [0]
    assert cause_us(analysis, Cause.UNEXPLAINED) == pytest.approx(0, abs=20)


def test_replicas_of_a_pipeline_are_explained_each_and_the_worst_is_shown() -> None:
    order = interleaved_order(2, 4)
    light = scheduled(order, usual, marked=True, world=4)
    heavy = scheduled(order, lambda task: usual(task) * (1 + task.stage), marked=True, first_rank=2, world=4)
    analysis = analyse(*light, *heavy)
    assert analysis.pipeline is not None
    assert analysis.pipeline.stages == 2
    assert analysis.pipeline.imbalance > 0.1
    assert row_of(analysis, Cause.IMBALANCE).ranks == [3]


def test_half_a_step_of_traffic_tells_no_order() -> None:
    views = [view_of(trace) for trace in scheduled(interleaved_order(2, 4), usual, marked=False)]
    calls = {view.rank: view.calls for view in views}
    chain = (0, 1)
    assert order_from_traffic(chain, calls, 1) == interleaved_order(2, 4)
    assert order_from_traffic(chain, {**calls, 0: calls[0][:-1]}, 2) is None
    assert order_from_traffic(chain, calls, 99) is None
