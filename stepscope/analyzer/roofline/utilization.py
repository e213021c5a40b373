"""How much of its kernel time can a rank account for, how many FLOPs is a step, and can the GPU's peak be right?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_costs import DTYPES, DecidedBy
from stepscope.analyzer.roofline.kernel_limits import KernelLimits
from stepscope.core.analysis import RooflineCoverage
from stepscope.trace.columns import IntColumn

CONVICTION_MARGIN = 1.05
"""A FLOP floor above the duration by more than this convicts the peak; less may be the timestamps' rounding."""


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


def step_flops(limits: KernelLimits, owned: npt.NDArray[np.bool_] | IntColumn) -> StepFlops:
    """Matrix FLOPs of the kernels of a step.

    Args:
        limits: of one rank's kernels.
        owned: which of them were launched in the step: a mask, or positions into the limits.
    """
    return StepFlops(model=float(np.nansum(limits.model_flops[owned])), executed=float(np.nansum(limits.flops[owned])))


def dominant_dtype(limits: KernelLimits) -> str | None:
    """The element type in which most matrix FLOPs run, or None when no kernel has any."""
    by_dtype = np.bincount(limits.dtype, weights=np.nan_to_num(limits.flops), minlength=len(DTYPES))
    by_dtype[0] = 0.0
    return DTYPES[int(np.argmax(by_dtype))] if by_dtype.any() else None


def peak_is_convicted(limits: KernelLimits) -> bool:
    """Whether kernels that hold over 1 % of the matrix FLOPs ran faster than the GPU's peak allows."""
    faster = limits.floor_ns_flops > CONVICTION_MARGIN * limits.duration_ns
    return bool(np.nansum(limits.flops[faster]) > 0.01 * np.nansum(limits.flops))
