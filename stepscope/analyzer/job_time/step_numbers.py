"""The job's own number of each step, and which steps a restart made worthless.

Step records count from 0, or from the `first_step` that the training code gave. Without it a restarted run numbers on,
whatever step it resumed from; a figure `step` or `global_step` of `prof.step()` then tells the job's own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.steps import Flags, Floats, JobSteps
from stepscope.core.documents.run_directory import Attempt

Numbers = npt.NDArray[np.int64]

STEP_FIGURES = ("global_step", "step")
"""Figures that may hold the job's own number of a step, the first that does comes first."""


class StepNumbers(NamedTuple):
    """The job's own numbers of its steps.

    Attributes:
        numbers: by step.
        is_resumed_known: by attempt, whether the step that it began with is known, not only where the records go on.
    """

    numbers: Numbers
    is_resumed_known: dict[int, bool]


def step_numbers(steps: JobSteps, attempts: Sequence[Attempt]) -> StepNumbers:
    """Numbers of the steps, of all attempts by the same source; attempts as the manifest lists them."""
    rows_of = {number: np.flatnonzero(steps.attempt == number) for number in np.unique(steps.attempt).tolist()}
    is_rank_zeros = ~np.isnan(steps.end_ms[:, 0])  # whose last line a restarted run numbers on from
    known, numbered_on = {}, 0
    for number, rows in rows_of.items():
        given = attempts[number - 1].first_step if 0 < number <= len(attempts) else None
        known[number] = given is not None or int(steps.index[rows[0]]) != numbered_on
        own = rows[is_rank_zeros[rows]]
        numbered_on = int(steps.index[own[-1]]) + 1 if len(own) else numbered_on
    if all(known.values()):
        return StepNumbers(steps.index, known)
    for name in STEP_FIGURES:
        figure = steps.figures.get(name)
        offsets = None if figure is None else _offsets(figure, steps.index, list(rows_of.values()))
        if offsets is not None:
            numbers = steps.index.copy()
            for rows, offset in zip(rows_of.values(), offsets, strict=True):
                numbers[rows] += offset
            return StepNumbers(numbers, dict.fromkeys(rows_of, True))
    return StepNumbers(steps.index, known)


def _offsets(figure: Floats, index: Numbers, rows_of: Sequence[npt.NDArray[np.intp]]) -> list[int] | None:
    """Distance of a figure from the records' numbers in each attempt; None where it is not the number of the step, as
    one that begins anew in each epoch, or where an attempt lacks it."""
    offsets = []
    for rows in rows_of:
        distance = (figure - index)[rows]
        distance = distance[np.isfinite(distance)]
        if not len(distance) or (distance != distance[0]).any() or distance[0] != round(float(distance[0])):
            return None
        offsets.append(int(distance[0]))
    return offsets


def is_kept(numbers: Numbers) -> Flags:
    """Executions of steps, in their order, after which no step of the same or of a lower number was trained."""
    later = np.minimum.accumulate(numbers[::-1])[::-1]
    kept = np.ones(len(numbers), np.bool_)
    kept[:-1] = numbers[:-1] < later[1:]
    return kept


def is_repeated(numbers: Numbers) -> Flags:
    """Executions of steps, in their order, before which a step of the same or of a higher number was trained."""
    before = np.maximum.accumulate(numbers)
    repeated = np.zeros(len(numbers), np.bool_)
    repeated[1:] = numbers[1:] <= before[:-1]
    return repeated
