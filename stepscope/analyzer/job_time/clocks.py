"""Clocks of the hosts that recorded a job's steps: changes of a clock during the run, offsets between ranks.

Durations of steps are by a monotonic clock, their starts by the host's wall clock, which may be set at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.core.documents.run_directory import RankSteps, Step

MIN_CHANGE_SHARE = 0.1
"""Least change of a clock that shows, as a share of the median step."""
MIN_CHANGE_NS = 10_000_000
SAME_CHANGE = 0.1
"""Largest relative difference between ranks of one host in the same change of its clock."""
MIN_OFFSET_SHARE = 0.1
"""Least offset of a rank's ends that is taken off, as a share of the step."""
MAX_OFFSET_SPREAD = 0.05
"""Largest spread of a rank's offset for it to be known, as a share of the step."""
MIN_ORDINARY_STEPS = 8
"""Fewer steps do not show an offset."""
_ORDINARY_RATIO = 1.5
_DECILES_APART = 2.56
"""Standard deviations from the first to the last decile."""

_Key = tuple[int, int]
"""A step's attempt and index."""


def clock_changes(records: Sequence[RankSteps], hosts: Mapping[int, str]) -> dict[int, npt.NDArray[np.int64]]:
    """By rank and place among its steps: by how much its clock was set before, ns.

    A change is a time between adjacent steps that is negative, or longer than what is recorded between them, on all
    ranks of a host. On one rank alone it is one where it is negative, or takes such a change back: else a pause.
    """
    found = {rank.rank: _jumps(rank.steps) for rank in records}
    of_host: dict[str, list[RankSteps]] = defaultdict(list)
    for rank in records:
        of_host[hosts.get(rank.rank, "")].append(rank)
    changes: dict[int, npt.NDArray[np.int64]] = {}
    for ranks in of_host.values():
        if not any(found[rank.rank] for rank in ranks):
            changes |= {rank.rank: np.zeros(len(rank.steps), np.int64) for rank in ranks}
            continue
        known = {rank.rank: {(step.attempt, step.index) for step in rank.steps} for rank in ranks}
        for rank in ranks:
            sizes = np.zeros(len(rank.steps), np.int64)
            own_ns = 0  # by which this rank's clock alone is behind
            for place, step in enumerate(rank.steps):
                at = step.attempt, step.index
                if not (size := found[rank.rank].get(at, 0)):
                    continue
                if all(_has_jumped(found[other], known[other], at, size) for other in known):
                    sizes[place] = size
                elif size < 0 or abs(own_ns + size) <= SAME_CHANGE * size:  # no step begins before the one before ends
                    sizes[place] = size
                    own_ns += size
            changes[rank.rank] = np.cumsum(sizes)
    return changes


def _jumps(steps: Sequence[Step]) -> dict[_Key, int]:
    """Changes of the clock by the step before which they show."""
    if len(steps) < 2:
        return {}
    start, end, index, attempt, between = (
        np.array(values, np.int64)
        for values in zip(
            *((s.start_ns, s.end_ns, s.index, s.attempt, s.export_ns + s.prepare_ns) for s in steps), strict=True
        )
    )
    gap = start[1:] - end[:-1]
    least = max(MIN_CHANGE_NS, MIN_CHANGE_SHARE * float(np.median(end - start)))
    is_valid = (end >= start)[1:] & (end >= start)[:-1] & (np.diff(index) == 1) & (np.diff(attempt) == 0)
    jumped = is_valid & ((gap < -least) | (gap - between[:-1] > least))
    return {
        (steps[place + 1].attempt, steps[place + 1].index): int(gap[place] - between[place])
        for place in np.flatnonzero(jumped).tolist()
    }


def _has_jumped(jumps: Mapping[_Key, int], known: set[_Key], at: _Key, size: int) -> bool:
    """Whether another rank shows the same change at this step or one beside it, or has no step there."""
    beside = [(at[0], at[1] + by) for by in (-1, 0, 1)]
    tolerance = max(MIN_CHANGE_NS, SAME_CHANGE * abs(size))
    if any(abs(jumps[key] - size) <= tolerance for key in beside if key in jumps):
        return True
    return not any(key in known for key in beside)


class Offsets(NamedTuple):
    """Offsets of the ranks' ends in one attempt.

    Attributes:
        ms: by rank, against the first one; 0 where they are small or not known.
        are_known: enough ordinary steps show them, and they are stable.
    """

    ms: npt.NDArray[np.float64]
    are_known: bool


def end_offsets(end_ms: npt.NDArray[np.float64], is_usable: npt.NDArray[np.bool_]) -> Offsets:
    """How much later each rank ends its ordinary steps than the others: its clock, as far as anyone can tell.

    Args:
        end_ms: by step and rank, of one attempt.
        is_usable: steps that follow the one before, and no profiler touched.
    """
    unknown = Offsets(np.zeros(end_ms.shape[1]), are_known=False)
    complete = np.asarray(np.isfinite(end_ms).all(axis=1), np.bool_)
    rows = np.flatnonzero(is_usable[1:] & complete[1:] & complete[:-1]) + 1
    if len(rows) < MIN_ORDINARY_STEPS:
        return unknown
    longest = (end_ms[rows] - end_ms[rows - 1]).max(axis=1)
    ordinary = np.flatnonzero(longest <= _ORDINARY_RATIO * np.quantile(longest, 0.25))
    rows, longest = rows[ordinary], longest[ordinary]
    if len(rows) < MIN_ORDINARY_STEPS:
        return unknown
    later = end_ms[rows] - np.median(end_ms[rows], axis=1)[:, None]
    offset = np.median(later, axis=0)
    low, high = np.quantile(later, (0.1, 0.9), axis=0)
    spread = float((high - low).max()) / _DECILES_APART
    step_ms = float(np.median(longest))
    if spread > MAX_OFFSET_SPREAD * step_ms:
        return unknown
    offset = offset - offset[0]
    is_large = np.abs(offset).max() > MIN_OFFSET_SHARE * step_ms
    return Offsets(offset if is_large else np.zeros(len(offset)), are_known=True)
