"""Slowdown of a job against even operations, and the workers, stages and kinds that cause it.

The ideal gives every operation of a kind the same cost: computation its mean (work is only moved), communication its
median (a slow transfer is an outlier). The slowdown S compares the job's replay with that ideal; keeping the real
costs of one worker, stage or kind alone shows what that one is to blame for. After "Understanding Stragglers in Large
Model Training Using What-if Analysis" (Lin et al., OSDI 2025), whose definitions of S, S_t, S_w, M_W and M_S these
are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.rows import distinct
from stepscope.analyzer.what_if.operations.grid import COMMUNICATION, Grid
from stepscope.analyzer.what_if.operations.replay import Replay, Seconds

WORST_SHARE = 0.03
"""M_W: the slowest three hundredths of the workers (the paper's choice)."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What evening out some operations alone buys.

    Attributes:
        step_seconds: mean step then.
        share: of all that the ideal buys; below 0 where it would even cost, above 1 where others gain as well.
    """

    step_seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Mean step times in seconds, and slowdowns against the ideal (1 = none).

    Attributes:
        by_rank: S_w, by the rank's number.
        worst_ranks: those of the largest S_w, at least one; `worst_workers` is what evening them out buys (M_W).
        last_stage: the same for the last stage (M_S); None with a single one.
        communication: the same for all communication.
    """

    measured_seconds: float
    replayed_seconds: float
    ideal_seconds: float
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_replica: dict[int, float]
    by_kind: dict[str, float]
    worst_ranks: list[int]
    worst_workers: Removal
    last_stage: Removal | None
    communication: Removal

    @property
    def slowdown(self) -> float:
        """S: the replay over the ideal."""
        return self.replayed_seconds / self.ideal_seconds


def find_slowdown(grid: Grid, replay: Replay) -> Slowdown:
    """Replay the job as it was, evened out, and with each suspect's real costs alone."""
    actual = replay.costs(grid)
    ideal = evened(grid, actual)
    suspects = _Suspects(grid)

    def mean_step(cost: Seconds) -> float:
        return float(replay.step_seconds(cost).mean())

    replayed, even = mean_step(actual), mean_step(ideal)

    def slowdown_of(mask: npt.NDArray[np.bool_]) -> float:
        return mean_step(np.where(mask, actual, ideal)) / even

    def removal(mask: npt.NDArray[np.bool_]) -> Removal:
        step = mean_step(np.where(mask, ideal, actual))
        return Removal(step, (replayed - step) / (replayed - even) if replayed != even else 0.0)

    by_stage = {stage: slowdown_of(suspects.stage(stage)) for stage in range(grid.num_stages)}
    by_replica = {replica: slowdown_of(suspects.replica(replica)) for replica in grid.replicas}
    by_kind = {kind: slowdown_of(suspects.kind(kind)) for kind in sorted({o.kind for o in grid.operations})}
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
        worst_workers=removal(suspects.ranks(worst)),
        last_stage=removal(suspects.stage(grid.num_stages - 1)) if grid.num_stages > 1 else None,
        communication=removal(np.isin(suspects.kind_of, list(COMMUNICATION))),
    )


def evened(grid: Grid, cost: Seconds) -> Seconds:
    """Every operation at its kind's mean (computation) or median (communication)."""
    even = np.empty_like(cost)
    kinds = np.array([o.kind for o in grid.operations])
    for kind in distinct(kinds).tolist():
        mine = kinds == kind
        even[mine] = np.median(cost[mine]) if kind in COMMUNICATION else np.mean(cost[mine])
    return even


class _Suspects:
    """Masks over (operations, replicas, steps)."""

    def __init__(self, grid: Grid) -> None:
        self._stage: npt.NDArray[np.int64] = np.array([o.stage for o in grid.operations])[:, None, None]
        self.kind_of: npt.NDArray[np.str_] = np.array([o.kind for o in grid.operations])[:, None, None]
        self._replica: npt.NDArray[np.int64] = np.array(grid.replicas)[None, :, None]
        self._rank: npt.NDArray[np.int64] = grid.rank[self._stage[:, 0, 0]][:, :, None]

    def stage(self, stage: int) -> npt.NDArray[np.bool_]:
        return np.equal(self._stage, stage)

    def replica(self, replica: int) -> npt.NDArray[np.bool_]:
        return np.equal(self._replica, replica)

    def kind(self, kind: str) -> npt.NDArray[np.bool_]:
        return np.equal(self.kind_of, kind)

    def ranks(self, ranks: list[int]) -> npt.NDArray[np.bool_]:
        return np.isin(self._rank, ranks)
