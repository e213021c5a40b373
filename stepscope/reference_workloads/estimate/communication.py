"""Communication of each rank in a step, by dimension of the mesh, and its time at the links' full rate."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.hardware import gpu_catalogue
from stepscope.reference_workloads.estimate import flops as model_flops
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe

_DEFAULT_BUCKET_MB = 25.0
"""DistributedDataParallel's `bucket_cap_mb`."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives or sends of one kind in the estimated step of one rank.

    Attributes:
        dimension: tp, pp or dp.
        kind: all_reduce, all_gather, reduce_scatter, broadcast or p2p.
        num_bytes: of each one's whole result, as nccl-tests counts.
        sent_bytes: what the rank sends for all of them, by ring.
        seconds: all of them at the expected rate of `link`, one after another.
    """

    dimension: str
    kind: str
    what: str
    count: int
    num_bytes: float
    sent_bytes: float
    seconds: float
    link: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links between GPUs that an estimate assumes.

    Attributes:
        gpus_per_node: GPUs that scale-up links join; groups that reach further use the network.
        network_bytes_per_second: of each GPU in one direction.
    """

    gpu: gpu_catalogue.GpuModel
    gpus_per_node: int
    network_bytes_per_second: float

    def link(self, dimension: str, plan: ParallelPlan) -> gpu_catalogue.Link:
        """The link of a dimension; ranks count tp fastest, then dp, then pp."""
        reach = {"tp": plan.tp, "dp": plan.tp * plan.dp, "pp": plan.world_size}[dimension]
        size = {"tp": plan.tp, "dp": plan.dp, "pp": plan.pp}[dimension]
        if reach > self.gpus_per_node:
            return gpu_catalogue.network_link(self.network_bytes_per_second)
        return gpu_catalogue.scale_up_link(self.gpu, self.gpu.name, size)


def exchanges(
    plan: ParallelPlan, preset: Preset, recipe: Recipe, fabric: Fabric, *, pp_rank: int
) -> tuple[Exchange, ...]:
    """Estimate all collectives and sends of one pipeline rank's ranks in a step."""
    layers = sum(len(plan.layers_of(stage, preset.num_layers)) for stage in plan.stages_of(pp_rank))
    size = _hidden_bytes(plan, preset)
    forward, backward = micro_batch_all_reduces(plan, recipe, layers)
    micro_batches = plan.num_micro_batches
    found = [
        ("tp", "all_reduce", "outputs of attention and feed-forward", forward * micro_batches, size),
        ("tp", "all_reduce", "gradients of their inputs", backward * micro_batches, size),
        *_pipeline(plan, preset, pp_rank),
        *_data_parallel(plan, preset, recipe, pp_rank),
    ]
    return tuple(_exchange(plan, fabric, *each) for each in found if each[3])


_Described = tuple[str, str, str, int, float]
"""dimension, kind, what, count, bytes of each"""


def _exchange(
    plan: ParallelPlan, fabric: Fabric, dimension: str, kind: str, what: str, count: int, size: float
) -> Exchange:
    ranks = {"tp": plan.tp, "dp": plan.dp, "pp": plan.pp}[dimension]
    link = fabric.link(dimension, plan)
    sent = size * gpu_catalogue.bus_factor(kind, ranks)
    return Exchange(
        dimension,
        kind,
        what,
        count,
        size,
        count * sent,
        count * gpu_catalogue.expected_seconds(link, kind, ranks, round(size)),
        link.kind.value,
    )


def _tokens(plan: ParallelPlan, preset: Preset) -> float:
    """Of one micro-batch on one data-parallel rank."""
    return preset.batch_size / plan.dp / plan.num_micro_batches * preset.sequence_length


def micro_batch_all_reduces(plan: ParallelPlan, recipe: Recipe, num_layers: int) -> tuple[int, int]:
    """Estimate one micro-batch's tensor-parallel all-reduces through some layers, forward and backward.

    Of a layer that is computed again the second one, of its last product, is not repeated.
    """
    if plan.tp == 1:
        return 0, 0
    again = num_layers if recipe.activation_checkpointing == "full" else 0
    return 2 * num_layers, 2 * num_layers + again


