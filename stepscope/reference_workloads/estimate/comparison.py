"""Comparison of an estimate with what the run measured."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.reference_workloads.estimate.estimate import Estimate
from stepscope.reference_workloads.launch import WorkloadResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, planned and measured; `unit` is bytes, flops or ms."""

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
) -> tuple[Comparison, ...]:
    """Peak memory of each rank, the step, and a rank's model FLOPs a step.

    Args:
        flops_per_rank: as the analysis of the captured steps counts them from the operators' shapes; None without.
    """
    plan = result.job.plan
    ranks_per_stage = plan.dp * plan.tp
    rows = [
        Comparison(
            f"peak memory of rank {rank}",
            "bytes",
            estimate.memory[rank // ranks_per_stage].peak_bytes,
            outcome.peak_allocated_bytes,
        )
        for rank, outcome in enumerate(result.outcomes)
    ]
    rows.append(Comparison("step", "ms", estimate.step.total * 1e3, result.step_seconds * 1e3))
    planned = estimate.flops.model / plan.world_size
    rows.append(Comparison("model FLOPs of a rank and step", "flops", planned, flops_per_rank))
    return tuple(rows)
