"""Replay of operations: when each begins and ends, for all replicas and steps at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.what_if.operations.dependencies import Dependencies
from stepscope.analyzer.what_if.operations.grid import OPTIMIZER, Grid
from stepscope.core.errors import DataError

CLOCK_ERROR_SECONDS = 1e-2
"""Transfers that seem to end this long before their last member came are nought: one of the clocks is off."""

Seconds = npt.NDArray[np.float64]
"""(operations, replicas, steps)"""


@dataclass(frozen=True, slots=True)
class _JointStart:
    """Operations that end after all have begun; one of them alone computes."""

    members: list[int]
    needs: list[npt.NDArray[np.intp]]
    across_replicas: bool


class Replay:
    """The order of a job's step, ready to be run with any durations.

    Raises:
        DataError: operations that wait for each other in a circle.
    """

    def __init__(self, grid: Grid, dependencies: Dependencies) -> None:
        place = {operation: at for at, operation in enumerate(grid.operations)}
        met = [[place[o] for o in group] for group in dependencies.together]
        self.communicates = np.zeros(len(place), bool)
        self.communicates[[at for group in met for at in group]] = True
        groups = met + [[at] for at in range(len(place)) if not self.communicates[at]]
        across = {place[o] for o in dependencies.across_replicas}
        needs = [np.array([place[n] for n in dependencies.needs.get(o, ())], np.intp) for o in grid.operations]
        self._meetings = [
            _JointStart(
                members, [needs[at] for at in members], bool(self.communicates[members[0]] and across & {*members})
            )
            for members in _in_order(groups, needs)
        ]
        self._last = np.array([at for o, at in place.items() if o.kind == OPTIMIZER] or list(place.values()), np.intp)
        self._shape = grid.duration_seconds.shape

    def step_seconds(self, cost: Seconds) -> npt.NDArray[np.float64]:
        """Time of each step (steps,) when operations take `cost`; communication's counts from its last member on."""
        end = np.zeros(self._shape)
        for meeting in self._meetings:
            begun = np.zeros(self._shape[1:])
            for needs in meeting.needs:
                if len(needs):
                    np.maximum(begun, end[needs].max(axis=0), out=begun)
            if meeting.across_replicas:
                begun = np.broadcast_to(begun.max(axis=0), begun.shape)
            end[meeting.members] = begun + cost[meeting.members]
        longest: npt.NDArray[np.float64] = end[self._last].max(axis=(0, 1))
        return longest

    def costs(self, grid: Grid) -> Seconds:
        """What each operation took by itself: of communication only what came after its last member had begun."""
        cost = grid.duration_seconds.copy()
        for meeting in self._meetings:
            if not self.communicates[meeting.members[0]]:
                continue
            begun = grid.start_seconds[meeting.members].max(axis=0)
            if meeting.across_replicas:
                begun = begun.max(axis=0)
            cost[meeting.members] = grid.end_seconds[meeting.members] - begun
        cost[cost <= -CLOCK_ERROR_SECONDS] = 0.0
        return cost


def _in_order(groups: list[list[int]], needs: list[npt.NDArray[np.intp]]) -> list[list[int]]:
    """Groups so that each comes after all it needs."""
    group_of = {at: number for number, members in enumerate(groups) for at in members}
    followers: list[list[int]] = [[] for _ in groups]
    missing = [0] * len(groups)
    for number, members in enumerate(groups):
        for before in {group_of[int(n)] for at in members for n in needs[at]} - {number}:
            followers[before].append(number)
            missing[number] += 1
    ready = [number for number, count in enumerate(missing) if not count]
    for number in ready:  # grows while it is read
        for follower in followers[number]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if len(ready) < len(groups):
        raise DataError(
            "holds operations that wait for each other in a circle", what_next="check the order of its sends"
        )
    return [groups[number] for number in ready]
