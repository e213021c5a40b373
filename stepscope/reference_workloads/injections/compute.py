"""Faults of compute: memory-bound kernels, recomputation, a slow rank, too few micro-batches, uneven stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.estimate.flops import FLOPS_PER_PARAMETER_AND_TOKEN, block_matrices
from stepscope.reference_workloads.injections import faults
from stepscope.reference_workloads.job import FaultSite, Injection, Need, TrainingJob, severity


@dataclass(frozen=True, slots=True)
class MemoryBound(Injection):
    """Each layer's widest tensor goes through memory again and again, as unfused element-wise chains do."""

    name = "memory_bound"
    cause = Cause.MEMORY_BOUND
    reasons = (Reason.UNFUSED,)
    needs = (
        faults.TRANSFORMER,
        faults.GPUS,
        faults.NO_COMPILER,
    )
    shows = "element-wise kernels near the memory's bandwidth, in long rows, hold most of the time"

    passes_per_layer: int = severity(64, least=1)

    def prepare(self, site: FaultSite) -> None:
        def go_through_memory(_module: Any, _inputs: Any, output: Any) -> Any:
            for _ in range(self.passes_per_layer):
                output = output * 1.0  # the same values; the backward pass does it again
            return output

        for layer in faults.layers_of(site):
            faults.widest_matrix(layer).register_forward_hook(go_through_memory)


@dataclass(frozen=True, slots=True)
class Recompute(Injection):
    """Every block runs its forward pass twice, though there is memory enough to keep its activations."""

    name = "recompute"
    cause = Cause.COMPUTE_BOUND
    reasons = (Reason.RECOMPUTE,)
    needs = (faults.TRANSFORMER, faults.GPUS)
    shows = "forward operators inside backward; HFU well above MFU"

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, activation_checkpointing="full"))


_MATRIX_SIZE = 8192
"""Large enough that a multiplication runs at the device's best rate."""

_MATRIX_FLOPS = 2 * _MATRIX_SIZE**3


@dataclass(frozen=True, slots=True)
class Straggler(Injection):
    """One rank multiplies matrices of its own each step; simulated layers sleep longer there, as on a slow clock."""

    name = "straggler"
    cause = Cause.STRAGGLER
    reasons = (Reason.EXTRA_WORK,)
    needs = (faults.PEERS, faults.TIMED_COMPUTE)
    shows = "one rank computes longer in every step, and its peers wait for it in their collectives"
    fix = Cause.STRAGGLER

    rank: int = severity(1, least=0)
    extra_ratio: float = severity(1.0, above=0)
    """extra work, as a part of what the rank's own layers do in a step"""

    def refusal(self, job: TrainingJob) -> str | None:
        if not 0 <= self.rank < job.plan.world_size:
            return f"the job has no rank {self.rank}"
        return Injection.refusal(self, job)

    def reasons_on(self, device_type: str) -> tuple[Reason, ...]:
        """A trace without kernels does not tell more work from slower work."""
        return self.reasons if device_type == "cuda" else ()

    def prepare(self, site: FaultSite) -> None:
        if site.rank != self.rank:
            return
        if site.device.type == "cpu":
            for layer in faults.layers_of(site):
                layer.simulate_milliseconds *= 1.0 + self.extra_ratio  # type: ignore[operator,assignment]
        else:
            import torch

            matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, dtype=torch.bfloat16, device=site.device)
            num_products = math.ceil(
                self.extra_ratio * rank_flops(site.job, site.mesh.get_local_rank("pp")) / _MATRIX_FLOPS
            )
            site.kept[self.name] = matrix, torch.empty_like(matrix), num_products

    def before_step(self, site: FaultSite, step: int) -> None:
        if site.rank != self.rank or site.device.type == "cpu":
            return
        import torch

        matrix, product, num_products = site.kept[self.name]
        for _ in range(num_products):
            torch.mm(matrix, matrix, out=product)


def rank_flops(job: TrainingJob, pp_rank: int) -> float:
    """FLOPs of a step in one rank's layers, against which an injected straggler's work is measured.

    Not from the modules: DDP takes tensor-parallel parameters out of them in its first forward pass.
    """
    plan, preset = job.plan, job.preset
    num_items = preset.batch_size // plan.dp
    if preset.image is not None:
        from stepscope.reference_workloads.models.resnet import training_flops

        return num_items * training_flops(preset)
    num_layers = sum(len(plan.layers_of(stage, preset.num_layers)) for stage in plan.stages_of(pp_rank))
    weights = num_layers * block_matrices(preset) / plan.tp
    return FLOPS_PER_PARAMETER_AND_TOKEN * weights * num_items * preset.sequence_length


_FED_WELL = 4
"""Micro-batches a stage: the bubble of P stages is then about a fifth, and shrinks slowly with more."""


@dataclass(frozen=True, slots=True)
class FewMicroBatches(Injection):
    """Half as many micro-batches as the control has, so that filling and draining the pipeline weighs twice."""

    name = "few_micro_batches"
    cause = Cause.PIPELINE_BUBBLE
    reasons = (Reason.FEW_MICRO_BATCHES,)
    needs = (faults.PIPELINE, faults.TIMED_COMPUTE)
    shows = "each stage idles for P-1 of M+P-1 slots: a third with two stages and two micro-batches"
    fix = Cause.PIPELINE_BUBBLE

    def control(self, job: TrainingJob) -> TrainingJob:
        return replace(job, plan=replace(job.plan, micro_batches=2 * job.plan.pp))

    def change(self, job: TrainingJob) -> TrainingJob:
        """Layers take twice as long for twice the batch; simulated ones are made to."""
        plan = replace(job.plan, micro_batches=job.plan.pp)
        return replace(job, plan=plan, simulate_ms=2 * job.simulate_ms)


@dataclass(frozen=True, slots=True)
class UnevenStages(Injection):
    """The last stage takes over layers of the first."""

    name = "uneven_stages"
    cause = Cause.IMBALANCE
    reasons = (Reason.UNEVEN_STAGES,)
    needs = (
        faults.PIPELINE,
        faults.TIMED_COMPUTE,
        faults.EQUAL_STAGES,
        Need("two layers a stage or more", lambda job: job.preset.num_layers >= 2 * job.plan.num_stages),
    )
    shows = "the last stage computes all the time, the others wait for it in every slot"
    fix = Cause.IMBALANCE

    moved_ratio: float = severity(0.5, above=0, most=1)
    """part of the first stage's layers that the last one takes over"""

    def control(self, job: TrainingJob) -> TrainingJob:
        """With few micro-batches the bubble would be larger than what the uneven cut costs."""
        per_rank = job.preset.batch_size // job.plan.dp
        wanted = max(job.plan.num_micro_batches, _FED_WELL * job.plan.pp)
        return replace(job, plan=replace(job.plan, micro_batches=min(wanted, per_rank)))

    def change(self, job: TrainingJob) -> TrainingJob:
        num_stages = job.plan.num_stages
        layers = [job.preset.num_layers // num_stages] * num_stages
        moved = min(layers[0] - 1, max(1, round(self.moved_ratio * layers[0])))
        layers[0] -= moved
        layers[-1] += moved
        return replace(job, plan=replace(job.plan, stage_layers=tuple(layers)))
