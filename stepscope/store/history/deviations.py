"""Groups, such as GPUs, that deviate most from the median of their job: of the answers of any history."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepscope.store.history.questions import GROUP_LABELS, GroupBy, Labels, SeriesAnswer


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a group is from the median of its job.

    Attributes:
        labels: of the group and the job.
        value, median: of the group and of the job's groups, in the metric's unit (a counter's a second): means over the
            steps in which the group has a value and the job at least two.
    """

    labels: Labels
    value: float
    median: float

    @property
    def difference(self) -> float:
        """Value less median, in the metric's unit."""
        return self.value - self.median

    @property
    def ratio(self) -> float | None:
        """The difference as a share of the median; None where that is 0."""
        return self.difference / abs(self.median) if self.median else None


def deviations_of(answer: SeriesAnswer) -> list[Deviation | None]:
    """Deviation of each group; None where it has no value beside another one of its job.

    A job's groups are compared step by step: a load that all of them have moves none of them. Groups without a job are
    compared with each other where none has one.
    """
    found: list[Deviation | None] = [None] * len(answer.groups)
    of_job: dict[Labels, list[int]] = defaultdict(list)
    for place, labels in enumerate(answer.groups):
        of_job[tuple(pair for pair in labels if pair[0] in GROUP_LABELS[GroupBy.JOB] and pair[1])].append(place)
    if len(of_job) > 1:
        of_job.pop((), None)
    for places in of_job.values():
        values = answer.values[places]
        values = values[:, (~np.isnan(values)).sum(axis=0) >= 2]
        if not values.size:
            continue
        medians = np.nanmedian(values, axis=0)
        for place, row in zip(places, values, strict=True):
            known = ~np.isnan(row)
            if known.any():
                found[place] = Deviation(answer.groups[place], float(row[known].mean()), float(medians[known].mean()))
    return found
