"""GPUs far from the median of their job."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store.history.deviations import Deviation, deviations_of
from stepscope.store.history.questions import Labels, SeriesAnswer
from tests.store.history.blocks import gpu

NAN = float("nan")


def member(index: int, job: str) -> Labels:
    """Labels of a GPU of a job."""
    return gpu(index, job_kind="slurm", job_id=job)


def answer(values: dict[Labels, list[float]]) -> SeriesAnswer:
    """An answer with these values."""
    groups = sorted(values)
    rows = np.array([values[group] for group in groups], np.float64)
    return SeriesAnswer(tuple(groups), np.arange(rows.shape[1], dtype=np.int64), rows)


def test_each_step_has_a_median_of_its_own() -> None:
    found = deviations_of(
        answer(
            {
                member(0, "a"): [100.0, 300.0],
                member(1, "a"): [100.0, 300.0],
                member(2, "a"): [90.0, NAN],
                member(3, "a"): [100.0, 260.0],
                member(4, "b"): [900.0, 900.0],  # alone in its job
            }
        )
    )
    same = [Deviation(member(index, "a"), 200.0, 200.0) for index in (0, 1)]
    assert found == [*same, Deviation(member(2, "a"), 90.0, 100.0), Deviation(member(3, "a"), 180.0, 200.0), None]
    assert [one.difference for one in found if one] == [0.0, 0.0, -10.0, -20.0]
    assert [one.ratio for one in found if one] == [0.0, 0.0, -0.1, -0.1]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), min_size=1, max_size=4))
def test_differences_are_to_the_median_of_the_job(jobs: list[list[float]]) -> None:
    rows = {member(index, str(job)): [value] for job, some in enumerate(jobs) for index, value in enumerate(some)}
    found = deviations_of(answer(rows))
    expected = [value - median(some) for some in jobs if len(some) > 1 for value in some]
    assert sorted(one.difference for one in found if one) == pytest.approx(sorted(expected), abs=1e-6)
