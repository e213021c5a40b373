"""Which kernels could be faster, and by the evidence of what?

Launches are faulted only where the kernel is not near its roof anyway: a matmul at 19 % occupancy and 80 % of peak is
as it should be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.occupancy import FULL_WAVES, LaunchFit, Limiter, is_nvidia
from stepscope.analyzer.kernels.sums import Flag
from stepscope.analyzer.kernels.tensor_cores import is_unaligned, uses_tensor_cores
from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_limits import SHORT_KERNEL_NS, KernelLimits
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_CODE
from stepscope.trace.columns import Device, IntColumn, TraceColumns

Mask = npt.NDArray[np.bool_]

TINY_NS = 10_000
"""Eager torch needs 5-10 us of the host for each kernel: shorter ones cannot be launched as fast as they run."""
NEAR_ROOF = 0.6
"""From this share of its floor on, a kernel's launch is not faulted: library matmuls reach 0.6-0.8 of the peak."""
INEFFICIENT_BELOW = 0.4
"""Under this share of its floor a long kernel is inefficient: good ones reach 0.6 and more."""
LOW_OCCUPANCY = 0.25
"""Under a quarter of its warps a multiprocessor cannot hide the latency of memory (CUDA best practices guide)."""
SHORTEST_CHAIN = 3
"""Element-wise kernels in a row from which they count as a chain that could be one kernel."""

_MULTIPLIES = (Family.MATMUL, Family.ATTENTION, Family.CONVOLUTION)
_ELEMENT_WISE = (Family.POINTWISE, Family.COPY_LIKE)
_FUSED_OPTIMIZER = ("fused", "Fused")


def flag_kernels(
    trace: TraceColumns,
    activities: Activities,
    kernels: npt.NDArray[np.intp],
    limits: KernelLimits,
    fit: LaunchFit,
    device: Device | None,
) -> dict[Flag, Mask]:
    """What may be wrong with each compute kernel: by flag, one entry a kernel.

    Args:
        trace: one rank's events.
        activities: its device activities.
        kernels: positions of the compute kernels among them.
        limits: of these kernels.
        fit: of the trace's launches, with one more entry for kernels that record none.
        device: where they ran.
    """
    rows, launch = activities.row[kernels], trace.launch[activities.row[kernels]]
    multiplies = np.isin(limits.family, _MULTIPLIES)
    known = ~np.isnan(limits.efficiency)
    far = ~(limits.efficiency >= NEAR_ROOF)  # unknown counts as far
    limiter = fit.limiter[launch]
    by_grid = far & (limiter == Limiter.GRID)
    in_one_wave = fit.num_blocks[launch] < _num_sms(device)
    starved = (limiter == Limiter.REGISTERS) | (limiter == Limiter.SHARED_MEMORY)
    memory_bound = limits.heading == HEADING_CODE[Heading.MEMORY_BOUND]
    latency_bound = limits.heading == HEADING_CODE[Heading.LATENCY_BOUND]
    could_multiply = _has_tensor_cores(device) & multiplies & ~memory_bound
    plain = _named_where(could_multiply, trace, rows, lambda name: uses_tensor_cores(name) is False)
    return {
        Flag.NO_TENSOR_CORES: plain,
        Flag.UNALIGNED: _named_where(multiplies & far, trace, rows, is_unaligned),
        Flag.SMALL_GRID: by_grid & in_one_wave,
        Flag.TAIL_WAVE: by_grid & known & (fit.waves[launch] > 1) & (fit.wave_efficiency[launch] < FULL_WAVES),
        Flag.LOW_OCCUPANCY: far & starved & (fit.occupancy[launch] < LOW_OCCUPANCY) & ~multiplies,
        Flag.INEFFICIENT_KERNELS: (limits.efficiency < INEFFICIENT_BELOW)
        & (limits.duration_ns >= SHORT_KERNEL_NS)
        & ~latency_bound,
        Flag.UNFUSED: _in_chains(trace, activities, kernels, limits),
        Flag.TINY_KERNELS: limits.duration_ns < TINY_NS,
    }


def _named_where(chosen: Mask, trace: TraceColumns, rows: IntColumn, wanted: Callable[[str], object]) -> Mask:
    """Whether each row is chosen and has a name that is wanted; only names of chosen rows are asked."""
    places = np.flatnonzero(chosen)
    named = np.zeros(len(rows), np.bool_)
    named[places] = trace.named(rows[places], wanted)
    return named


def _num_sms(device: Device | None) -> int:
    return device.num_sms or 0 if device is not None else 0


def _has_tensor_cores(device: Device | None) -> bool:
    """Since Volta; a device that the trace does not describe is taken for a newer one."""
    if device is None:
        return True
    return is_nvidia(device) and (device.compute_capability is None or device.compute_capability >= (7, 0))


def _in_chains(
    trace: TraceColumns, activities: Activities, kernels: npt.NDArray[np.intp], limits: KernelLimits
) -> Mask:
    """Kernels that stand among at least SHORTEST_CHAIN element-wise ones in a row on their stream."""
    rows = activities.row[kernels]
    passes = (limits.family == Family.OPTIMIZER) & ~trace.named(
        rows, lambda name: any(word in name for word in _FUSED_OPTIMIZER)
    )
    element_wise = np.isin(limits.family, _ELEMENT_WISE) | passes
    order = np.argsort(activities.stream[kernels], kind="stable")  # by start within a stream
    same_stream = np.diff(activities.stream[kernels][order], prepend=0) == 0
    same_stream[:1] = False  # whatever number the first stream has
    goes_on = element_wise[order] & same_stream & np.roll(element_wise[order], 1)
    run = np.cumsum(~goes_on) - 1  # every kernel that does not go on begins a run, alone if not element-wise
    long = np.bincount(run, minlength=1) >= SHORTEST_CHAIN
    chained = np.zeros(len(kernels), np.bool_)
    chained[order] = long[run] if len(run) else False
    return chained
