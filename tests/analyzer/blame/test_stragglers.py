"""More compute on one rank: a straggler, an imbalance, or noise?"""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyzer.blame.stragglers import ComputeComparison
from stepscope.core.causes import Cause


def cause(compute: dict[int, list[float]], late: int, waiting: int, *, role: dict[int, int] | None = None) -> Cause:
    times = {rank: np.array(by_step) for rank, by_step in compute.items()}
    return ComputeComparison(times, role or dict.fromkeys(compute, 0)).cause(late, waiting)


def test_the_same_rank_last_in_two_thirds_of_the_steps_is_a_straggler() -> None:
    assert cause({0: [10, 10, 20], 1: [20, 20, 10]}, 1, 0) is Cause.STRAGGLER


def test_a_rank_that_is_last_less_often_is_imbalance() -> None:
    assert cause({0: [10, 20, 20], 1: [60, 10, 10]}, 1, 0) is Cause.IMBALANCE


@pytest.mark.parametrize(("late", "expected"), [(10.4, Cause.UNEXPLAINED), (10.5, Cause.STRAGGLER)])
def test_compute_counts_from_five_percent_on(late: float, expected: Cause) -> None:
    assert cause({0: [10.0] * 4, 1: [late] * 4}, 1, 0) is expected


def test_the_peers_median_counts_so_that_one_fast_rank_makes_no_stragglers() -> None:
    assert cause({0: [5] * 3, 1: [10] * 3, 2: [10] * 3, 3: [10] * 3}, 1, 0) is Cause.UNEXPLAINED


def test_a_rank_that_is_slower_in_some_steps_only_is_imbalance() -> None:
    assert cause({0: [10, 20, 10, 20], 1: [20, 10, 20, 10]}, 1, 0) is Cause.IMBALANCE


def test_ranks_of_different_stages_are_uneven_and_never_stragglers() -> None:
    role = {0: 0, 1: 1}
    assert cause({0: [10] * 3, 1: [20] * 3}, 1, 0, role=role) is Cause.IMBALANCE
    assert cause({0: [10] * 3, 1: [10] * 3}, 1, 0, role=role) is Cause.UNEXPLAINED


def test_peers_are_those_of_the_same_stage() -> None:
    compute: dict[int, list[float]] = {0: [10] * 3, 1: [12] * 3, 2: [100] * 3, 3: [100] * 3}
    assert cause(compute, 1, 0, role={0: 0, 1: 0, 2: 1, 3: 1}) is Cause.STRAGGLER
