"""Estimate of a workload: memory, FLOPs, communication and bubble joined into a step time, and the cost of a training.

Cost is by 6ND: six FLOPs a parameter and token (Kaplan et al. 2020, arXiv:2001.08361). That leaves attention out, which
takes its time all the same: hours are those of the tokens. 30 billion parameters and 2 trillion tokens are 360 ZFLOP:
200,000 GPU-hours at 500 TFLOP/s of these FLOPs, 2,778 tokens a second and GPU.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.hardware.gpu_catalogue import GPU_MODELS, GpuModel, expected_seconds, find_gpu
from stepscope.reference_workloads.estimate import communication, pipeline
from stepscope.reference_workloads.estimate import flops as model_flops
from stepscope.reference_workloads.estimate.memory import RankMemory, memory_by_rank, outside_allocator_bytes
from stepscope.reference_workloads.launch import WorkloadResult
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe

DEFAULT_EFFICIENCY = 0.5
"""Share of the dense peak while a GPU computes: 0.47 to 0.54 measured for this model at hidden sizes 2048 to 4096."""
DEFAULT_GPUS_PER_NODE = 8
DEFAULT_NETWORK_BYTES_PER_SECOND = 50e9
"""400 Gb/s for each GPU, as HGX H100 nodes have."""
_ADAM_BYTES_PER_PARAMETER = 28
"""Parameter, gradient and two states read; parameter and states written; float32."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of an estimate: the GPU, its efficiency, and the links.

    Attributes:
        efficiency: share of its dense peak that it reaches while it computes.
        gpus_per_node: GPUs joined by scale-up links.
        network_bytes_per_second: of each GPU in one direction.
    """

    gpu: GpuModel
    efficiency: float = DEFAULT_EFFICIENCY
    gpus_per_node: int = DEFAULT_GPUS_PER_NODE
    network_bytes_per_second: float = DEFAULT_NETWORK_BYTES_PER_SECOND

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"the share of the peak is above 0 and at most 1, not {self.efficiency}", where="--mfu")
        if self.gpus_per_node < 1:
            raise UsageError(f"a node has at least one GPU, not {self.gpus_per_node}", where="--gpus-per-node")
        if not 0 < self.network_bytes_per_second < float("inf"):
            rate = self.network_bytes_per_second / 1e9
            raise UsageError(f"a network's rate is above 0 GB/s, not {rate:g}", where="--network-gbs")


@dataclass(frozen=True, slots=True)
class EstimatedStepTime:
    """Estimated parts of a step in seconds, of the busiest pipeline rank; they add up to `total`.

    Attributes:
        compute: matrix products and attention.
        tensor_parallel: all-reduces, which nothing hides.
        bubble: waiting for other stages, and the transfers between them.
        data_parallel: what of the exchange the computing does not hide.
        optimizer: as fast as memory lets it.
    """

    compute: float
    tensor_parallel: float
    bubble: float
    data_parallel: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor_parallel + self.bubble + self.data_parallel + self.optimizer


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of a workload: memory, FLOPs, communication, bubble and step time.

    Attributes:
        mfu: model FLOPs / (GPUs x dense peak x step).
        exchanges: of one rank of each pipeline rank.
    """

    num_parameters: int
    num_gpus: int
    tokens_per_step: int
    memory: tuple[RankMemory, ...]
    outside_allocator_bytes: int
    flops: model_flops.StepFlops
    exchanges: tuple[tuple[communication.Exchange, ...], ...]
    period: pipeline.SchedulePeriod
    step: EstimatedStepTime
    mfu: float
    not_modelled: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Of the whole job."""
        return self.tokens_per_step / self.step.total


def known_gpu(name: str) -> GpuModel:
    """The GPU model that an estimate is for, by name.

    Raises:
        UsageError: there is none.
    """
    gpu = find_gpu(name)
    if gpu is None:
        raise UsageError(
            f"the catalogue has no GPU {name!r}", what_next=f"choose one of {', '.join(m.name for m in GPU_MODELS)}"
        )
    return gpu


def estimate(plan: ParallelPlan, preset: Preset, recipe: Recipe, assumptions: Assumptions) -> Estimate:
    """Estimate a workload's memory, FLOPs, communication, bubble and step time.

    Raises:
        UsageError: model, plan and recipe do not fit, or the estimate does not know the layout or the GPU's peak.
    """
    plan.check_preset(preset)
    recipe.check(plan, preset, is_simulated=False)
    pipeline.refuse_not_estimated(plan, preset)
    peak = _peak(assumptions.gpu, preset)
    fabric = communication.Fabric(assumptions.gpu, assumptions.gpus_per_node, assumptions.network_bytes_per_second)
    exchanged = tuple(communication.exchanges(plan, preset, recipe, fabric, pp_rank=rank) for rank in range(plan.pp))
    flops = model_flops.step_flops(preset, recipe)
    stages = _stage_seconds(plan, preset, recipe, fabric, peak * assumptions.efficiency)
    period = pipeline.replay_schedule(plan, stages, transfer_seconds=_transfer_seconds(plan, preset, fabric))
    step = _step_time(plan, preset, recipe, stages=stages, period=period, exchanged=exchanged, gpu=assumptions.gpu)
    notes = []
    if recipe.compiles:
        notes.append("under torch.compile memory was checked for one GPU without recomputing only")
    if preset.is_llama:
        notes.append("the Llama-like model's memory was checked on a CPU only")
    return Estimate(
        num_parameters=model_flops.num_parameters(preset),
        num_gpus=plan.world_size,
        tokens_per_step=preset.batch_size * preset.sequence_length,
        memory=memory_by_rank(plan, preset, recipe),
        outside_allocator_bytes=outside_allocator_bytes(plan),
        flops=flops,
        exchanges=exchanged,
        period=period,
        step=step,
        mfu=flops.model / (plan.world_size * peak * step.total),
        not_modelled=tuple(notes),
    )


def _peak(gpu: GpuModel, preset: Preset) -> float:
    peak = gpu.peak_flops(preset.dtype)
    if peak is None:
        raise UsageError(f"the catalogue has no {preset.dtype} peak of {gpu.name}", what_next="choose another --gpu")
    return peak


def _stage_seconds(
    plan: ParallelPlan, preset: Preset, recipe: Recipe, fabric: communication.Fabric, rate: float
) -> dict[int, pipeline.StageSeconds]:
    """Each stage's computing and tensor-parallel exchange of one micro-batch."""
    all_reduce = communication.tensor_parallel_seconds(plan, preset, fabric)
    stages = {}
    for stage in range(plan.num_stages):
        flops = model_flops.stage_flops(plan, preset, recipe, stage)
        forward, backward = communication.micro_batch_all_reduces(
            plan, recipe, len(plan.layers_of(stage, preset.num_layers))
        )
        stages[stage] = pipeline.StageSeconds(
            flops.forward / rate + forward * all_reduce, flops.executed_backward / rate + backward * all_reduce
        )
    return stages


