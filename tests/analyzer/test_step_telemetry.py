"""Steps of the ranks are joined to the steps of the job."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.step_telemetry import gradient_outliers, step_report
from stepscope.core.documents.run_directory import RankSteps, Step, StepTimeSummary

_MS = 1_000_000


def _step(index: int, ms: int, data_wait_ms: int = 0, **more: object) -> Step:
    start_ns = index * 1000 * _MS
    return Step(index, start_ns, start_ns + ms * _MS, data_wait_ms * _MS, **more)  # type: ignore[arg-type]


def test_a_step_is_as_long_as_its_slowest_rank() -> None:
    report = step_report(
        [
            RankSteps(0, [_step(0, 500), _step(1, 10, 4, figures={"loss": 2.0}), _step(2, 30, 0, captured=True)]),
            RankSteps(1, [_step(0, 400), _step(1, 12, 2, figures={"loss": 3.0}, anomalies=["loss_spike"])]),
        ]
    )
    assert [(row.index, row.ms, row.slowest_rank) for row in report.steps] == [(0, 500, 0), (1, 12, 1), (2, 30, 0)]
    assert report.steps[1].data_wait_ms == 4
    assert report.steps[1].figures == {"loss": 2.5}
    assert report.steps[1].anomalies == ["loss_spike"]
    assert report.steps[2].captured
    assert report.step_ms == StepTimeSummary(12, 12, 12)  # neither the first step nor the captured one
    assert report.num_settled == 1
    assert report.data_wait == pytest.approx(6 / 22)


def test_phases_are_shares_of_the_settled_steps_of_all_ranks() -> None:
    phases = {"checkpoint": 5 * _MS}
    ranks = [RankSteps(rank, [_step(0, 1), _step(1, 10, phases=phases), _step(2, 10)]) for rank in (0, 1)]
    assert step_report(ranks).phases == {"checkpoint": 0.25}


def test_without_a_settled_step_nothing_is_claimed() -> None:
    report = step_report([RankSteps(0, [_step(0, 500)])])
    assert (report.step_ms, report.data_wait, report.num_settled) == (StepTimeSummary(None, None, None), None, 0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=5), max_size=4))
def test_shares_stay_between_nothing_and_all(ranks: list[list[tuple[int, int]]]) -> None:
    steps = [[_step(i, ms, min(wait, ms)) for i, (ms, wait) in enumerate(rank)] for rank in ranks]
    report = step_report([RankSteps(number, own) for number, own in enumerate(steps)])
    assert report.num_steps == max((len(rank) for rank in ranks), default=0)
    assert report.data_wait is None or 0 <= report.data_wait <= 1


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
