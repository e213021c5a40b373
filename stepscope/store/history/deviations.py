"""GPUs that deviate most from the median of their job: asked of any history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.store.history.questions import (
    GROUP_LABELS,
    GroupBy,
    Labels,
    MetricHistory,
    Question,
    SeriesAnswer,
    TimeRange,
)

MIN_GPUS = 3
"""Of two that differ, nobody can say which one deviates."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a GPU is from the median of its job.

    Attributes:
        labels: of the GPU and the job.
        value, median: of the GPU and of the job's GPUs, in the metric's unit (a counter's a second): means over the
            steps in which the GPU has a value and the job at least MIN_GPUS.
    """

    labels: Labels
    value: float
    median: float

    @property
    def difference(self) -> float:
        """Value less median, in the metric's unit."""
        return self.value - self.median


def top_deviations(history: MetricHistory, metric: str, time: TimeRange, count: int) -> list[Deviation]:
    """GPUs whose metric is farthest from the median of their job, the farthest first.

    GPUs that no job has alone, and jobs of fewer than MIN_GPUS, are left out.

    Args:
        time: each step has a median of its own.
        count: at most so many.

    Raises:
        StepscopeError: as the history's.
    """
    answer = history.range(Question(metric, (GroupBy.GPU, GroupBy.JOB)), time)
    return farthest(answer, count)


def farthest(answer: SeriesAnswer, count: int) -> list[Deviation]:
    """The same, of an answer by GPU and job."""
    members: dict[Labels, list[int]] = defaultdict(list)
    for row, labels in enumerate(answer.groups):
        members[tuple(pair for pair in labels if pair[0] in GROUP_LABELS[GroupBy.JOB])].append(row)
    found: list[Deviation] = []
    for rows in members.values():
        found += _of_job(answer, rows)
    return sorted(found, key=lambda one: (-abs(one.difference), one.labels))[:count]


def _of_job(answer: SeriesAnswer, rows: Sequence[int]) -> list[Deviation]:
    values = answer.values[list(rows)]
    values = values[:, (~np.isnan(values)).sum(axis=0) >= MIN_GPUS]
    if not values.size:
        return []
    medians = np.nanmedian(values, axis=0)
    known = ~np.isnan(values)
    return [
        Deviation(answer.groups[row], float(values[place, steps].mean()), float(medians[steps].mean()))
        for place, (row, steps) in enumerate(zip(rows, known, strict=True))
        if steps.any()
    ]
