"""Is the rank whose gradients differ named, and no other?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.gradient_outliers import gradient_outliers
from stepscope.core.steps import RankSteps, Step


def _ranks(norms: list[list[float | None]]) -> list[RankSteps]:
    """norms[rank][sample], one sample each 100 steps; None is no finite number."""
    return [
        RankSteps(
            rank,
            [
                Step(
                    100 * place,
                    0,
                    1,
                    figures={} if norm is None else {"local_grad_norm": norm},
                    non_finite=["local_grad_norm"] if norm is None else [],
                )
                for place, norm in enumerate(samples)
            ],
        )
        for rank, samples in enumerate(norms)
    ]


def _noisy(seed: int, factors: list[float], num_samples: int = 10) -> list[list[float | None]]:
    generator = random.Random(seed)
    return [[factor * 2 * generator.lognormvariate(0, 0.15) for _ in range(num_samples)] for factor in factors]


def test_a_rank_far_from_the_others_in_most_steps_is_named() -> None:
    (notice,) = gradient_outliers(_ranks(_noisy(1, [1, 1, 4, 1, 1, 1, 1, 1])), are_alike=True)
    assert notice.code == "gradient_outlier"
    assert notice.message.startswith("rank 2: the gradients that it computed are ")
    assert "times the other ranks' in 8 of 10 steps" in notice.message
    ratio = float(notice.message.split(" are ")[1].split(" times")[0])
    assert ratio == pytest.approx(4, rel=0.2)


def test_ranks_that_hold_different_parts_are_not_compared() -> None:
    assert gradient_outliers(_ranks(_noisy(1, [1, 1, 4, 1, 1, 1, 1, 1])), are_alike=False) == []


@given(st.integers(0, 10**6), st.integers(4, 16))
def test_ranks_with_different_batches_are_no_outliers(seed: int, num_ranks: int) -> None:
    assert gradient_outliers(_ranks(_noisy(seed, [1.0] * num_ranks)), are_alike=True) == []


def test_few_ranks_one_step_and_one_batch_name_nobody() -> None:
    assert gradient_outliers(_ranks(_noisy(1, [1, 1, 9])), are_alike=True) == []
    assert gradient_outliers(_ranks(_noisy(1, [1, 1, 1, 9], num_samples=1)), are_alike=True) == []
    norms = _noisy(1, [1, 1, 1, 1, 1])
    norms[3][4] = 50.0
    assert gradient_outliers(_ranks(norms), are_alike=True) == []


def test_the_first_step_in_which_few_are_not_finite_names_them() -> None:
    norms = _noisy(1, [1, 1, 1, 1])
    norms[1][3:] = [None] * 7
    for rank in (0, 2, 3):
        norms[rank][5:] = [None] * 5
    (notice,) = gradient_outliers(_ranks(norms), are_alike=False)
    assert notice.code == "gradients_not_finite"
    assert notice.message == (
        "step 300: the gradients that rank 1 computed are not finite, those of others are; check its batch and its GPU"
    )
    assert gradient_outliers(_ranks([[1.0, None]] * 4), are_alike=False) == []


def test_a_run_without_local_norms_has_nothing_to_say() -> None:
    assert gradient_outliers([RankSteps(0, [Step(0, 0, 1)])], are_alike=True) == []
