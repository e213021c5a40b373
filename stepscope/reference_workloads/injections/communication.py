"""Faults of communication: small buckets, no overlap, no prefetch, the wrong transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections import faults
from stepscope.reference_workloads.job import FaultSite, Injection, TrainingJob, severity

_WIDER = 2
"""Times the hidden size, with as many parameters in a quarter of the layers."""

_TOKENS = 2048
"""Of a rank's micro-batch. Compute grows with them, what data-parallel ranks exchange does not; with fewer, a backward
pass on GPUs with NVLink is too short to hide its reductions even where they overlap."""


class _ExchangeFault(Injection):
    """A fault of what data-parallel ranks exchange, which is large beside the control's compute."""

    __slots__ = ()

    cause = Cause.COMMUNICATION

    def control(self, job: TrainingJob) -> TrainingJob:
        return _communicating(job)


@dataclass(frozen=True, slots=True)
class TinyBuckets(_ExchangeFault):
    """Gradients are reduced in messages so small that starting them takes longer than their bytes."""

    name = "tiny_buckets"
    reasons = (Reason.SMALL_MESSAGES,)
    also_right = (Cause.HOST_BOUND,)  # launching a message takes the host as long
    needs = (
        faults.TRANSFORMER,
        faults.GPUS,
        faults.DATA_PARALLEL,
        faults.WHOLE_GRADIENTS,
    )
    shows = "thousands of all-reduces a step, each a few times its latency at most"

    message_mb: float = severity(0.5, above=0)

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, bucket_mb=self.message_mb))

    def prepare(self, site: FaultSite) -> None:
        """A bucket holds at least one parameter, and those of wide layers are large: cut them too."""
        from torch.nn.parallel import DistributedDataParallel

        for module in site.modules:
            if isinstance(module, DistributedDataParallel):
                # Not the function itself: torch checks annotations, and ours are strings.
                pieces = _Pieces(module, int(self.message_mb * 2**20))
                module.register_comm_hook(pieces, lambda state, bucket: _reduced_in_pieces(state, bucket))


@dataclass(frozen=True, slots=True)
class NoOverlap(_ExchangeFault):
    """Gradients are reduced while nothing computes: after the backward pass, or block by block as it waits for them."""

    name = "no_overlap"
    reasons = (Reason.NO_OVERLAP,)
    needs = (
        faults.TRANSFORMER,
        faults.GPUS,
        faults.DATA_PARALLEL,
    )
    shows = (
        "under DDP all-reduces one after another after the backward pass, under fully_shard a backward pass that waits"
        " for each block's reduce-scatter: beside no kernel"
    )
    fix = Cause.COMMUNICATION

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, overlaps_reduction=False))


@dataclass(frozen=True, slots=True)
class NoPrefetch(_ExchangeFault):
    """Each layer's weights are gathered only when the layer before has ended."""

    name = "no_prefetch"
    reasons = (Reason.NO_PREFETCH,)
    needs = (
        faults.TRANSFORMER,
        faults.GPUS,
        faults.DATA_PARALLEL,
        faults.SHARDED_WEIGHTS,
    )
    shows = "an all-gather between every two layers, beside no kernel"
    fix = Cause.COMMUNICATION

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, prefetches=False))


@dataclass(frozen=True, slots=True)
class WrongTransport(_ExchangeFault):
    """NCCL may not use peer-to-peer access, so that everything goes over host memory."""

    name = "wrong_transport"
    reasons = (Reason.WRONG_TRANSPORT,)
    needs = (faults.TRANSFORMER, faults.GPUS, faults.PEERS)
    shows = "large messages at a fraction of NVLink's bandwidth; NCCL's log says `via SHM`"
    fix = Cause.COMMUNICATION

    def control(self, job: TrainingJob) -> TrainingJob:
        return _communicating(job) if job.plan.dp > 1 else job

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return {"NCCL_P2P_DISABLE": "1"}


def _communicating(job: TrainingJob) -> TrainingJob:
    """As many parameters in fewer, wider layers, and one sequence a rank and micro-batch.

    Compute shrinks with the tokens, what data-parallel ranks exchange stays; fewer layers keep the host ahead.
    """
    plan, preset = job.plan, job.preset
    num_layers = max(plan.num_stages, preset.num_layers // _WIDER**2)
    wide = replace(
        preset,
        hidden_size=preset.hidden_size * _WIDER,
        num_heads=preset.num_heads * _WIDER,
        num_key_value_heads=preset.num_key_value_heads * _WIDER,
        num_layers=num_layers - num_layers % plan.num_stages,
        sequence_length=min(preset.sequence_length, _TOKENS),
        batch_size=plan.dp * plan.num_micro_batches,
    )
    return replace(job, preset=wide, plan=replace(plan, stage_layers=None))


class _Pieces:
    """Whose gradients go in pieces of how many bytes."""

    def __init__(self, module: Any, piece_bytes: int) -> None:
        self.group = module.process_group
        self.num_ranks = self.group.size()
        self.piece_bytes = piece_bytes


def _reduced_in_pieces(state: _Pieces, bucket: Any) -> Any:
    """Sums a bucket over the ranks piece by piece; torch hands the bucket's mean to the parameters."""
    gradients = bucket.buffer().div_(state.num_ranks)
    pieces = gradients.split(max(1, state.piece_bytes // gradients.element_size()))
    futures = [state.group.allreduce([piece]).get_future() for piece in pieces]
    return _of_all(futures, on_gpu=gradients.is_cuda).then(lambda _: gradients)


def _of_all(futures: list[Any], *, on_gpu: bool) -> Any:
    """The future after which every piece is whole.

    gloo runs a group's collectives on several threads, so the last to start may end first: all are waited for. NCCL
    runs them on one stream, so the last one ends last, and its future alone has the device's event: `collect_all` makes
    one without devices, which DDP takes for done as soon as all are queued, while gradients are still being reduced.
    """
    import torch

    return futures[-1] if on_gpu else torch.futures.collect_all(futures)
