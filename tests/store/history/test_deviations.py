"""GPUs far from the median of their job."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store.history.deviations import MIN_GPUS, Deviation, farthest
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
    found = farthest(
        answer(
            {
                member(0, "a"): [100.0, 300.0],
                member(1, "a"): [100.0, 300.0],
                member(2, "a"): [90.0, NAN],
                member(3, "a"): [100.0, 260.0],
                member(0, "b"): [1.0, 1.0],  # two GPUs: nobody knows which one deviates
                member(1, "b"): [900.0, 900.0],
            }
        ),
        2,
    )
    assert found == [Deviation(member(3, "a"), 180.0, 200.0), Deviation(member(2, "a"), 90.0, 100.0)]
    assert [one.difference for one in found] == [-20.0, -10.0]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), min_size=1, max_size=4), st.integers(1, 40))
def test_differences_are_to_the_median_of_the_job(jobs: list[list[float]], count: int) -> None:
    rows = {member(index, str(job)): [value] for job, some in enumerate(jobs) for index, value in enumerate(some)}
    found = farthest(answer(rows), count)
    expected = sorted(
        (abs(value - median(some)) for some in jobs if len(some) >= MIN_GPUS for value in some), reverse=True
    )
    assert [abs(one.difference) for one in found] == pytest.approx(expected[:count], abs=1e-6)
