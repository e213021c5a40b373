"""Faults of data loading: slow, bursty and CPU-starved loaders."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections.injected_job import PINNED_CORES
from stepscope.reference_workloads.job import Injection, Need, severity

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob

_PERIODS_SEEN = 10
"""Rounds of workers in a run; fewer than twelve waits show no rhythm."""


@dataclass(frozen=True, slots=True)
class SlowLoader(Injection):
    """Every sequence takes longer to make than a step has time for, and the training process makes it itself."""

    name: ClassVar[str] = "slow_loader"
    cause: ClassVar[Cause] = Cause.DATA_LOADING
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.STARVED, Reason.NO_WORKERS)
    shows: ClassVar[str] = "the GPU idles at the start of each step while the loop is inside the loader's next()"
    fix: ClassVar[Cause | None] = Cause.DATA_LOADING

    milliseconds_per_item: float = severity(60.0, above=0)
    num_workers: int = severity(0, least=0)

    def change(self, job: TrainingJob) -> TrainingJob:
        return _with_workers(job, self.num_workers)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Slow(dataset, self.milliseconds_per_item / 1e3)


@dataclass(frozen=True, slots=True)
class BurstyLoader(Injection):
    """Workers of which each makes a whole batch, all at once, and too slowly: the loop waits for all, then for none."""

    name: ClassVar[str] = "bursty_loader"
    cause: ClassVar[Cause] = Cause.DATA_LOADING
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.BURSTY,)
    shows: ClassVar[str] = "every num_workers-th step waits for its batch, the others do not"
    fix: ClassVar[Cause | None] = Cause.DATA_LOADING

    milliseconds_per_item: float = severity(120.0, above=0)
    num_workers: int = severity(2, least=1)

    def control(self, job: TrainingJob) -> TrainingJob:
        return replace(job, num_steps=max(job.num_steps, _PERIODS_SEEN * self.num_workers))

    def change(self, job: TrainingJob) -> TrainingJob:
        return _with_workers(job, self.num_workers)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Slow(dataset, self.milliseconds_per_item / 1e3)


@dataclass(frozen=True, slots=True)
class CpuStarvedLoader(Injection):
    """Items cost processor time, and the workers of all ranks of a machine share one core."""

    name: ClassVar[str] = "cpu_starved_loader"
    cause: ClassVar[Cause] = Cause.DATA_LOADING
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.STARVED,)
    needs: ClassVar[tuple[Need, ...]] = (PINNED_CORES,)
    shows: ClassVar[str] = "every step waits for workers that get a fraction of a core; more workers do not help"
    fix: ClassVar[Cause | None] = Cause.DATA_LOADING

    cpu_milliseconds_per_item: float = severity(40.0, above=0)
    num_workers: int = severity(2, least=1)

    def change(self, job: TrainingJob) -> TrainingJob:
        return _with_workers(job, self.num_workers)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Costly(dataset, self.cpu_milliseconds_per_item / 1e3)


def _with_workers(job: TrainingJob, num_workers: int) -> TrainingJob:
    return replace(job, recipe=replace(job.recipe, loader_workers=num_workers))


class _Slow:
    """A map-style dataset whose items come after a pause."""

    def __init__(self, dataset: Any, seconds: float) -> None:
        self._dataset = dataset
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds)
        return self._dataset[index]


class _Costly:
    """A map-style dataset whose items cost processor time, on the one core that all workers are kept on."""

    def __init__(self, dataset: Any, cpu_seconds: float) -> None:
        self._dataset = dataset
        self._cpu_seconds = cpu_seconds

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        until = time.thread_time() + self._cpu_seconds
        while time.thread_time() < until:
            pass
        return self._dataset[index]