def _transfer_seconds(plan: ParallelPlan, preset: Preset, fabric: communication.Fabric) -> float:
    if plan.pp == 1:
        return 0.0
    return expected_seconds(fabric.link("pp", plan), "p2p", 2, round(communication.stage_bytes(plan, preset)))


def _step_time(
    plan: ParallelPlan,
    preset: Preset,
    recipe: Recipe,
    *,
    stages: dict[int, pipeline.StageSeconds],
    period: pipeline.SchedulePeriod,
    exchanged: tuple[tuple[communication.Exchange, ...], ...],
    gpu: GpuModel,
) -> EstimatedStepTime:
    """The parts of the step of the rank that computes longest."""
    rank = max(range(plan.pp), key=lambda each: period.busy_seconds[each])
    busy = period.busy_seconds[rank]
    tensor_parallel = sum(exchange.seconds for exchange in exchanged[rank] if exchange.dimension == "tp")
    last_backward = sum(stages[stage].backward for stage in plan.stages_of(rank))
    parameters = sum(
        part.num_parameters for stage in plan.stages_of(rank) for part in model_flops.stage_parts(plan, preset, stage)
    )
    shards = plan.dp if plan.zero else 1
    return EstimatedStepTime(
        compute=busy - tensor_parallel,
        tensor_parallel=tensor_parallel,
        bubble=period.seconds - busy,
        data_parallel=_exposed(exchanged[rank], recipe, busy=busy, last_backward=last_backward),
        optimizer=_ADAM_BYTES_PER_PARAMETER * parameters / shards / gpu.memory_bytes_per_second,
    )


