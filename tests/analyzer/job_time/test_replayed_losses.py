"""What the calibrated replay of light captures saves becomes the losses of a job, and what a fix leaves stays."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps
from stepscope.analyzer.job_time.captured_steps import CapturedSteps
from stepscope.analyzer.job_time.job_losses import JobLosses, job_losses
from stepscope.analyzer.job_time.loss import REPLAY, Loss
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER
from stepscope.analyzer.what_if.light_replay import Calibration, ReplayedSteps
from stepscope.analyzer.what_if.planned_calls import Removal
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.job_time.records import captured, rank_steps

_STEP_MS = 50.0


def _losses(
    captured_ms: dict[Cause, float],
    without_ms: dict[Removal, float],
    *,
    noise: float = 0.001,
    num_ranks: int = 1,
    late_ms: float = 0.0,
    num_waits: float = 0.0,
    evened_ms: float | None = None,
) -> JobLosses:
    """Of a job of 50 ms a step, captured in three of 80 ms, whose last rank ends later."""
    lengths = [_STEP_MS] * 20 + [80.0] * 3 + [_STEP_MS] * 10
    ranks = [rank_steps(rank, lengths, captured(20, 22)) for rank in range(num_ranks - 1)]
    ranks.append(rank_steps(num_ranks - 1, [lengths[0] + late_ms, *lengths[1:]], captured(20, 22)))
    hosts = dict.fromkeys(range(num_ranks), "a")
    steps = job_steps(ranks, hosts, is_one_clock=num_ranks > 1)
    assert steps is not None
    causes = np.zeros((3, len(CAUSE_ORDER)))
    for cause, own_ms in captured_ms.items():
        causes[:, CAUSE_CODE[cause]] = own_ms
    capture = CapturedSteps([20, 21, 22], causes.sum(axis=1), causes, 20.0, 0.0, 0, None, evened_ms=evened_ms)
    without = {removal: ReplayedSteps(without_ms.get(removal, _STEP_MS), 10.0, 0.0) for removal in Removal}
    last = without[Removal.UNEVEN_HOST]._replace(evened=num_ranks - 1, num_waits=num_waits)
    without[Removal.UNEVEN_HOST] = last
    light = CalibratedSteps(_STEP_MS, noise, 20.0, Calibration(8.0, _STEP_MS, 0.0, 0.0), without)
    return job_losses(training_time(steps, []), [capture], light)


def _of(losses: JobLosses, cause: Cause) -> Loss:
    return next((loss for loss in losses.losses if loss.cause is cause), Loss(cause, 0.0))


@pytest.mark.parametrize(
    ("waited_ms", "gain_ms"),
    [
        (6.0, 10.0),  # the mean wait of all ranks, of which the late one has none
        (25.0, 10.0),  # also for a host that recording slows
        (3.0, 3.0),  # they wait for something else meanwhile
    ],
)
def test_uneven_work_gains_what_the_kernels_say(waited_ms: float, gain_ms: float) -> None:
    losses = _losses({Cause.MEMORY_BOUND: 30.0, Cause.IMBALANCE: waited_ms}, {}, num_ranks=2, evened_ms=10.0)
    uneven = _of(losses, Cause.IMBALANCE)
    assert uneven.basis == REPLAY
    assert uneven.gain_ms == pytest.approx(gain_ms, abs=0.1)
    assert uneven.ms <= 10.1
    assert sum(losses.breakdown().values()) == pytest.approx(1.0)
    assert losses.shared_share == 0.0


def test_gaps_are_no_longer_than_the_captured_ones() -> None:
    losses = _losses({Cause.MEMORY_BOUND: 30.0, Cause.DEVICE_GAP: 4.0}, {})
    assert _of(losses, Cause.DEVICE_GAP).ms == pytest.approx(4.0)
    assert losses.breakdown()["unexplained"] == pytest.approx(0.32)


def test_a_delay_that_is_mostly_the_allocators_gains_what_goes_without_allocations() -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 20.0, Cause.HOST_BOUND: 60.0}, {Removal.HOST_TIME: 20.0, Removal.ALLOCATIONS: 27.5}
    )
    late = _of(losses, Cause.HOST_BOUND)
    assert (late.basis, late.reasons) == (REPLAY, [Reason.ALLOCATOR])
    assert late.ms == pytest.approx(30)
    assert late.gain_ms == pytest.approx(22.5)
    assert losses.breakdown()["host_bound"] == pytest.approx(0.6)


def test_a_delay_of_which_the_allocator_has_little_gains_all_of_it() -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 20.0, Cause.HOST_BOUND: 60.0}, {Removal.HOST_TIME: 20.0, Removal.ALLOCATIONS: 45.0}
    )
    late = _of(losses, Cause.HOST_BOUND)
    assert not late.reasons
    assert late.gain_ms == pytest.approx(30)


def test_copies_gain_what_pinned_memory_saves() -> None:
    losses = _losses({Cause.MEMORY_BOUND: 25.0, Cause.COPY: 25.0}, {Removal.COPIES: 30.0, Removal.HOST_TIME: 48.0})
    copies = _of(losses, Cause.COPY)
    assert copies.ms == pytest.approx(25)
    assert copies.gain_ms == pytest.approx(20)
    assert losses.breakdown()["copy"] == pytest.approx(0.5)
    assert "overlapping" not in losses.breakdown()


@pytest.mark.parametrize(("captured_ms", "expected_ms"), [(30.0, 12.5), (8.0, 8.0)])
def test_communication_costs_at_most_what_goes_without_it(captured_ms: float, expected_ms: float) -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 20.0, Cause.HOST_BOUND: 20.0, Cause.COMMUNICATION: captured_ms},
        {Removal.COLLECTIVES: 37.5, Removal.HOST_TIME: 35.0},
    )
    communication = _of(losses, Cause.COMMUNICATION)
    assert communication.basis == REPLAY
    assert communication.ms == pytest.approx(expected_ms)


def test_what_is_within_the_noise_is_no_loss() -> None:
    of = {Cause.MEMORY_BOUND: 20.0, Cause.SYNCHRONIZATION: 30.0}
    without = {Removal.BLOCKING_CALLS: 46.0, Removal.HOST_TIME: 46.0}
    assert _of(_losses(of, without), Cause.SYNCHRONIZATION).ms == pytest.approx(4)
    assert _of(_losses(of, without, noise=0.05), Cause.SYNCHRONIZATION).ms == 0


def test_the_host_of_one_rank_that_is_longer_is_a_loss_of_that_rank() -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 20.0, Cause.HOST_BOUND: 60.0},
        {Removal.HOST_TIME: 20.0, Removal.UNEVEN_HOST: 30.0},
        num_ranks=2,
        late_ms=30.0,
    )
    late = [(loss.ranks, round(loss.gain_ms, 3)) for loss in losses.losses if loss.cause is Cause.HOST_BOUND]
    assert late == [([1], 20.0), ([0, 1], 10.0)]
    assert losses.breakdown()["host_bound"] == pytest.approx(0.6)


@pytest.mark.parametrize(("uneven_ms", "num_waits"), [(44.0, 0.0), (30.0, 100.0)])
def test_hosts_that_differ_little_or_by_waits_are_a_loss_of_all_ranks(uneven_ms: float, num_waits: float) -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 20.0, Cause.HOST_BOUND: 60.0},
        {Removal.HOST_TIME: 20.0, Removal.UNEVEN_HOST: uneven_ms},
        num_ranks=2,
        num_waits=num_waits,
    )
    late = [(loss.ranks, round(loss.gain_ms, 3)) for loss in losses.losses if loss.cause is Cause.HOST_BOUND]
    assert late == [([0, 1], 30.0)]


def test_waits_in_copies_gain_the_copies_too() -> None:
    losses = _losses(
        {Cause.MEMORY_BOUND: 25.0, Cause.COPY: 15.0, Cause.SYNCHRONIZATION: 30.0},
        {Removal.BLOCKING_CALLS: 25.0, Removal.COPIES: 30.0, Removal.HOST_TIME: 25.0},
    )
    blocked = _of(losses, Cause.SYNCHRONIZATION)
    assert blocked.ms == pytest.approx(10)
    assert blocked.gain_ms == pytest.approx(25)
    assert sum(losses.breakdown().values()) == pytest.approx(1)
