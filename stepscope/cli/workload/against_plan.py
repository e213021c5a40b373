"""How does `workload run --against-plan` get its table?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.reference_workloads.launch import WorkloadResult


def against_plan(result: WorkloadResult, *, profiled: bool) -> list[dict[str, Any]]:
    """One row a quantity: what, unit, planned, measured, ratio. The run was on this machine's GPUs.

    Raises:
        UsageError: the estimate does not know the layout or the GPU.
        DataError: the run's traces cannot be analysed.
    """
    import torch

    from stepscope.reference_workloads.estimate.against import compare_with_run
    from stepscope.reference_workloads.estimate.estimate import Assumptions, estimate, known_gpu

    job = result.job
    gpu = known_gpu(torch.cuda.get_device_name())
    planned = estimate(job.plan, job.preset, job.recipe, Assumptions(gpu))
    flops = _measured_flops(result, gpu.peak_flops(job.preset.dtype)) if profiled else None
    rows = compare_with_run(planned, result, flops_per_rank=flops)
    return [asdict(row) | {"ratio": row.ratio} for row in rows]


def _measured_flops(result: WorkloadResult, peak_flops: float | None) -> float | None:
    """What the analysis counts: its MFU is of the captured step."""
    from stepscope.workflow.analyze import analyze

    job = analyze([str(result.run_dir)], keep=False).analysis.job
    if job.mfu is None or job.step_ms is None or peak_flops is None:
        return None
    return job.mfu * peak_flops * job.step_ms / 1e3