def _exposed(
    exchanged: tuple[communication.Exchange, ...], recipe: Recipe, *, busy: float, last_backward: float
) -> float:
    """What computing does not hide: reductions run beside the last backward pass, gathers beside everything else.

    The last reduction and the first gather have nothing to hide behind.
    """
    seconds = 0.0
    for exchange in exchanged:
        if exchange.dimension != "dp":
            continue
        hides_behind = {"all_gather": busy - last_backward, "broadcast": 0.0}.get(exchange.kind, last_backward)
        if exchange.kind == "all_gather" and not recipe.prefetches:
            hides_behind = 0.0
        if exchange.kind in {"all_reduce", "reduce_scatter"} and not recipe.overlaps_reduction:
            hides_behind = 0.0
        seconds += max(exchange.seconds / exchange.count, exchange.seconds - hides_behind)
    return seconds


_SECONDS_PER_HOUR = 3600
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Estimated cost of a whole training.

    Attributes:
        flops: by 6ND.
        gpu_hours: at the pace that was given.
        days: on the job's GPUs.
        money: in the price's currency; None without a price.
    """

    num_tokens: float
    flops: float
    gpu_hours: float
    days: float
    money: float | None


def training_cost(
    *,
    num_parameters: float,
    num_tokens: float,
    tokens_per_second: float,
    num_gpus: int = 1,
    price_per_gpu_hour: float | None = None,
) -> TrainingCost:
    """Estimate the cost of a training at a pace that the whole job keeps up.

    Raises:
        UsageError: the price is below nothing or no number, or the cost is beyond all numbers.
    """
    if price_per_gpu_hour is not None and not 0 <= price_per_gpu_hour < math.inf:
        raise UsageError(f"a GPU-hour costs nothing or more, not {price_per_gpu_hour}", where="--price-per-gpu-hour")
    flops = model_flops.FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters * num_tokens
    gpu_hours = num_gpus * num_tokens / tokens_per_second / _SECONDS_PER_HOUR
    money = None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour
    if not all(map(math.isfinite, (flops, gpu_hours, money or 0.0))):
        raise UsageError("the cost of so many tokens is not a finite number", where="--tokens")
    return TrainingCost(num_tokens, flops, gpu_hours, gpu_hours / num_gpus / 24, money)


def parse_num_tokens(text: str, *, option: str = "") -> float:
    """Estimate of a workload: parse the number of tokens to estimate the cost for: 2T, 1.5B, 300e9.

    Args:
        option: where it was given, for errors.

    Raises:
        UsageError: it is none, or not above zero.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)([KMBGT]?)", text.strip().upper())
    amount = float(match[1]) * _SUFFIXES[match[2]] if match else 0.0
    if not 0 < amount < math.inf:
        raise UsageError(
            f"{text!r} is not a number above 0", where=option, what_next="give an amount like 2T, 1.5B or 300e9"
        )
    return amount


