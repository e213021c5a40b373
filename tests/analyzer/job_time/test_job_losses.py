"""Shares of training time add up to all of it, whatever the records say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.job_time.captured_steps import CapturedSteps
from stepscope.analyzer.job_time.job_losses import JobLosses, job_losses
from stepscope.analyzer.job_time.loss import Loss, merged_losses
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.analyzer.ledger.segments import CAUSE_CODE, CAUSE_ORDER
from stepscope.core.documents.run_directory import RankSteps, Step
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.job_time.records import MS, START_NS, captured, rank_steps

MOST_MS = 10_000
lengths = st.integers(0, MOST_MS)
records = st.tuples(lengths, lengths, lengths, lengths, st.booleans(), st.integers(0, 20))
"""Of a step: its length, its wait for data, save and collections, whether its update is skipped, and how many steps
later than usual it comes."""


def _rank(rank: int, attempts: list[list[tuple[int, int, int, int, bool, int]]], offset_ms: int) -> RankSteps:
    steps, now = [], START_NS + offset_ms * MS
    for number, attempt in enumerate(attempts, 1):
        index = 0
        for length, wait, save, collected, is_skipped, missing in attempt:
            figures = {"gc_pause_ns": float(collected * MS), "overflow": float(is_skipped)}
            phases = {"checkpoint": save * MS} if save else {}
            steps.append(Step(index, now, now + length * MS, wait * MS, phases, figures, attempt=number))
            index, now = index + 1 + max(missing - 18, 0), now + length * MS
        now -= offset_ms * MS  # the next one may be on another host
    return RankSteps(rank, steps)


def _assert_whole(losses: JobLosses) -> None:
    shares = losses.breakdown()
    if losses.step_ms > 0:
        assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
    for loss in losses.losses:
        assert 0 <= loss.gain_ms <= loss.most_gain_ms <= losses.step_ms * (1 + 1e-9)
        assert 0 <= loss.ms <= losses.step_ms * (1 + 1e-9)


@given(
    st.lists(
        st.tuples(st.lists(st.lists(records, max_size=12), min_size=1, max_size=2), st.integers(-MOST_MS, MOST_MS)),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.booleans(),
)
def test_shares_add_up_to_all_training_time(
    ranks: list[tuple[list[list[tuple[int, int, int, int, bool, int]]], int]], has_hosts: bool, is_one_clock: bool
) -> None:
    made = [_rank(rank, attempts, offset_ms) for rank, (attempts, offset_ms) in enumerate(ranks)]
    hosts = dict.fromkeys(range(len(ranks)), "node") if has_hosts else {}
    steps = job_steps(made, hosts, is_one_clock=is_one_clock)
    if steps is not None:
        _assert_whole(job_losses(training_time(steps, ()), ()))


def test_an_attempt_on_a_host_whose_clock_is_behind_has_its_own_steps() -> None:
    first = rank_steps(0, [100.0] * 10)
    again = rank_steps(0, [50.0] * 10, attempt=2, first=10, start_ns=START_NS - 500 * MS)
    steps = job_steps([RankSteps(0, [*first.steps, *again.steps])])
    assert steps is not None
    assert steps.period_ms == pytest.approx([100.0] * 10 + [50.0] * 10)


@pytest.mark.parametrize(("captured_ms", "unknown"), [(8.0, 0.45), (18.0, 0.0), (40.0, 0.0)])
def test_captured_steps_that_are_shorter_leave_the_others_unexplained_on_a_cpu(
    captured_ms: float, unknown: float
) -> None:
    steps = job_steps([rank_steps(0, [20.0] * 10 + [captured_ms] * 3 + [20.0] * 10, captured(10, 12))])
    assert steps is not None
    causes = np.zeros((3, len(CAUSE_ORDER)))
    causes[:, CAUSE_CODE[Cause.HOST_BOUND]] = captured_ms
    capture = CapturedSteps([10, 11, 12], causes.sum(axis=1), causes, None, 0.0, 0, None)
    shares = job_losses(training_time(steps, []), [capture]).breakdown()
    assert shares.get("unexplained", 0.0) == pytest.approx(unknown, abs=0.001)
    assert shares["host_bound"] == pytest.approx(1.0 - unknown, abs=0.001)


@pytest.mark.parametrize(
    ("captured_ms", "python", "share"),
    [
        (20.0, 0.12, 0.12),  # recording adds nothing
        (30.0, 0.12, 0.06),  # it adds a third: from nothing to all of the 12%
        (30.0, 0.5, 0.5),  # a third less is a bottleneck as well
    ],
)
def test_little_time_between_operators_may_be_the_profiler_on_a_cpu(
    captured_ms: float, python: float, share: float
) -> None:
    steps = job_steps([rank_steps(0, [20.0] * 10 + [captured_ms] * 3 + [20.0] * 10, captured(10, 12))])
    assert steps is not None
    causes = np.zeros((3, len(CAUSE_ORDER)))
    causes[:, CAUSE_CODE[Cause.HOST_BOUND]] = python * captured_ms
    causes[:, CAUSE_CODE[Cause.COMPUTE_BOUND]] = (1.0 - python) * captured_ms
    capture = CapturedSteps([10, 11, 12], causes.sum(axis=1), causes, None, 0.0, 0, None)
    shares = job_losses(training_time(steps, []), [capture]).breakdown()
    assert shares["host_bound"] == pytest.approx(share, abs=0.001)
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("delay_ms", "reasons"), [(1.0, [Reason.GPU_SHARED]), (6.0, [Reason.GPU_SHARED, Reason.CPU_LIMITED])]
)
def test_a_small_part_of_a_loss_gives_it_no_reason(delay_ms: float, reasons: list[Reason]) -> None:
    pauses = Loss(Cause.CONTENTION, 20.0, [Reason.GPU_SHARED])
    (joined,) = merged_losses([Loss(Cause.CONTENTION, delay_ms, [Reason.CPU_LIMITED]), pauses])
    assert (joined.ms, joined.reasons) == (20.0 + delay_ms, reasons)
