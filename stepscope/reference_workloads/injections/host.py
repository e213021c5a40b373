"""Faults of the host: slow, bursty or CPU-starved data loading, late launches, syncs, checkpoints, CPU optimizer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections import faults
from stepscope.reference_workloads.job import FaultSite, Injection, TrainingJob, severity

_PERIODS_SEEN = 10
"""Rounds of workers in a run; fewer than twelve waits show no rhythm."""


class _LoaderFault(Injection):
    """A data set that gives its items too slowly, read by so many workers."""

    __slots__ = ()

    cause = Cause.DATA_LOADING
    fix = Cause.DATA_LOADING
    num_workers: int
    """a field of each fault"""

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, loader_workers=self.num_workers))


@dataclass(frozen=True, slots=True)
class SlowLoader(_LoaderFault):
    """Every sequence takes longer to make than a step has time for, and the training process makes it itself."""

    name = "slow_loader"
    reasons = (Reason.STARVED, Reason.NO_WORKERS)
    shows = "the GPU idles at the start of each step while the loop is inside the loader's next()"

    milliseconds_per_item: float = severity(60.0, above=0)
    num_workers: int = severity(0, least=0)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Slow(dataset, self.milliseconds_per_item / 1e3)


@dataclass(frozen=True, slots=True)
class BurstyLoader(_LoaderFault):
    """Workers of which each makes a whole batch, all at once, and too slowly: the loop waits for all, then for none."""

    name = "bursty_loader"
    reasons = (Reason.BURSTY,)
    shows = "every num_workers-th step waits for its batch, the others do not"

    milliseconds_per_item: float = severity(120.0, above=0)
    num_workers: int = severity(2, least=1)

    def control(self, job: TrainingJob) -> TrainingJob:
        return replace(job, num_steps=max(job.num_steps, _PERIODS_SEEN * self.num_workers))

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Slow(dataset, self.milliseconds_per_item / 1e3)


@dataclass(frozen=True, slots=True)
class CpuStarvedLoader(_LoaderFault):
    """Items cost processor time, and the workers of all ranks of a machine share one core."""

    name = "cpu_starved_loader"
    reasons = (Reason.STARVED,)
    needs = (faults.PINNED_CORES,)
    shows = "every step waits for workers that get a fraction of a core; more workers do not help"

    cpu_milliseconds_per_item: float = severity(40.0, above=0)
    num_workers: int = severity(2, least=1)

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        return _Costly(dataset, self.cpu_milliseconds_per_item / 1e3)


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


class _Costly(_Slow):
    """A map-style dataset whose items cost processor time, on the one core that all workers are kept on."""

    def __getitem__(self, index: int) -> Any:
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        return self._dataset[index]


@dataclass(frozen=True, slots=True)
class LaunchBound(Injection):
    """Many narrow layers: a kernel takes less time than its launch."""

    name = "launch_bound"
    cause = Cause.HOST_BOUND
    reasons = (Reason.DISPATCH, Reason.TINY_KERNELS)
    needs = (
        faults.TRANSFORMER,
        faults.GPUS,
        faults.NO_COMPILER,
        faults.EQUAL_STAGES,
    )
    shows = "thousands of kernels of a few microseconds, each launched after the one before had ended"

    hidden_size: int = severity(128, least=32)
    num_layers: int = severity(32, least=1)
    sequence_length: int = severity(64, least=1)

    def change(self, job: TrainingJob) -> TrainingJob:
        num_heads = max(job.plan.tp, self.hidden_size // 32)
        preset = replace(
            job.preset,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=num_heads,
            num_key_value_heads=num_heads,
            sequence_length=self.sequence_length,
            batch_size=job.plan.dp * job.plan.num_micro_batches,
        )
        return replace(job, preset=preset)


@dataclass(frozen=True, slots=True)
class HostSync(Injection):
    """Each layer's output is read value by value in Python, as loops over a device tensor do."""

    name = "host_sync"
    cause = Cause.SYNCHRONIZATION
    reasons = (Reason.READS_VALUE,)
    needs = (faults.GPUS, faults.NO_COMPILER)
    shows = "aten::item with a copy and a stream synchronization hundreds of times a layer"
    fix = Cause.SYNCHRONIZATION

    reads_per_layer: int = severity(400, least=1)

    def prepare(self, site: FaultSite) -> None:
        def read(_module: Any, _inputs: Any, output: Any) -> None:
            values = output.detach().flatten()
            for place in range(self.reads_per_layer):
                values[place % len(values)].item()

        for layer in faults.layers_of(site):
            layer.register_forward_hook(read)


@dataclass(frozen=True, slots=True)
class CheckpointStall(Injection):
    """Training stops while a checkpoint is written."""

    name = "checkpoint_stall"
    cause = Cause.CHECKPOINT
    shows = "the device idles, but for copies to the host, inside `prof.phase: checkpoint`"
    fix = Cause.CHECKPOINT

    every_steps: int = severity(3, least=1)

    def refusal(self, job: TrainingJob) -> str | None:
        # A run that goes on from a checkpoint counts from there, and may come to the next one sooner.
        if job.recipe.resume_from is None and self.every_steps > job.num_steps:
            return f"of {counted(job.num_steps, 'step')} none is followed by a checkpoint every {self.every_steps}"
        return Injection.refusal(self, job)

    def control(self, job: TrainingJob) -> TrainingJob:
        """A GPU's model is cut to a quarter: it is checkpoints that are to be seen, not how long disks can take."""
        plan, preset = job.plan, job.preset
        if job.device_type == "cpu" or plan.stage_layers is not None or preset.image is not None:
            return job
        num_layers = max(plan.num_stages, preset.num_layers // 4 // plan.num_stages * plan.num_stages)
        return replace(job, preset=replace(preset, num_layers=num_layers))

    def change(self, job: TrainingJob) -> TrainingJob:
        recipe = replace(job.recipe, checkpoint_every=self.every_steps, checkpoint_mode="sync")
        return replace(job, recipe=recipe)


@dataclass(frozen=True, slots=True)
class CpuOptimizer(Injection):
    """Parameters and optimizer state live in host memory, and the optimizer steps there."""

    name = "cpu_optimizer"
    cause = Cause.HOST_BOUND
    reasons = (Reason.CPU_OPTIMIZER,)
    needs = (faults.GPUS, faults.SHARDED_MODEL)
    shows = "the device idles inside Optimizer.step, which launches nothing"

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, plan=replace(job.plan, cpu_offload=True))
