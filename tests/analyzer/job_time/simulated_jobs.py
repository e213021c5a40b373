"""Jobs whose ranks wait for each other once a step, simulated event by event, with each of their faults or without."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from stepscope.analyzer.job_time.steps import HostLoss
from stepscope.core.documents.run_directory import RankSteps, Step
from tests.analyzer.job_time.records import MS, START_NS


@dataclass(frozen=True)
class Rank:
    """What a rank does beside its part of a step; times in ms.

    Attributes:
        making_ms: how long a worker of its loader takes for a batch.
        num_workers: 0: the batch is made when it is asked for.
        save_every: it saves after every so many steps, which takes `save_ms`.
        collects_ms: of each step, after it.
        python_ms: the same, without a record of it.
    """

    making_ms: float = 0.0
    num_workers: int = 1
    save_every: int = 4
    save_ms: float = 0.0
    collects_ms: float = 0.0
    python_ms: float = 0.0

    def without(self, fault: HostLoss) -> Rank:
        fixed = {
            HostLoss.DATA_WAIT: replace(self, making_ms=0.0),
            HostLoss.CHECKPOINT: replace(self, save_ms=0.0),
            HostLoss.COLLECTION: replace(self, collects_ms=0.0),
            HostLoss.LATENESS: replace(self, python_ms=0.0),
        }
        return fixed[fault]


PREFETCH = 2


@dataclass
class _Loader:
    making_ms: float
    num_workers: int
    free_ms: list[float] = field(default_factory=list)
    asked_ms: list[float] = field(default_factory=list)
    """By batch: when a worker was given it."""

    def batch(self, number: int, now_ms: float) -> float:
        """When the loop that asks now for its next batch has it."""
        if not self.num_workers:
            return now_ms + self.making_ms
        if not self.asked_ms:
            self.free_ms = [now_ms] * self.num_workers
            self.asked_ms = [now_ms] * (self.num_workers * PREFETCH)
        worker = number % self.num_workers
        self.free_ms[worker] = max(self.free_ms[worker], self.asked_ms[number]) + self.making_ms
        taken = max(now_ms, self.free_ms[worker])
        self.asked_ms.append(taken)
        return taken


def simulated(ranks: Collection[Rank], num_steps: int, compute_ms: float = 60.0) -> list[RankSteps]:
    """The records of so many steps of each rank."""
    loaders = [_Loader(rank.making_ms, rank.num_workers) for rank in ranks]
    now = [0.0 for _ in ranks]
    steps: list[list[Step]] = [[] for _ in ranks]
    for index in range(num_steps):
        begun = list(now)
        taken = [loader.batch(index, at) for loader, at in zip(loaders, now, strict=True)]
        together = max(at + compute_ms for at in taken)
        for place, rank in enumerate(ranks):
            save = rank.save_ms if index % rank.save_every == rank.save_every - 1 else 0.0
            now[place] = together + save + rank.collects_ms + rank.python_ms
            steps[place].append(
                Step(
                    index,
                    START_NS + round(begun[place] * MS),
                    START_NS + round(now[place] * MS),
                    data_wait_ns=round((taken[place] - begun[place]) * MS),
                    phases={"checkpoint": round(save * MS)} if save else {},
                    figures={"gc_pause_ns": rank.collects_ms * MS},
                )
            )
    return [RankSteps(place, own) for place, own in enumerate(steps)]


def period_ms(records: list[RankSteps], first: int) -> float:
    """Mean time of a step from this one on."""
    ends = [max(rank.steps[index].end_ns for rank in records) for index in range(len(records[0].steps))]
    return (ends[-1] - ends[first - 1]) / (len(ends) - first) / MS
