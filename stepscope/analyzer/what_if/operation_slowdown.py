"""Slowdown of a job against even operations, and the workers, stages and kinds that cause it.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025), whose
definitions of S, S_t, S_w, M_W and M_S these are. The ideal gives every operation of a kind the same cost: computation
its mean (work is only moved), communication its median (a slow transfer is an outlier). The slowdown S compares the
job's replay with the replay of that ideal; the real costs of one worker, stage or kind alone show what it causes.

The replay computes when each operation ends, for all replicas and steps at once: operations start once all they need
has ended, and a transfer ends its own cost after the last of its members has begun.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.what_if.operations import COMMUNICATION, OPTIMIZER, Dependencies, OperationGrid
from stepscope.core.errors import DataError
from stepscope.trace.rows import distinct

CLOCK_ERROR_SECONDS = 1e-2
"""Negative transfer time from which the transfer counts as zero, because one of the clocks is off."""

Seconds = npt.NDArray[np.float64]
"""(operations, replicas, steps)"""


@dataclass(frozen=True, slots=True)
class _JointStart:
    """Operations that end after all of them have begun; a computation is alone in its group."""

    members: list[int]
    needs: list[npt.NDArray[np.intp]]
    across_replicas: bool


class OperationReplay:
    """Order of a job's step by its operation table, to be replayed with any durations.

    Raises:
        DataError: operations wait for each other in a cycle.
    """

    def __init__(self, grid: OperationGrid, dependencies: Dependencies) -> None:
        place = {operation: at for at, operation in enumerate(grid.operations)}
        joint = [[place[o] for o in group] for group in dependencies.together]
        self.communicates = np.zeros(len(place), bool)
        self.communicates[[at for group in joint for at in group]] = True
        groups = joint + [[at] for at in range(len(place)) if not self.communicates[at]]
        across = {place[o] for o in dependencies.across_replicas}
        needs = [np.array([place[n] for n in dependencies.needs.get(o, ())], np.intp) for o in grid.operations]
        self._groups = [
            _JointStart(
                members, [needs[at] for at in members], bool(self.communicates[members[0]] and across & {*members})
            )
            for members in _in_order(groups, needs)
        ]
        self._last = np.array([at for o, at in place.items() if o.kind == OPTIMIZER] or list(place.values()), np.intp)
        self._shape = grid.duration_seconds.shape

    def step_seconds(self, cost: Seconds) -> npt.NDArray[np.float64]:
        """Duration of each step, shape (steps,), with these costs; communication's count from its last member."""
        end = np.zeros(self._shape)
        for group in self._groups:
            begun = np.zeros(self._shape[1:])
            for needs in group.needs:
                if len(needs):
                    np.maximum(begun, end[needs].max(axis=0), out=begun)
            if group.across_replicas:
                begun = np.broadcast_to(begun.max(axis=0), begun.shape)
            end[group.members] = begun + cost[group.members]
        longest: npt.NDArray[np.float64] = end[self._last].max(axis=(0, 1))
        return longest

    def costs(self, grid: OperationGrid) -> Seconds:
        """Cost of each operation: its duration, or for communication the part after its last member had begun."""
        cost = grid.duration_seconds.copy()
        for group in self._groups:
            if not self.communicates[group.members[0]]:
                continue
            begun = grid.start_seconds[group.members].max(axis=0)
            if group.across_replicas:
                begun = begun.max(axis=0)
            cost[group.members] = grid.end_seconds[group.members] - begun
        cost[cost <= -CLOCK_ERROR_SECONDS] = 0.0
        return cost


def _in_order(groups: list[list[int]], needs: list[npt.NDArray[np.intp]]) -> list[list[int]]:
    """Topological order of the groups (Kahn's algorithm)."""
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
            "holds operations that wait for each other in a cycle", what_next="check the order of its sends"
        )
    return [groups[number] for number in ready]


WORST_SHARE = 0.03
"""M_W: share of the workers that counts as the slowest (the paper's choice)."""


