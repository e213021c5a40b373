"""Do the ranks' steps join to the job's?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.step_report import step_report
from stepscope.core.steps import RankSteps, Step, StepTime

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
    assert report.step_ms == StepTime(12, 12, 12)  # neither the first step nor the captured one
    assert report.num_settled == 1
    assert report.data_wait == pytest.approx(6 / 22)


def test_phases_are_shares_of_the_settled_steps_of_all_ranks() -> None:
    phases = {"checkpoint": 5 * _MS}
    ranks = [RankSteps(rank, [_step(0, 1), _step(1, 10, phases=phases), _step(2, 10)]) for rank in (0, 1)]
    assert step_report(ranks).phases == {"checkpoint": 0.25}


def test_without_a_settled_step_nothing_is_claimed() -> None:
    report = step_report([RankSteps(0, [_step(0, 500)])])
    assert (report.step_ms, report.data_wait, report.num_settled) == (StepTime(None, None, None), None, 0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=5), max_size=4))
def test_shares_stay_between_nothing_and_all(ranks: list[list[tuple[int, int]]]) -> None:
    steps = [[_step(i, ms, min(wait, ms)) for i, (ms, wait) in enumerate(rank)] for rank in ranks]
    report = step_report([RankSteps(number, own) for number, own in enumerate(steps)])
    assert report.num_steps == max((len(rank) for rank in ranks), default=0)
    assert report.data_wait is None or 0 <= report.data_wait <= 1
