"""Utilization of a rank: modelled share of kernel time, FLOPs of a step, whether the peak can be right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_costs import DTYPES, DecidedBy, Floats
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_limits import KernelLimits
from stepscope.core.documents.analysis import RooflineCoverage

PEAK_MARGIN = 1.05
"""A FLOP floor above the duration by more than this convicts the peak; less may be the timestamps' rounding."""
LARGE_PRODUCT_NS = 100_000
NUM_LARGE_PRODUCTS = 20
LOW_EFFICIENCY = 0.45
"""Large matrix products reach 60-85 % of the dense peak: 0.82 on an H100 in bf16, 0.63 on an A100 in TF32, 0.81 on a
V100 in FP32 (recorded traces). Half of that is what half the clock looks like, or a peak that counts sparsity."""


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


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Matrix FLOPs of some kernels: `model` for MFU, `executed` (with what backward repeats) for HFU."""

    model: float
    executed: float


def step_flops(model: Floats, executed: Floats, owned: npt.NDArray[np.bool_]) -> StepFlops:
    """Matrix FLOPs of the kernels or operators of a step.

    Args:
        model, executed: of each, nan where unknown.
        owned: which of them were launched in the step.
    """
    return StepFlops(model=float(np.nansum(model[owned])), executed=float(np.nansum(executed[owned])))


def dominant_dtype(limits: KernelLimits) -> str | None:
    """The element type in which most matrix FLOPs run, or None when no kernel has any."""
    by_dtype = np.bincount(limits.dtype, weights=np.nan_to_num(limits.flops), minlength=len(DTYPES))
    by_dtype[0] = 0.0
    return DTYPES[int(np.argmax(by_dtype))] if by_dtype.any() else None


def peak_is_exceeded(limits: KernelLimits) -> bool:
    """Whether kernels that hold over 1 % of the matrix FLOPs ran faster than the GPU's peak allows."""
    flops = np.where(limits.flops_are_upper_bound, 0.0, limits.flops)
    faster = limits.floor_ns_flops > PEAK_MARGIN * limits.duration_ns
    return bool(np.nansum(flops[faster]) > 0.01 * np.nansum(flops))


def best_product_efficiency(limits: KernelLimits) -> float | None:
    """What share of the peak the best tenth of the large matrix products reach at least; None with too few of them."""
    large = (limits.family == Family.MATMUL) & (limits.duration_ns >= LARGE_PRODUCT_NS) & ~limits.flops_are_upper_bound
    large &= limits.floor_ns_flops > limits.floor_ns_bytes
    if np.count_nonzero(large) < NUM_LARGE_PRODUCTS:
        return None
    return float(np.quantile(limits.floor_ns_flops[large] / limits.duration_ns[large], 0.9))