def _hidden_bytes(plan: ParallelPlan, preset: Preset) -> float:
    """One micro-batch's outputs of a block's half."""
    return model_flops.element_bytes(preset) * _tokens(plan, preset) * preset.hidden_size


def tensor_parallel_seconds(plan: ParallelPlan, preset: Preset, fabric: Fabric) -> float:
    """Estimate the time of one tensor-parallel all-reduce of a micro-batch."""
    if plan.tp == 1:
        return 0.0
    return gpu_catalogue.expected_seconds(
        fabric.link("tp", plan), "all_reduce", plan.tp, round(_hidden_bytes(plan, preset))
    )


def stage_bytes(plan: ParallelPlan, preset: Preset) -> float:
    """Estimate the bytes that one micro-batch sends from one pipeline stage to the next."""
    element = model_flops.element_bytes(preset) if model_flops.is_fully_sharded(plan) else model_flops.FLOAT32_BYTES
    return element * _tokens(plan, preset) * preset.hidden_size


def _pipeline(plan: ParallelPlan, preset: Preset, pp_rank: int) -> list[_Described]:
    if plan.pp == 1:
        return []
    stages = plan.stages_of(pp_rank)
    downwards = sum(stage < plan.num_stages - 1 for stage in stages)
    upwards = sum(stage > 0 for stage in stages)
    size = stage_bytes(plan, preset)
    return [
        ("pp", "p2p", "activations to the next stage", downwards * plan.num_micro_batches, size),
        ("pp", "p2p", "gradients to the stage before", upwards * plan.num_micro_batches, size),
    ]


def _data_parallel(plan: ParallelPlan, preset: Preset, recipe: Recipe, pp_rank: int) -> list[_Described]:
    if plan.dp == 1:
        return []
    parts = [part for stage in plan.stages_of(pp_rank) for part in model_flops.stage_parts(plan, preset, stage)]
    num_parameters = sum(part.num_parameters for part in parts)
    whole = model_flops.FLOAT32_BYTES * num_parameters
    if plan.replicate:
        groups = _num_groups(plan, parts, pp_rank)
        return [("dp", "all_reduce", "gradients, by block", groups, whole / groups)]
    if plan.zero in {0, 1}:
        num_buckets = max(1, round(whole / bucket_bytes(recipe)))
        found = [("dp", "all_reduce", "gradients, by bucket", num_buckets, whole / num_buckets)]
        if plan.zero == 1:
            share = whole / plan.dp
            found.append(("dp", "broadcast", "updated parameters, by their owner", plan.dp, share))
        return found
    groups = _num_groups(plan, parts, pp_rank)
    gathers = _gathers(plan)
    low = model_flops.element_bytes(preset) * num_parameters
    return [
        ("dp", "all_gather", "parameters, by block", gathers * groups, low / groups),
        ("dp", "reduce_scatter", "gradients, by block", groups, whole / groups),
    ]


def bucket_bytes(recipe: Recipe) -> float:
    """Estimate the bytes of gradients that are reduced together; by default those of DDP's buckets."""
    return (_DEFAULT_BUCKET_MB if recipe.bucket_mb is None else recipe.bucket_mb) * 2**20


def _num_groups(plan: ParallelPlan, parts: list[model_flops.Part], pp_rank: int) -> int:
    """Each block is one, and the rest of each stage."""
    return sum(part.kind is model_flops.PartKind.BLOCK for part in parts) + len(plan.stages_of(pp_rank))


def _gathers(plan: ParallelPlan) -> int:
    """How often a step makes the parameters whole.

    A pipeline under ZeRO 2 keeps them for the whole step; else each micro-batch gathers again, and under ZeRO 3 each
    backward pass too.
    """
    if plan.zero == 3:
        return 2 * plan.num_micro_batches
    return 1 if plan.pp > 1 else plan.num_micro_batches
