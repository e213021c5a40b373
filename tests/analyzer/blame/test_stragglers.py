"""More compute on one rank: straggler, imbalance or noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.analyzer.blame.stragglers import ComputeComparison, RankWork, why_slower
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import KernelTime
from stepscope.core.vocabulary import Cause, Reason, TimeCategory


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


@pytest.mark.parametrize(
    "second",
    [
        [13.0, 13.1, 13.0, 12.9],  # less slow than the first
        [18.1, 17.9, 18.1, 17.9],  # as slow: each of the two is the slowest in half of the steps
    ],
)
def test_each_of_two_slow_ranks_is_a_straggler(second: list[float]) -> None:
    compute = {0: [10.0] * 4, 1: [18.0] * 4, 2: second, 3: [10.2, 9.8, 10.2, 9.8]}
    assert [cause(compute, late, 0) for late in (1, 2, 3)] == [Cause.STRAGGLER, Cause.STRAGGLER, Cause.UNEXPLAINED]


def test_work_that_moves_between_two_ranks_is_uneven() -> None:
    compute = {0: [10.0] * 4, 1: [18.0, 10.0] * 2, 2: [10.0, 18.0] * 2, 3: [10.0] * 4}
    assert {cause(compute, late, 0) for late in (1, 2)} == {Cause.IMBALANCE}


def test_ranks_of_different_stages_are_uneven_and_never_stragglers() -> None:
    role = {0: 0, 1: 1}
    assert cause({0: [10] * 3, 1: [20] * 3}, 1, 0, role=role) is Cause.IMBALANCE
    assert cause({0: [10] * 3, 1: [10] * 3}, 1, 0, role=role) is Cause.UNEXPLAINED


def test_peers_are_those_of_the_same_stage() -> None:
    compute: dict[int, list[float]] = {0: [10] * 3, 1: [12] * 3, 2: [100] * 3, 3: [100] * 3}
    assert cause(compute, 1, 0, role={0: 0, 1: 0, 2: 1, 3: 1}) is Cause.STRAGGLER


@pytest.mark.parametrize(
    ("own", "flops", "expected"),
    [
        ({"mm [18, 8]": 15.0, "adamw": 2.0}, 1.5, Cause.IMBALANCE),  # a larger batch
        ({"mm [12, 8]": 10.0, "adamw": 2.0, "mm [64, 64]": 40.0}, 1.5, Cause.STRAGGLER),  # other operators beside
        ({"mm [18, 8]": 15.0, "adamw": 2.0}, 1.1, Cause.STRAGGLER),  # the FLOPs explain a fifth of it
        ({"mm [18, 8]": 15.0, "adamw": 2.0}, None, Cause.STRAGGLER),
    ],
)
def test_larger_tensors_that_explain_longer_compute_are_uneven_work(
    own: dict[str, float], flops: float | None, expected: Cause
) -> None:
    compute = {0: np.array([10.0] * 3), 1: np.array([14.0] * 3)}
    work = {0: RankWork(1.0, {"mm [12, 8]": 10.0, "adamw": 2.0}), 1: RankWork(flops, own)}
    assert ComputeComparison(compute, dict.fromkeys(compute, 0), work).cause(1, 0) is expected


Kernels = dict[str, tuple[int, float]]
USUAL: Kernels = {"gemm": (100, 200.0), "norm": (50, 25.0), "add": (200, 40.0)}


def reasons(view: RankView, late: Kernels, *peers: Kernels) -> list[Reason]:
    def with_kernels(rank: int, kernels: Kernels) -> RankView:
        times = [KernelTime(n, count, ms, TimeCategory.COMPUTE_BOUND, "model") for n, (count, ms) in kernels.items()]
        return replace(view, rank=rank, kernels=times)

    others = [with_kernels(rank, kernels) for rank, kernels in enumerate(peers, 1)]
    found, evidence = why_slower([with_kernels(0, late)], others)
    assert all(item.value <= 1 for item in evidence if item.metric.startswith("share_"))
    return found


def test_kernels_that_the_peers_do_not_run_are_extra_work(view: RankView) -> None:
    assert reasons(view, USUAL | {"eigh": (3, 90.0)}, USUAL, USUAL) == [Reason.EXTRA_WORK]


def test_additional_kernels_are_at_most_all_of_the_difference(view: RankView) -> None:
    assert reasons(view, USUAL | {"eigh": (3, 90.0), "gemm": (100, 190.0)}, USUAL) == [Reason.EXTRA_WORK]


def test_more_and_heavier_kernels_of_a_known_name_are_extra_work_too(view: RankView) -> None:
    assert reasons(view, USUAL | {"gemm": (160, 500.0)}, USUAL) == [Reason.EXTRA_WORK]


def test_all_kernels_slower_alike_is_a_low_clock(view: RankView) -> None:
    slow = {name: (count, ms * 1.4) for name, (count, ms) in USUAL.items()}
    assert reasons(view, slow, USUAL, USUAL) == [Reason.LOW_CLOCK]


def test_one_kernel_slower_is_no_low_clock(view: RankView) -> None:
    assert reasons(view, USUAL | {"gemm": (100, 320.0)}, USUAL) == [Reason.SLOWER_KERNELS]


def test_without_recorded_kernels_nothing_is_told(view: RankView) -> None:
    assert reasons(view, {}, USUAL) == []
    assert reasons(view, USUAL, {}) == []


def test_a_rank_that_is_no_slower_has_no_reason(view: RankView) -> None:
    assert reasons(view, USUAL, USUAL) == []
