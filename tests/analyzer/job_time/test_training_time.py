"""Training time counts steps as they run, and the parts of the wall add up."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.job_time.step_losses import ranks_by_loss
from stepscope.analyzer.job_time.steps import HostLoss, job_steps
from stepscope.analyzer.job_time.training_time import TrainingTime, training_time
from stepscope.core.documents.analysis import Goodput
from stepscope.core.documents.run_directory import Attempt, RankSteps
from tests.analyzer.job_time.records import MS, START_NS, captured, rank_steps


def _training(*ranks: RankSteps, attempts: list[Attempt] | None = None) -> TrainingTime:
    steps = job_steps(ranks)
    assert steps is not None
    return training_time(steps, attempts or [])


def _waiting(rank: int, fields: dict[str, object]) -> RankSteps:
    return rank_steps(rank, [100.0] * 12, lambda _: fields)


def _wall_ms(goodput: Goodput) -> float:
    return float(sum(getattr(goodput, name) for name in Goodput.__slots__))


def test_steps_that_a_start_or_a_profiler_touches_count_as_the_others() -> None:
    lengths = [900.0, 50, 50, 60, 80, 80, 80, 55, *[50.0] * 12]
    attempt = Attempt(START_NS - 400 * MS, START_NS + 3_000 * MS, "finished", 1)
    training = _training(rank_steps(0, lengths, captured(4, 6)), attempts=[attempt])
    assert training.training_ms == pytest.approx(20 * 50)
    assert training.mean_step_ms == training.median_step_ms == pytest.approx(50)
    goodput = training.goodput
    assert goodput.start_up == pytest.approx(400 + 850)
    assert goodput.profiling == pytest.approx(50 + 200 + 10 + 3 * 30 + 5)
    assert (goodput.lost_steps, goodput.restarts) == (0, 0)
    assert _wall_ms(goodput) == pytest.approx(3_400)


def test_a_touched_step_counts_as_its_own_kind() -> None:
    """Every fifth step evaluates, the captured one too."""

    def more(index: int) -> dict[str, object]:
        return captured(4, 6)(index) | ({"phases": {"evaluation": 100 * MS}} if index % 5 == 0 else {})

    lengths = [250.0 if index == 5 else 150.0 if index % 5 == 0 else 50.0 for index in range(30)]
    training = _training(rank_steps(0, lengths, more))
    assert training.mean_step_ms == pytest.approx((6 * 150 + 24 * 50) / 30)
    assert training.mean_ms(training.losses.ms[HostLoss.EVALUATION]) == pytest.approx(20)


def test_steps_that_fill_the_launch_queue_are_not_settled() -> None:
    training = _training(rank_steps(0, [*[0.3] * 30, *[2.2] * 66]))
    assert training.mean_step_ms == pytest.approx(2.2)


def test_what_compiles_before_the_first_step_that_does_not_is_start_up() -> None:
    lengths = [900.0, 700, 50, 50, 450, *[50.0] * 10]
    training = _training(
        rank_steps(
            0, lengths, lambda i: {"num_compilations": int(i in (0, 1, 4)), "compile_ns": 400 * MS if i == 4 else 0}
        )
    )
    assert training.goodput.start_up == pytest.approx(900 + 700 - 2 * training.mean_step_ms)
    assert training.mean_ms(training.losses.ms[HostLoss.COMPILATION]) > 0


def test_steps_that_a_restart_repeats_count_once_as_lost() -> None:
    first = rank_steps(0, [50.0] * 10)
    again = rank_steps(0, [50.0] * 10, attempt=2, first=6, start_ns=START_NS + 2_000 * MS)
    attempts = [
        Attempt(START_NS, START_NS + 600 * MS, "signal", 1),
        Attempt(START_NS + 1_500 * MS, START_NS + 2_500 * MS, "finished", 1),
    ]
    training = _training(RankSteps(0, [*first.steps, *again.steps]), attempts=attempts)
    goodput = training.goodput
    assert goodput.lost_steps == pytest.approx(4 * 50)
    assert goodput.training == pytest.approx(16 * 50)
    assert goodput.restarts == pytest.approx(900)
    assert goodput.start_up == pytest.approx(500)
    assert training.training_ms == pytest.approx(20 * 50)
    assert _wall_ms(goodput) == pytest.approx(2_500)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_steps_that_stay_slower_after_a_capture_are_the_profilers_on_a_gpu(on_gpu: bool) -> None:
    def fields(index: int) -> dict[str, object]:
        return captured(12, 14)(index) | ({"figures": {"memory_allocated_bytes": 1e9}} if on_gpu else {})

    lengths = [50.0 + index % 3 for index in range(12)] + [90.0] * 4 + [60.0 + index % 3 for index in range(20)]
    training = _training(rank_steps(0, lengths, fields))
    assert (abs(training.mean_step_ms - 51) < 0.5) == on_gpu
    assert training.goodput.profiling > 200


def test_steps_that_only_get_longer_are_not_the_profilers() -> None:
    lengths = [50.0 + 2 * index for index in range(40)]
    training = _training(rank_steps(0, lengths, captured(12, 14)))
    assert training.settled[20:].all()
    assert training.trend is not None
    assert training.trend.ms_per_step == pytest.approx(2, rel=0.05)


def test_what_grows_with_the_steps_is_named() -> None:
    def more(index: int) -> dict[str, object]:
        return {"figures": {"host_memory_bytes": 1e9 + index * 1e8, "loss": 3.0, "grad_norm": 1.0 + index % 2}}

    training = _training(rank_steps(0, [100.0 + 3 * max(index - 10, 0) for index in range(40)], more))
    assert training.trend is not None
    assert training.trend.grows_with == ["host_memory_bytes"]
    assert 10 <= training.trend.since_step <= 20


def test_the_longest_wait_of_any_rank_is_the_steps_loss_and_its_own() -> None:
    waits_ns = (5 * MS, 65 * MS, 5 * MS)
    training = _training(*(_waiting(rank, {"data_wait_ns": wait_ns}) for rank, wait_ns in enumerate(waits_ns)))
    assert training.mean_ms(training.losses.ms[HostLoss.DATA_WAIT]) == pytest.approx(65)
    by_rank = ranks_by_loss(training.steps, training.losses, HostLoss.DATA_WAIT, training.weight)
    assert by_rank == {1: pytest.approx(12 * 60)}


def test_a_loss_that_all_ranks_share_is_nobodys_own() -> None:
    phases = [{"checkpoint": 40 * MS + rank * MS} for rank in range(3)]
    training = _training(*(_waiting(rank, {"phases": own}) for rank, own in enumerate(phases)))
    by_rank = ranks_by_loss(training.steps, training.losses, HostLoss.CHECKPOINT, training.weight)
    assert list(by_rank) == [0, 1, 2]
    assert len(set(by_rank.values())) == 1


def test_two_causes_add_up_on_one_rank_and_overlap_on_two() -> None:
    both = _training(_waiting(0, {"phases": {"checkpoint": 30 * MS}, "data_wait_ns": 20 * MS}), _waiting(1, {}))
    assert both.mean_ms(both.losses.rest_ms) == pytest.approx(50)
    apart = _training(
        _waiting(0, {"phases": {"checkpoint": 30 * MS}}),
        _waiting(1, {"data_wait_ns": 20 * MS}),
    )
    assert apart.mean_ms(apart.losses.rest_ms) == pytest.approx(70)
    assert apart.mean_ms(apart.losses.ms[HostLoss.DATA_WAIT]) == 0


def test_causes_of_one_rank_together_lose_the_step_at_most() -> None:
    training = _training(_waiting(0, {"phases": {"checkpoint": 80 * MS, "evaluation": 90 * MS}}))
    losses = training.losses
    for loss, ms in ((HostLoss.CHECKPOINT, 80), (HostLoss.EVALUATION, 20)):
        assert training.mean_ms(losses.ms[loss]) == pytest.approx(ms)
        assert training.mean_ms(losses.alone_ms[loss]) == pytest.approx(ms)


def test_a_step_that_a_rank_has_no_record_of_does_not_show_what_a_step_takes_without_its_loss() -> None:
    waiting = _waiting(1, {"data_wait_ns": 60 * MS})
    waiting = RankSteps(1, [step for step in waiting.steps if step.index % 2])
    training = _training(_waiting(0, {}), waiting)
    alone_ms = training.losses.alone_ms[HostLoss.DATA_WAIT]
    assert alone_ms[training.settled & (training.steps.index % 2 == 1)] == pytest.approx(60)


def test_slow_steps_without_a_record_are_found_with_their_period_and_late_rank() -> None:
    late = rank_steps(0, [430.0 if index % 4 == 3 else 91.0 for index in range(30)])
    others = [rank_steps(rank, [430.0 if index % 4 == 0 and index else 91.0 for index in range(30)]) for rank in (1, 2)]
    training = _training(late, *others)
    assert np.flatnonzero(training.slow.is_slow).tolist() == list(range(3, 30, 4))
    assert (training.slow.every, training.slow.late_ranks) == (4, [0])
    assert training.slow.ordinary_ms == pytest.approx(91)


def test_noise_is_not_slow_steps() -> None:
    noise = np.random.default_rng(1)
    training = _training(rank_steps(0, [60 + 12 * abs(float(noise.normal())) for _ in range(60)]))
    assert training.slow.is_slow.sum() == 0


@given(st.lists(st.integers(1, 400), min_size=2, max_size=40), st.integers(0, 300), st.data())
def test_the_parts_of_the_wall_are_never_negative_and_cover_it(
    lengths: list[int], after: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(2, len(lengths) + 2))
    ranks = rank_steps(0, [float(length) for length in lengths], captured(first, first + 2))
    end_ns = ranks.steps[-1].end_ns + after * MS
    training = _training(ranks, attempts=[Attempt(START_NS - 5 * MS, end_ns, "finished", 1)])
    goodput = training.goodput
    assert all(getattr(goodput, name) >= 0 for name in Goodput.__slots__)
    assert _wall_ms(goodput) >= (end_ns - START_NS) / 1e6 + 5 - 1e-6
    assert training.training_ms == pytest.approx(training.num_steps * training.mean_step_ms)


@pytest.mark.parametrize("skew_ms", [0, 30, 60, 100, 1_000])
def test_a_clock_that_is_ahead_blames_nobody_else(skew_ms: int) -> None:
    late = rank_steps(0, [430.0 if index % 4 == 3 else 91.0 for index in range(30)])
    waiting = [430.0 if index % 4 == 0 and index else 91.0 for index in range(30)]
    others = [rank_steps(1, waiting), rank_steps(2, waiting)]
    ahead = rank_steps(3, waiting, start_ns=START_NS + skew_ms * MS)
    training = _training(late, *others, ahead)
    assert training.slow.late_ranks == [0]
    assert training.steps.period_ms[3] == pytest.approx(430)
    assert training.slow.is_slow.sum() == 7


def test_nobody_is_late_by_clocks_of_several_hosts_that_drift() -> None:
    slow = [430.0 if index % 4 == 3 else 91.0 for index in range(30)]
    late, drifting = rank_steps(0, slow), rank_steps(1, [length * 1.1 for length in slow])
    for hosts, expected in (({0: "a", 1: "b"}, []), ({}, []), ({0: "a", 1: "a"}, [1])):
        steps = job_steps([late, drifting], hosts)
        assert steps is not None
        assert training_time(steps, []).slow.late_ranks == expected


def test_a_period_across_missing_lines_is_not_settled() -> None:
    rank = rank_steps(0, [90.0] * 30)
    del rank.steps[10:20]
    training = _training(rank)
    assert training.mean_step_ms == pytest.approx(90)
    assert not training.settled[10]
    assert training.slow.is_slow.sum() == 0
    assert training.goodput.tail == pytest.approx(900)


def test_many_steps_are_compared_in_bounded_memory() -> None:
    lengths = [50.0 + index % 3 for index in range(20_000)]
    tracemalloc.start()
    training = _training(rank_steps(0, lengths, captured(9_000, 9_002)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert training.mean_step_ms == pytest.approx(51, abs=0.1)
    assert peak < 200e6
