"""A prediction for profiled steps becomes one for the mean step of training time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.what_if.training_step import training_step_ms
from stepscope.core.documents.analysis import Analysis, RootCause
from stepscope.core.documents.what_if import Fix
from stepscope.core.vocabulary import Cause
from tests.dashboard import example_run as example

EXPOSED = RootCause(Cause.COMMUNICATION, [], 0.4, 60.0, None, [3], [])
"""60 ms of each profiled step of 150 ms."""


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """Of 190.1 ms a step, communication takes 78.4%."""
    whole = example.with_job_time(example.make_analysis(example.make_timelines()))
    assert whole.job_time is not None
    return replace(whole, root_causes=[EXPOSED], job_time=replace(whole.job_time, breakdown={"communication": 0.784}))


@pytest.mark.parametrize(
    ("step_ms", "share_recovered"), [(90.0, 1.0), (120.0, 0.5), (150.0, 0.0), (80.0, 1.0), (151.0, 0.0)]
)
def test_the_same_part_of_the_loss_is_recovered_in_all_steps(
    analysis: Analysis, step_ms: float, share_recovered: float
) -> None:
    expected = 190.1 * (1.0 - 0.784 * share_recovered)
    assert training_step_ms(Fix(Cause.COMMUNICATION, step_ms, 1.0), 150.0, analysis) == pytest.approx(expected)


def test_what_the_profiled_steps_or_the_records_do_not_show_is_unknown(analysis: Analysis) -> None:
    fix = Fix(Cause.COMMUNICATION, 90.0, 1.0)
    assert training_step_ms(fix, 150.0, replace(analysis, root_causes=[])) is None
    assert training_step_ms(fix, 150.0, replace(analysis, root_causes=[replace(EXPOSED, ms_per_step=None)])) is None
    assert training_step_ms(fix, 150.0, replace(analysis, job_time=None)) is None


def test_all_of_a_recorded_loss_is_recovered(analysis: Analysis) -> None:
    assert analysis.job_time is not None
    rows = [replace(EXPOSED, cause=Cause.DATA_LOADING)]
    recorded = replace(analysis, root_causes=rows, job_time=replace(analysis.job_time, breakdown={"data_loading": 0.5}))
    assert training_step_ms(Fix(Cause.DATA_LOADING, 120.0, 1.0), 150.0, recorded) == pytest.approx(190.1 / 2)
