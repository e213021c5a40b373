"""Faults of the pipeline: too few micro-batches, uneven stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections.injected_job import PIPELINE, TIMED_COMPUTE
from stepscope.reference_workloads.job import Injection, Need, severity

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob

_FED_WELL = 4
"""Micro-batches a stage: the bubble of P stages is then about a fifth, and shrinks slowly with more."""


@dataclass(frozen=True, slots=True)
class FewMicroBatches(Injection):
    """Half as many micro-batches as the control has, so that filling and draining the pipeline weighs twice."""

    name: ClassVar[str] = "few_micro_batches"
    cause: ClassVar[Cause] = Cause.PIPELINE_BUBBLE
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.FEW_MICRO_BATCHES,)
    needs: ClassVar[tuple[Need, ...]] = (PIPELINE, TIMED_COMPUTE)
    shows: ClassVar[str] = "each stage idles for P-1 of M+P-1 slots: a third with two stages and two micro-batches"
    fix: ClassVar[Cause | None] = Cause.PIPELINE_BUBBLE

    def control(self, job: TrainingJob) -> TrainingJob:
        return replace(job, plan=replace(job.plan, micro_batches=2 * job.plan.pp))

    def change(self, job: TrainingJob) -> TrainingJob:
        """Layers take twice as long for twice the batch; simulated ones are made to."""
        plan = replace(job.plan, micro_batches=job.plan.pp)
        return replace(job, plan=plan, simulate_ms=2 * job.simulate_ms)


@dataclass(frozen=True, slots=True)
class UnevenStages(Injection):
    """The last stage takes over layers of the first."""

    name: ClassVar[str] = "uneven_stages"
    cause: ClassVar[Cause] = Cause.IMBALANCE
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.UNEVEN_STAGES,)
    needs: ClassVar[tuple[Need, ...]] = (
        PIPELINE,
        TIMED_COMPUTE,
        Need("stages of equal size", lambda job: job.plan.stage_layers is None),
        Need("two layers a stage or more", lambda job: job.preset.num_layers >= 2 * job.plan.num_stages),
    )
    shows: ClassVar[str] = "the last stage computes all the time, the others wait for it in every slot"
    fix: ClassVar[Cause | None] = Cause.IMBALANCE

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
