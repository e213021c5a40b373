"""What a job gains without a cause is what the same job takes without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepscope.analyzer.job_time.recorded_losses import weighted_mean
from stepscope.analyzer.job_time.steps import HostLoss, job_steps
from stepscope.analyzer.job_time.training_time import TrainingTime, training_time
from stepscope.core.documents.training_settings import LoaderSettings
from tests.analyzer.job_time.records import MS, rank_steps
from tests.analyzer.job_time.simulated_jobs import PREFETCH, Rank, period_ms, simulated

NUM_STEPS, FIRST = 72, 12
FAULTS = (HostLoss.DATA_WAIT, HostLoss.CHECKPOINT, HostLoss.COLLECTION, HostLoss.LATENESS)


def _training(ranks: list[Rank], num_workers: int | None) -> TrainingTime:
    steps = job_steps(simulated(ranks, NUM_STEPS), is_one_clock=True)
    assert steps is not None
    loader = None if num_workers is None else LoaderSettings(True, num_workers, prefetch_factor=PREFETCH)
    return training_time(steps, [], loader)


def _gains(ranks: list[Rank], num_workers: int | None) -> dict[HostLoss, tuple[float, float]]:
    """By fault: the share of training time that is gained without it, by the analysis and in truth."""
    training = _training(ranks, num_workers)
    mean_ms = weighted_mean(training.steps.period_ms, training.weight)
    whole_ms = period_ms(simulated(ranks, NUM_STEPS), FIRST)
    gains = {}
    for fault in FAULTS:
        said = weighted_mean(training.losses.alone_ms[fault], training.weight) / mean_ms
        fixed_ms = period_ms(simulated([rank.without(fault) for rank in ranks], NUM_STEPS), FIRST)
        gains[fault] = said, 1.0 - fixed_ms / whole_ms
    return gains


def _assert_right(ranks: list[Rank], num_workers: int | None, within: float = 0.07) -> None:
    for fault, (said, true) in _gains(ranks, num_workers).items():
        assert said == pytest.approx(true, abs=within), fault


def test_a_starved_loader_catches_up_while_another_rank_saves() -> None:
    ranks = [Rank(save_ms=110.0), Rank(making_ms=100.0), Rank()]
    gains = _gains(ranks, None)
    assert gains[HostLoss.CHECKPOINT][0] < 0.05
    _assert_right(ranks, None)


def test_saves_hide_a_late_rank() -> None:
    ranks = [Rank(save_every=3, save_ms=115.0), Rank(python_ms=40.0), Rank()]
    _assert_right(ranks, None)
    assert _gains(ranks, None)[HostLoss.LATENESS][0] == pytest.approx(80 / 405, abs=0.02)


def test_saves_may_hide_all_waits_of_a_slow_loader() -> None:
    ranks = [Rank(save_ms=160.0, making_ms=100.0)]
    _assert_right(ranks, 1)
    training = _training(ranks, 1)
    own_ms = weighted_mean(training.losses.own_ms[HostLoss.DATA_WAIT], training.weight)
    assert own_ms == pytest.approx(40, abs=2)


def test_batches_made_in_the_training_process_are_waited_for_all_the_same() -> None:
    _assert_right([Rank(save_ms=110.0), Rank(making_ms=40.0, num_workers=0)], 0)
    _assert_right([Rank(save_ms=110.0), Rank(making_ms=40.0, num_workers=0)], None)


_RANKS = st.builds(
    Rank,
    making_ms=st.sampled_from([0.0, 0.0, 90.0, 130.0, 200.0]),
    save_every=st.integers(3, 6),
    save_ms=st.sampled_from([0.0, 0.0, 60.0, 110.0, 250.0]),
    collects_ms=st.sampled_from([0.0, 0.0, 20.0, 50.0]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_RANKS, min_size=1, max_size=4), st.integers(1, 3), st.sampled_from([0.0, 0.0, 40.0]))
def test_gains_are_those_of_the_simulated_job(ranks: list[Rank], num_workers: int, python_ms: float) -> None:
    own = [replace(rank, num_workers=num_workers) for rank in ranks]
    if len(own) > 1:
        own[0] = replace(own[0], python_ms=python_ms)
    waits = [[step.data_wait_ns > 12 * MS for step in rank.steps[FIRST:]] for rank in simulated(own, NUM_STEPS)]
    assume(all(sum(waits[place]) >= 6 for place, rank in enumerate(own) if rank.making_ms > 60))  # else all is hidden
    _assert_right(own, num_workers)


def test_a_rank_that_is_late_is_a_loss_only_where_all_have_one_clock() -> None:
    records = simulated([Rank(), Rank(python_ms=40.0), Rank()], NUM_STEPS)
    for is_one_clock, late_ms in ((True, 40.0), (False, 0.0)):
        steps = job_steps(records, is_one_clock=is_one_clock)
        assert steps is not None
        assert weighted_mean(steps.host_ms[HostLoss.LATENESS].max(axis=1), training_time(steps, []).weight) == (
            pytest.approx(late_ms, abs=0.1)
        )


def test_ranks_that_do_not_wait_for_each_other_keep_their_periods() -> None:
    records = [rank_steps(0, [90.0] * 30), rank_steps(1, [99.0] * 30)]
    steps = job_steps(records, {0: "a", 1: "a"})
    assert steps is not None
    assert training_time(steps, []).losses.rest_ms == pytest.approx(steps.period_ms)


def test_losses_of_the_only_rank_add_up() -> None:
    training = _training([Rank(save_ms=110.0, collects_ms=20.0)], None)
    losses = training.losses
    for loss in HostLoss:
        assert losses.alone_ms[loss] == pytest.approx(losses.ms[loss], abs=1e-6)
        assert losses.own_ms[loss] == pytest.approx(losses.ms[loss], abs=1e-6)
    assert sum(losses.ms.values()) + losses.rest_ms == pytest.approx(training.steps.period_ms)


def test_a_few_short_waits_are_no_loader_that_is_as_slow_as_the_steps() -> None:
    waits = {20, 23, 24, 30, 33, 37}
    ranks = [rank_steps(r, [57.0] * 100, lambda i: {"data_wait_ns": 6 * MS * (i in waits)}) for r in range(2)]
    steps = job_steps(ranks, is_one_clock=True)
    assert steps is not None
    training = training_time(steps, [], LoaderSettings(True, 1, prefetch_factor=PREFETCH))
    assert not training.losses.queues
    assert weighted_mean(training.losses.own_ms[HostLoss.DATA_WAIT], training.weight) == pytest.approx(0.36, abs=0.05)
