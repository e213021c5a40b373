"""Faults of the host, which then launches the GPU's work too late: small kernels, syncs, checkpoints, CPU optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections.injected_job import GPUS, NO_COMPILER, SHARDED_MODEL, TRANSFORMER
from stepscope.reference_workloads.job import Injection, Need, Site, layers_of, severity

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob


@dataclass(frozen=True, slots=True)
class LaunchBound(Injection):
    """Many narrow layers: a kernel takes less time than its launch."""

    name: ClassVar[str] = "launch_bound"
    cause: ClassVar[Cause] = Cause.HOST_BOUND
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.DISPATCH, Reason.TINY_KERNELS)
    needs: ClassVar[tuple[Need, ...]] = (
        TRANSFORMER,
        GPUS,
        NO_COMPILER,
        Need("stages of equal size", lambda job: job.plan.stage_layers is None),
    )
    shows: ClassVar[str] = "thousands of kernels of a few microseconds, each launched after the one before had ended"

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

    name: ClassVar[str] = "host_sync"
    cause: ClassVar[Cause] = Cause.SYNCHRONIZATION
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.READS_VALUE,)
    needs: ClassVar[tuple[Need, ...]] = (GPUS, NO_COMPILER)
    shows: ClassVar[str] = "aten::item with a copy and a stream synchronization hundreds of times a layer"
    fix: ClassVar[Cause | None] = Cause.SYNCHRONIZATION

    reads_per_layer: int = severity(400, least=1)

    def prepare(self, site: Site) -> None:
        def read(_module: Any, _inputs: Any, output: Any) -> None:
            values = output.detach().flatten()
            for place in range(self.reads_per_layer):
                values[place % len(values)].item()

        for layer in layers_of(site):
            layer.register_forward_hook(read)


@dataclass(frozen=True, slots=True)
class CheckpointStall(Injection):
    """Training stops while a checkpoint is written."""

    name: ClassVar[str] = "checkpoint_stall"
    cause: ClassVar[Cause] = Cause.CHECKPOINT
    shows: ClassVar[str] = "the device idles, but for copies to the host, inside `prof.phase: checkpoint`"
    fix: ClassVar[Cause | None] = Cause.CHECKPOINT

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

    name: ClassVar[str] = "cpu_optimizer"
    cause: ClassVar[Cause] = Cause.HOST_BOUND
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.CPU_OPTIMIZER,)
    needs: ClassVar[tuple[Need, ...]] = (GPUS, SHARDED_MODEL)
    shows: ClassVar[str] = "the device idles inside Optimizer.step, which launches nothing"

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, plan=replace(job.plan, cpu_offload=True))
