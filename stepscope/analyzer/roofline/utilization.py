"""Utilization of a rank: share of kernel time with a known limit, FLOPs of a step, plausibility of the peak."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_costs import DTYPES, DecidedBy
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_limits import KernelLimits
from stepscope.analyzer.roofline.operator_call import Floats
from stepscope.core.documents.analysis import RooflineCoverage

PEAK_MARGIN = 1.05
"""Least ratio of a FLOP floor to the duration that shows a wrong peak; less may be rounding of timestamps."""
LARGE_PRODUCT_NS = 100_000
NUM_LARGE_PRODUCTS = 20
LOW_EFFICIENCY = 0.45
"""Large matrix products reach 60-85 % of the dense peak: 0.82 on an H100 in bf16, 0.63 on an A100 in TF32, 0.81 on a
V100 in FP32 (recorded traces). Half of that points to half the clock, or a peak with sparsity."""


def coverage(limits: KernelLimits) -> RooflineCoverage:
    """Shares of the kernels' time by how their limit was decided; all 0 without kernel time."""
    time = np.bincount(limits.decided_by, weights=limits.duration_ns, minlength=len(DecidedBy))
    total = time.sum() or 1.0
    return RooflineCoverage(
        model=float(time[DecidedBy.MODEL] / total),
        borrowed=float(time[DecidedBy.BORROWED] / total),
        parameters=float(time[DecidedBy.PARAMETERS] / total),
        by_name=float(time[DecidedBy.NAME] / total),
        none=float(time[DecidedBy.NOTHING] / total),
    )


class StepFlops(NamedTuple):
    """Matrix FLOPs of a step: `model` for MFU, `executed` (with recomputation) for HFU."""

    model: float
    executed: float


def step_flops(model: Floats, executed: Floats, in_steps: npt.NDArray[np.bool_], num_steps: int = 1) -> StepFlops:
    """Matrix FLOPs of a step, mean over the steps.

    Args:
        model, executed: of each kernel or operator, nan where unknown.
        in_steps: which of them were launched inside the steps.
    """
    return StepFlops(float(np.nansum(model[in_steps])) / num_steps, float(np.nansum(executed[in_steps])) / num_steps)


def dominant_dtype(limits: KernelLimits) -> str | None:
    """The element type of most matrix FLOPs, or None without any."""
    by_dtype = np.bincount(limits.dtype, weights=np.nan_to_num(limits.flops), minlength=len(DTYPES))
    by_dtype[0] = 0.0
    return DTYPES[int(np.argmax(by_dtype))] if by_dtype.any() else None


def peak_is_exceeded(limits: KernelLimits) -> bool:
    """Whether kernels with more than 1 % of the matrix FLOPs ran faster than the GPU's peak allows."""
    flops = np.where(limits.flops_are_upper_bound, 0.0, limits.flops)
    faster = limits.floor_ns_flops > PEAK_MARGIN * limits.duration_ns
    return bool(np.nansum(flops[faster]) > 0.01 * np.nansum(flops))


def best_product_efficiency(limits: KernelLimits) -> float | None:
    """Share of the peak that the best tenth of the large matrix products reach; None with too few of them."""
    large = (limits.family == Family.MATMUL) & (limits.duration_ns >= LARGE_PRODUCT_NS) & ~limits.flops_are_upper_bound
    large &= limits.floor_ns_flops > limits.floor_ns_bytes
    if np.count_nonzero(large) < NUM_LARGE_PRODUCTS:
        return None
    return float(np.quantile(limits.floor_ns_flops[large] / limits.duration_ns[large], 0.9))
