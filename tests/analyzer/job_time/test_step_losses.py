"""What a step gains without a loss is what the other ranks and the other steps leave of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.job_time.step_losses import StepLosses, step_losses
from stepscope.analyzer.job_time.steps import HostLoss, JobSteps, job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.core.documents.run_directory import RankSteps
from tests.analyzer.job_time.records import MS, rank_steps


def _waiting(rank: int, wait_ms: float, pause_ms: float = 0.0, *, length: float = 200.0) -> RankSteps:
    fields: dict[str, Any] = {
        "data_wait_ns": round(wait_ms * MS),
        "figures": {"gc_pause_ns": pause_ms * MS},
    }
    return rank_steps(rank, [length] * 12, lambda _: fields)


def _steps(*ranks: RankSteps) -> JobSteps:
    steps = job_steps(ranks)
    assert steps is not None
    return steps


def _losses(*ranks: RankSteps) -> StepLosses:
    steps = _steps(*ranks)
    return step_losses(steps, np.ones(len(steps), np.bool_))


def _means(losses: StepLosses, loss: HostLoss) -> tuple[float, float, float]:
    """Attributed, gained alone, own; ms of a step."""
    return (
        float(losses.ms[loss].mean()),
        float(losses.alone_ms[loss].mean()),
        float(losses.own_ms[loss].mean()),
    )


def test_losses_of_different_ranks_overlap() -> None:
    losses = _losses(_waiting(0, 60.0), _waiting(1, 0.0, 40.0))
    assert _means(losses, HostLoss.DATA_WAIT) == pytest.approx((60, 20, 60))
    assert _means(losses, HostLoss.COLLECTION) == pytest.approx((0, 0, 40))
    assert losses.rest_ms.mean() == pytest.approx(140)


def test_losses_of_one_rank_add_up() -> None:
    losses = _losses(_waiting(0, 60.0, 40.0), _waiting(1, 0.0))
    assert _means(losses, HostLoss.DATA_WAIT) == pytest.approx((60, 60, 60))
    assert _means(losses, HostLoss.COLLECTION) == pytest.approx((40, 40, 40))


@given(st.lists(st.tuples(st.floats(0, 90), st.floats(0, 90)), min_size=1, max_size=5))
def test_no_loss_gains_more_alone_than_it_is_and_all_stay_within_the_step(ranks: list[tuple[float, float]]) -> None:
    losses = _losses(*(_waiting(rank, *of_rank) for rank, of_rank in enumerate(ranks)))
    for loss in HostLoss:
        assert np.all(losses.alone_ms[loss] <= losses.own_ms[loss] + 1e-6)
        assert np.all(losses.alone_ms[loss] >= -1e-6)
    total = sum(losses.ms.values()) + losses.rest_ms
    assert total == pytest.approx(np.full(12, 200.0))


def test_a_compilation_has_the_first_run_of_new_code_around_it() -> None:
    lengths = [260.0 if index % 5 == 4 else 20.0 for index in range(40)]
    compiles = {"num_compilations": 2, "compile_ns": 90 * MS}
    steps = _steps(rank_steps(0, lengths, lambda index: compiles if index % 5 == 4 else {}))
    training = training_time(steps, [])
    compiled = training.losses.ms[HostLoss.COMPILATION][steps.index % 5 == 4]
    assert compiled[1:] == pytest.approx(240)
