"""Faults that end a run: a rank that dies, and one that runs out of data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import FLIGHT_FOLDER, RankFile
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections import faults
from stepscope.reference_workloads.job import FaultSite, FaultyRunEnding, Injection, TrainingJob, severity

_RECORDED_CALLS = "2000"
_SIGNS_OF_TIMEOUT = ("timed out", "timeout")
_WATCHDOG_SIGNAL = "SIGABRT"
"""By which NCCL's watchdog ends a process, once it has written its flight recorder."""
_DUMP_SECONDS = 8.0
"""After a timeout a rank tells the others, waits for their dumps and its own, then ends."""


class Hang(Injection):
    """An injected fault that makes the other ranks wait for ever; each leaves its flight recorder."""

    __slots__ = ()

    cause = Cause.HANG
    timeout_seconds: float
    """a field of each fault: how long the others wait"""

    def change(self, job: TrainingJob) -> TrainingJob:
        """Ranks give up soon, and the last one to notice still leaves its flight recorder."""
        waits_for = self.timeout_seconds if job.device_type == "cuda" else 0.0  # on CPU a lost peer is noticed at once
        return replace(job, timeout_seconds=self.timeout_seconds, linger_seconds=waits_for + _DUMP_SECONDS)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        """The flight recorder's settings; torch before 2.10 knows its file by another name."""
        if not job.profiled:
            return {}
        prefix = str(Path(job.out, job.run, FLIGHT_FOLDER, "rank").absolute())
        return {
            "TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS,
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": prefix,
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        }

    def prepare(self, site: FaultSite) -> None:
        if site.job.profiled:
            Path(site.job.out, site.job.run, FLIGHT_FOLDER).mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class UnevenData(Hang):
    """Injected hang: one data-parallel rank has fewer batches, leaves the loop, and waits for its peers."""

    name = "uneven_data"
    needs = (faults.DATA_PARALLEL,)
    shows = "flight recorders stop in different groups: one rank's is past the last step's collectives"

    dp_rank: int = severity(1, least=0)
    num_batches: int = severity(7, least=1)
    timeout_seconds: float = severity(15.0, above=0)

    def unexpected_ending(self, job: TrainingJob, ending: FaultyRunEnding) -> str | None:
        """Ranks must have waited in vain for each other, and all have lived to tell."""
        error = ending.error.lower()
        waited = any(sign in error for sign in _SIGNS_OF_TIMEOUT)
        if not waited and not (job.device_type == "cuda" and _WATCHDOG_SIGNAL.lower() in error):
            return f"ranks were to wait for each other until a timeout, but: {ending.error}"
        return _missing_recorders(ending, range(job.plan.world_size))

    def refusal(self, job: TrainingJob) -> str | None:
        if not 0 <= self.dp_rank < job.plan.dp:
            return f"the job has no data-parallel rank {self.dp_rank}"
        if not 0 < self.num_batches < job.num_steps:
            return f"of {counted(job.num_steps, 'step')} a rank cannot run out after {self.num_batches}"
        return Injection.refusal(self, job)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        if dp_rank != self.dp_rank:
            return dataset
        return _First(dataset, job.preset.batch_size * self.num_batches)


@dataclass(frozen=True, slots=True)
class DyingRank(Hang):
    """Injected hang: one rank is killed before its optimizer, as by the kernel when memory runs out."""

    name = "dying_rank"
    reasons = (Reason.MISSING_RANK,)
    needs = (faults.COMPANY,)
    shows = "one rank without a flight recorder; its peers' stop at the collective that it never joined"

    rank: int = severity(1, least=0)
    at_step: int = severity(7, least=0)
    timeout_seconds: float = severity(15.0, above=0)

    def unexpected_ending(self, job: TrainingJob, ending: FaultyRunEnding) -> str | None:
        """This rank must have been killed, and the others must have reported what they waited for."""
        if f"rank {self.rank} was killed by {signal.SIGKILL.name}" not in ending.error:
            return f"rank {self.rank} was to be killed, but: {ending.error}"
        others = [rank for rank in range(job.plan.world_size) if rank != self.rank]
        return _missing_recorders(ending, others)

    def refusal(self, job: TrainingJob) -> str | None:
        if not 0 <= self.rank < job.plan.world_size:
            return f"the job has no rank {self.rank}"
        if not 0 <= self.at_step < job.num_steps:
            return f"of {counted(job.num_steps, 'step')} none is step {self.at_step}"
        return Injection.refusal(self, job)

    def after_backward(self, site: FaultSite, step: int) -> None:
        if site.rank == self.rank and step == self.at_step:
            os.kill(os.getpid(), signal.SIGKILL)


def _missing_recorders(ending: FaultyRunEnding, ranks: Iterable[int]) -> str | None:
    missing = [str(rank) for rank in ranks if RankFile.FLIGHT_RECORDER.path(rank).as_posix() not in ending.left]
    return f"no flight recorder of rank {', '.join(missing)} was left: {ending.error}" if missing else None


class _First:
    """The beginning of a map-style dataset."""

    def __init__(self, dataset: Any, num_items: int) -> None:
        self._dataset = dataset
        self._num_items = num_items

    def __len__(self) -> int:
        return self._num_items

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]
