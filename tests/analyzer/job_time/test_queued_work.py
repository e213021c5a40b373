"""A GPU with queued work goes on while its host is held up, so taking away what empties the queue gains more."""

from __future__ import annotations

import pytest

from stepscope.analyzer.job_time.queued_work import hidden_ms
from stepscope.analyzer.job_time.steps import HostLoss, job_steps
from stepscope.analyzer.job_time.training_time import TrainingTime, training_time
from tests.analyzer.job_time.records import MS, rank_steps


def _waiting(every: int, wait_ms: float) -> TrainingTime:
    def is_late(index: int) -> bool:
        return index % every == every - 1

    lengths = [50.0 + (wait_ms if is_late(index) else 0.0) for index in range(60)]
    more = lambda index: {"data_wait_ns": round(wait_ms * MS) if is_late(index) else 0}  # noqa: E731
    steps = job_steps([rank_steps(0, lengths, more)])
    assert steps is not None
    return training_time(steps, [])


@pytest.mark.parametrize(
    ("wait_ms", "queued_ms", "growth_ms", "hidden"),
    [(200.0, 40.0, 30.0, 40.0), (25.0, 40.0, 30.0, 25.0), (200.0, 400.0, 5.0, 30.0), (200.0, 0.0, 30.0, 0.0)],
    ids=["a full queue", "all of the wait", "a queue that fills slowly", "no queue"],
)
def test_a_late_batch_is_hidden_as_far_as_work_is_queued(
    wait_ms: float, queued_ms: float, growth_ms: float, hidden: float
) -> None:
    found = hidden_ms(_waiting(6, wait_ms), [HostLoss.DATA_WAIT], queued_ms, growth_ms)
    assert found == pytest.approx(hidden / 6, rel=0.15)


def test_batches_that_are_always_late_come_no_sooner() -> None:
    assert hidden_ms(_waiting(1, 60.0), [HostLoss.DATA_WAIT], 40.0, 30.0) == 0.0