@dataclass(frozen=True, slots=True)
class EstimateComparison:
    """One quantity, estimated and measured; `unit` is bytes, flops or ms."""

    what: str
    unit: str
    planned: float
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Planned / measured; None where nothing was measured."""
        return self.planned / self.measured if self.measured else None


def compare_with_run(
    estimate: Estimate, result: WorkloadResult, *, flops_per_rank: float | None = None
) -> tuple[EstimateComparison, ...]:
    """Compare an estimate with a run: peak memory of each rank, step time, FLOPs of a rank.

    Args:
        flops_per_rank: as the analysis of the captured steps counts them from the operators' shapes; None without.
    """
    plan = result.job.plan
    ranks_per_stage = plan.dp * plan.tp
    rows = [
        EstimateComparison(
            f"peak memory of rank {rank}",
            "bytes",
            estimate.memory[rank // ranks_per_stage].peak_bytes,
            outcome.peak_allocated_bytes,
        )
        for rank, outcome in enumerate(result.outcomes)
    ]
    rows.append(EstimateComparison("step", "ms", estimate.step.total * 1e3, result.step_seconds * 1e3))
    planned = estimate.flops.model / plan.world_size
    rows.append(EstimateComparison("model FLOPs of a rank and step", "flops", planned, flops_per_rank))
    return tuple(rows)


PLAN_SCHEMA = "stepscope.workload-plan/1"


def plan_document(
    workload: str,
    plan: ParallelPlan,
    preset: Preset,
    recipe: Recipe,
    assumptions: Assumptions,
    estimate: Estimate,
    cost: TrainingCost | None,
) -> dict[str, Any]:
    """An estimate as the JSON document of `workload plan`, in base units; times of a step in milliseconds."""
    step = estimate.step
    not_modelled = [{"code": "not_modelled", "message": f"not modelled: {what}"} for what in estimate.not_modelled]
    return {
        "schema": PLAN_SCHEMA,
        "workload": workload,
        "preset": preset.name,
        "plan": asdict(plan) | {"world_size": plan.world_size},
        "recipe": asdict(recipe),
        "assumed": {
            "gpu": assumptions.gpu.name,
            "source": assumptions.gpu.source,
            "peak_tflops": (assumptions.gpu.peak_flops(preset.dtype) or 0.0) / 1e12,
            "dtype": preset.dtype,
            "efficiency": assumptions.efficiency,
            "gpus_per_node": assumptions.gpus_per_node,
            "network_gbs": assumptions.network_bytes_per_second / 1e9,
        },
        "num_parameters": estimate.num_parameters,
        "tokens_per_step": estimate.tokens_per_step,
        "memory": [
            {
                "pp_rank": rank.pp_rank,
                "peak_bytes": rank.peak_bytes,
                "at_peak": {category.value: size for category, size in rank.at_peak.items()},
                "moment": rank.moment,
                "micro_batches_in_flight": rank.micro_batches_in_flight,
            }
            for rank in estimate.memory
        ],
        "outside_allocator_bytes": estimate.outside_allocator_bytes,
        "flops": {
            "model": estimate.flops.model,
            "executed": estimate.flops.executed,
            "model_per_rank": estimate.flops.model / plan.world_size,
        },
        "communication": [
            {"pp_rank": rank} | asdict(exchange)
            for rank, exchanged in enumerate(estimate.exchanges)
            for exchange in exchanged
        ],
        "pipeline": None if plan.pp == 1 else {"bubble": estimate.period.bubble, "textbook": estimate.period.textbook},
        "step_ms": step.total * 1e3,
        "step_parts_ms": {name: seconds * 1e3 for name, seconds in asdict(step).items()},
        "mfu": estimate.mfu,
        "tokens_per_second": estimate.tokens_per_second,
        "cost": None if cost is None else asdict(cost),
        "warnings": [*_does_not_fit(assumptions, estimate), *not_modelled],
    }


def _does_not_fit(assumptions: Assumptions, estimate: Estimate) -> list[dict[str, str]]:
    capacity = assumptions.gpu.memory_gib
    needed = (max(rank.peak_bytes for rank in estimate.memory) + estimate.outside_allocator_bytes) / 2**30
    if needed <= capacity:
        return []
    message = f"does not fit: a rank needs {needed:,.1f} GiB, and {assumptions.gpu.name} has {capacity:g}"
    return [{"code": "does_not_fit", "message": message}]