@dataclass(frozen=True, slots=True)
class RemovalGain:
    """Gain of a replay from evening out some operations alone: the mean step, and the share of the ideal's gain.

    The share is below 0 if the step gets longer, above 1 if others gain as well.
    """

    step_seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Mean step times of a replay in seconds, and slowdowns against the ideal (1 = none).

    Attributes:
        by_rank: S_w, by number of the rank.
        worst_ranks: ranks with the largest S_w, at least one; `worst_workers` is their removal (M_W).
        last_stage: removal of the last stage (M_S); None with a single stage.
        communication: removal of all communication.
    """

    measured_seconds: float
    replayed_seconds: float
    ideal_seconds: float
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_replica: dict[int, float]
    by_kind: dict[str, float]
    worst_ranks: list[int]
    worst_workers: RemovalGain
    last_stage: RemovalGain | None
    communication: RemovalGain

    @property
    def slowdown(self) -> float:
        """S: replayed step over ideal step."""
        return self.replayed_seconds / self.ideal_seconds


def find_slowdown(grid: OperationGrid, replay: OperationReplay) -> Slowdown:
    """Replay the job as measured, evened out, and with the real costs of each suspect alone."""
    actual = replay.costs(grid)
    ideal = _even_costs(grid, actual)
    # masks are over (operations, replicas, steps)
    stage_of = np.array([o.stage for o in grid.operations])[:, None, None]
    kind_of = np.array([o.kind for o in grid.operations])[:, None, None]
    replica_of = np.array(grid.replicas)[None, :, None]
    rank_of = grid.rank[stage_of[:, 0, 0]][:, :, None]

    def mean_step(cost: Seconds) -> float:
        return float(replay.step_seconds(cost).mean())

    replayed, even = mean_step(actual), mean_step(ideal)

    def slowdown_of(mask: npt.NDArray[np.bool_]) -> float:
        return mean_step(np.where(mask, actual, ideal)) / even

    def removal(mask: npt.NDArray[np.bool_]) -> RemovalGain:
        step = mean_step(np.where(mask, ideal, actual))
        return RemovalGain(step, (replayed - step) / (replayed - even) if replayed != even else 0.0)

    by_stage = {stage: slowdown_of(stage_of == stage) for stage in range(grid.num_stages)}
    by_replica = {replica: slowdown_of(replica_of == replica) for replica in grid.replicas}
    by_kind = {kind: slowdown_of(kind_of == kind) for kind in sorted({o.kind for o in grid.operations})}
    by_rank = {
        int(grid.rank[stage, place]): min(by_stage[stage], by_replica[replica])
        for stage in by_stage
        for place, replica in enumerate(grid.replicas)
    }
    num_worst = math.ceil(len(by_rank) * WORST_SHARE)
    worst = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))[:num_worst]
    return Slowdown(
        measured_seconds=float((grid.end_seconds.max(axis=(0, 1)) - grid.start_seconds.min(axis=(0, 1))).mean()),
        replayed_seconds=replayed,
        ideal_seconds=even,
        by_rank=by_rank,
        by_stage=by_stage,
        by_replica=by_replica,
        by_kind=by_kind,
        worst_ranks=worst,
        worst_workers=removal(np.isin(rank_of, worst)),
        last_stage=removal(stage_of == grid.num_stages - 1) if grid.num_stages > 1 else None,
        communication=removal(np.isin(kind_of, list(COMMUNICATION))),
    )


def _even_costs(grid: OperationGrid, cost: Seconds) -> Seconds:
    """Costs with every operation at its kind's mean (computation) or median (communication)."""
    even = np.empty_like(cost)
    kinds = np.array([o.kind for o in grid.operations])
    for kind in distinct(kinds).tolist():
        mine = kinds == kind
        even[mine] = np.median(cost[mine]) if kind in COMMUNICATION else np.mean(cost[mine])
    return even
