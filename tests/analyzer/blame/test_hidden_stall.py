"""A Python stall of one rank that does not touch the device: attributed only as far as the GPUs waited for it."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Cause, TimeCategory
from tests.analyzer.readings import analyse, cause_us, rank_us, row_of
from tests.analyzer.what_if.schedules import Schedule, Step, plain_step, run

STALL_US = 30_000
DEVICE_US = 20_000
NUM_STEPS = 5


def _step(stall: int = 0, *, host: int = 15_000) -> Step:
    """80 ms of kernels in four launches, 60 ms of Python before them: 20 ms of lead a step, unless Python stalls."""
    return plain_step((host, DEVICE_US), (host, DEVICE_US), (host + stall, DEVICE_US), (host, DEVICE_US), transfer=2000)


def _once(*, host: int) -> Schedule:
    """Rank 1 stalls in the middle step."""
    plain = (_step(host=host),) * NUM_STEPS
    return Schedule((plain, (*plain[:2], _step(STALL_US, host=host), *plain[3:])))


def test_a_stall_that_the_launch_queue_hides_costs_nothing_and_is_healthy() -> None:
    traces, lengths = run(_once(host=15_000))
    assert len({step for steps in lengths for step in steps}) == 1  # the device never waited
    analysis = analyse(*traces)
    assert analysis.verdict.cause is Cause.COMPUTE_BOUND
    assert cause_us(analysis, Cause.HOST_BOUND) == cause_us(analysis, Cause.STRAGGLER) == 0
    assert [rank_us(analysis, rank, TimeCategory.WAIT) for rank in (0, 1)] == [0, 0]


def test_what_the_queue_does_not_hide_is_that_ranks_and_so_is_its_peers_waiting() -> None:
    traces, lengths = run(_once(host=19_000))
    lost = lengths[1][2] - lengths[1][1]
    assert 0 < lost < STALL_US
    analysis = analyse(*traces)
    assert rank_us(analysis, 1, TimeCategory.HOST_BOUND) == pytest.approx(lost, abs=20)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == pytest.approx(lost, abs=20)
    assert cause_us(analysis, Cause.HOST_BOUND) == pytest.approx(2 * lost, abs=40)
    assert row_of(analysis, Cause.HOST_BOUND).ranks == [1]


def test_a_stall_of_every_step_that_no_queue_can_hide_is_the_verdict() -> None:
    plain, late = (_step(),) * NUM_STEPS, (_step(2 * STALL_US),) * NUM_STEPS
    analysis = analyse(*run(Schedule((plain, late)))[0])
    assert analysis.verdict.cause is Cause.HOST_BOUND
    assert analysis.verdict.ranks == [1]
    gain = next(gain for gain in analysis.what_if if gain.fix is Cause.HOST_BOUND)
    assert gain.step_ms == pytest.approx(run(Schedule((plain, plain)))[1][0][1] / 1e3, rel=0.01)
