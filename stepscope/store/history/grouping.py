"""Arithmetic of answers: values of series over steps become values of groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Statistic

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
NONE = -1
"""Index of no group, and time of no sample."""


def grouped(values: Floats, group: Indices, num_groups: int, statistic: Statistic) -> Floats:
    """Value of each group and step.

    Args:
        values: of each series and step, NaN where unknown; shape (series, steps).
        group: of each series, or of each series and step; NONE where it belongs to none.

    Returns:
        Shape (groups, steps); NaN where no series of the group has a value.
    """
    num_steps = values.shape[1]
    group = group if group.ndim == 2 else group[:, None]
    is_known = ~np.isnan(values) & (group != NONE)
    cell = (group * num_steps + np.arange(num_steps))[is_known]
    some, size = values[is_known], num_groups * num_steps
    count: Floats = np.bincount(cell, minlength=size).astype(np.float64)
    answer: Floats
    if statistic is Statistic.COUNT:
        answer = count.copy()
    elif statistic in (Statistic.MIN, Statistic.MAX):
        answer = np.full(size, np.nan)
        (np.fmin if statistic is Statistic.MIN else np.fmax).at(answer, cell, some)
    else:
        answer = np.bincount(cell, weights=some, minlength=size).astype(np.float64)
        if statistic is Statistic.MEAN:
            answer /= np.maximum(count, 1)
    answer[count == 0] = np.nan
    return answer.reshape(num_groups, num_steps)


def is_present(newest: Indices, newest_page: Indices, times: Indices, within: int) -> NDArray[np.bool_]:
    """Whether a series was on the last page of its target.

    Args:
        newest: time of the newest sample of each series up to each step's end, NONE where there is none.
        newest_page: time of the newest page of its target, alike.
        times: end of each step.
        within: older samples count for nothing.
    """
    answer: NDArray[np.bool_] = (newest != NONE) & (newest >= newest_page) & (times - newest <= within)
    return answer


def only_one(present: NDArray[np.bool_], device: Sequence[int], owner: Sequence[int], num_devices: int) -> Indices:
    """The one owner of each device at each step; NONE where there is none, or more than one.

    Args:
        present: of each assignment and step.
        device, owner: of each assignment.
    """
    answer = np.full((num_devices, present.shape[1]), NONE, np.int64)
    is_shared = np.zeros(answer.shape, np.bool_)
    for row, (place, one) in enumerate(zip(device, owner, strict=True)):
        here, known = present[row], answer[place]
        is_shared[place] |= here & (known != NONE) & (known != one)
        known[here] = one
    answer[is_shared] = NONE
    return answer
