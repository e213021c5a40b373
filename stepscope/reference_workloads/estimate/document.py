"""Document that `stepscope workload plan --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stepscope.reference_workloads.estimate.estimate import Assumptions, Estimate, TrainingCost
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.recipe import Recipe

SCHEMA = "stepscope.workload-plan/1"


def plan_document(
    workload: str,
    plan: ParallelPlan,
    preset: Preset,
    recipe: Recipe,
    assumptions: Assumptions,
    estimate: Estimate,
    cost: TrainingCost | None,
) -> dict[str, Any]:
    """One document; bytes, seconds and FLOPs in base units, times of a step in milliseconds."""
    step = estimate.step
    return {
        "schema": SCHEMA,
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
        "warnings": [*_does_not_fit(assumptions, estimate), *_not_modelled(estimate)],
    }


def _does_not_fit(assumptions: Assumptions, estimate: Estimate) -> list[dict[str, str]]:
    capacity = assumptions.gpu.memory_gib
    needed = estimate.most_bytes / 2**30
    if needed <= capacity:
        return []
    message = f"does not fit: a rank needs {needed:,.1f} GiB, and {assumptions.gpu.name} has {capacity:g}"
    return [{"code": "does_not_fit", "message": message}]


def _not_modelled(estimate: Estimate) -> list[dict[str, str]]:
    return [{"code": "not_modelled", "message": f"not modelled: {what}"} for what in estimate.not_modelled]
