"""Flags of kernels that could be faster (tiny, low occupancy, no tensor cores), and the columns of their sums.

Launches are flagged only where the kernel is not near its roofline anyway: a matmul at 19 % occupancy and 80 % of peak
is as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.occupancy import FULL_WAVES, LaunchFit, Limiter, has_nvidia_limits
from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.roofline.kernel_costs import DecidedBy
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_limits import SHORT_KERNEL_NS, KernelLimits
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.trace.columns import IntColumn, TraceColumns, TraceDevice

Sums = npt.NDArray[np.float64]
"""Sums of groups of kernels, shape (groups, Columns.SIZE)."""


class Flag(IntEnum):
    """Possible faults of a kernel; docs/explanation/kernels.md lists the evidence of each."""

    NO_TENSOR_CORES = 0
    UNALIGNED = 1
    SMALL_GRID = 2
    TAIL_WAVE = 3
    LOW_OCCUPANCY = 4
    INEFFICIENT_KERNELS = 5
    UNFUSED = 6
    TINY_KERNELS = 7


class SumColumn(IntEnum):
    """Scalar columns of the sums of groups of kernels."""

    COUNT = 0
    """kernels that own time in the window"""
    TINY_COUNT = 1
    OWNED_NS = 2
    DURATION_NS = 3
    MODELLED_NS = 4
    """duration of those with known floors"""
    FLOOR_NS = 5
    """their larger floors"""
    FITTED_NS = 6
    """owned time of those with known occupancy"""
    OCCUPIED_NS = 7
    """FITTED_NS weighted with the theoretical occupancy"""
    ACHIEVED_NS = 8
    """FITTED_NS weighted with the occupancy that the grid allows"""
    SHORT_NS = 9
    """owned time of latency-bound kernels under 20 us"""
    UNKNOWN_NS = 10
    """owned time of kernels whose names nobody knows"""
    UNKNOWN_COUNT = 11


class Columns:
    """Ranges of columns of the sums of kernels, after those of SumColumn: owned time by a property."""

    FLAGS = slice(len(SumColumn), len(SumColumn) + len(Flag))
    """By flag; a kernel may have several."""
    CATEGORIES = slice(FLAGS.stop, FLAGS.stop + len(CATEGORY_ORDER))
    """By category of the limit."""
    DECIDED = slice(CATEGORIES.stop, CATEGORIES.stop + len(DecidedBy))
    LIMITERS = slice(DECIDED.stop, DECIDED.stop + len(Limiter))
    """By limiter of the occupancy."""
    SIZE = LIMITERS.stop


def flagged_ns(sums: npt.NDArray[np.float64], flag: Flag) -> float:
    """Owned nanoseconds of a group's kernels that have a flag."""
    return float(sums[Columns.FLAGS.start + flag])


_PLAIN_UNITS = re.compile(
    r"simt|ffma|hfma|scudnn(?!.*s\d{4,6}cudnn)"
    r"|(^|[^0-9a-z])sgemm|_sgemm|magma_\w*gemm"
    r"|winograd|fft2d|[wd]grad_(alg\d_)?engine|(im|ex)plicit_convolve_sgemm|convolve_common_engine"
    r"|conv_depthwise|grouped_direct|cf32gemm|[cz]gemm",
    re.IGNORECASE,
)
_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d+x\d+|[hsicdz]_?(884|1688|16816|161616|8816|16832)|hmma|imma|wgmma|wmma|nvjet"
    r"|(bf16|f16|tf32|e4m3|e5m2|fp8|i8)\w*_(bf16|f16|tf32|e4m3|e5m2|fp8|i8)?\w*gemm"
    r"|xmma_\w*gemm_\w*(bf16|f16|tf32|e4m3|e5m2|i8)|flash_(fwd|bwd)|cudnn_generated_fort_native_sdpa|fmha",
    re.IGNORECASE,
)
_SKINNY = re.compile(r"gemv|gemmk1|gemmsn|dot_kernel|splitk_?reduce", re.IGNORECASE)
"""Products with a vector, memory-bound on any unit."""
_UNALIGNED = re.compile(r"align[abc]?[12](?!\d)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def uses_tensor_cores(name: str) -> bool | None:
    """Whether a matmul, attention or convolution kernel runs on the tensor cores; None when its name leaves it open.

    By the names of cuBLAS, cuDNN, CUTLASS, MAGMA and torch. Words for the plain units are tested first: a list of
    tensor-core words alone (as in torch-tb-profiler) matches `sm80_xmma_gemm_f32f32..._ffma` too.
    """
    if _SKINNY.search(name):
        return None
    if "tensorop" not in name and _PLAIN_UNITS.search(name):
        return False
    return True if _TENSOR_CORES.search(name) else None


@lru_cache(maxsize=4096)
def is_unaligned(name: str) -> bool:
    """Whether a tensor-core kernel loads one or two elements at a time, because its operands are not aligned."""
    return bool(_UNALIGNED.search(name)) and uses_tensor_cores(name) is True


Mask = npt.NDArray[np.bool_]

TINY_NS = 10_000
"""Eager torch needs 5-10 us of host time per kernel, so shorter ones cannot be launched as fast as they run."""
NEAR_ROOF = 0.6
"""Efficiency from which on a kernel's launch is not flagged: library matmuls reach 0.6-0.8 of the peak."""
INEFFICIENT_SHARE = 0.4
"""Efficiency below which a long kernel is inefficient: good ones reach 0.6 and more."""
LOW_OCCUPANCY = 0.25
"""With less than a quarter of its warps a multiprocessor cannot hide memory latency (CUDA best practices guide)."""
MIN_CHAIN = 3
"""Least number of consecutive element-wise kernels that could be fused to one."""

MESSAGES = {
    Flag.NO_TENSOR_CORES: "matrix kernels that multiply on the plain units of a GPU that has tensor cores",
    Flag.UNALIGNED: "tensor-core kernels that load one or two elements at a time, as their operands are not aligned",
    Flag.SMALL_GRID: "kernels with fewer blocks than the GPU has multiprocessors, far from their roofline",
    Flag.TAIL_WAVE: f"kernels whose last wave leaves more than {1 - FULL_WAVES:.0%} of the GPU's places empty",
    Flag.LOW_OCCUPANCY: f"kernels whose registers or shared memory leave room for under {LOW_OCCUPANCY:.0%} of warps",
    Flag.INEFFICIENT_KERNELS: f"kernels that reach under {INEFFICIENT_SHARE:.0%} of what the GPU allows them",
    Flag.UNFUSED: f"element-wise kernels, {MIN_CHAIN} or more in a row, each reading and writing memory anew",
    Flag.TINY_KERNELS: f"kernels under {TINY_NS / 1e3:.0f} us, which cost about as much to launch as to run",
}
ADVICE = {
    Flag.NO_TENSOR_CORES: (
        "float32: torch.set_float32_matmul_precision('high') (TF32, from Ampere on) or autocast to a 16-bit type; "
        "16-bit: make the dimensions multiples of 8"
    ),
    Flag.UNALIGNED: "pad dimensions (vocabulary, hidden, channels) to multiples of 8 for 16-bit types, of 4 for TF32",
    Flag.TAIL_WAVE: "sizes that make the number of tiles a multiple of the number of multiprocessors",
    Flag.LOW_OCCUPANCY: "own kernels: fewer registers (__launch_bounds__, num_warps) or smaller tiles",
    Flag.INEFFICIENT_KERNELS: "look at the shapes in the kernels table: odd sizes, transposed layouts, older kernels",
    Flag.UNFUSED: "torch.compile for chains in the model; foreach or fused=True for the optimizer",
    Flag.TINY_KERNELS: "CUDA graphs (torch.compile mode='reduce-overhead'), fusion, or larger batches",
}
"""What is said of each flag, and what to do."""

_MULTIPLIES = (Family.MATMUL, Family.ATTENTION, Family.CONVOLUTION)
_ELEMENT_WISE = (Family.POINTWISE, Family.COPY_LIKE)
_FUSED_OPTIMIZER = ("fused", "Fused")


def flag_kernels(
    trace: TraceColumns,
    activities: Activities,
    kernels: npt.NDArray[np.intp],
    limits: KernelLimits,
    fit: LaunchFit,
    device: TraceDevice | None,
) -> dict[Flag, Mask]:
    """Possible faults of each compute kernel: by flag, one entry a kernel.

    Args:
        kernels: positions of the compute kernels in `activities`.
        limits: of these kernels.
        fit: of the trace's launches, with one more entry for kernels without a recorded one.
    """
    rows, launch = activities.row[kernels], trace.launch[activities.row[kernels]]
    multiplies = np.isin(limits.family, _MULTIPLIES)
    known = ~np.isnan(limits.efficiency)
    far = ~(limits.efficiency >= NEAR_ROOF)  # unknown counts as far
    limiter = fit.limiter[launch]
    by_grid = far & (limiter == Limiter.GRID)
    in_one_wave = fit.num_blocks[launch] < (device.num_sms or 0 if device is not None else 0)
    starved = (limiter == Limiter.REGISTERS) | (limiter == Limiter.SHARED_MEMORY)
    memory_bound = limits.category == CATEGORY_CODE[TimeCategory.MEMORY_BOUND]
    latency_bound = limits.category == CATEGORY_CODE[TimeCategory.LATENCY_BOUND]
    could_multiply = _has_tensor_cores(device) & multiplies & ~memory_bound
    plain = _named_where(could_multiply, trace, rows, lambda name: uses_tensor_cores(name) is False)
    return {
        Flag.NO_TENSOR_CORES: plain,
        Flag.UNALIGNED: _named_where(multiplies & far, trace, rows, is_unaligned),
        Flag.SMALL_GRID: by_grid & in_one_wave,
        Flag.TAIL_WAVE: by_grid & known & (fit.waves[launch] > 1) & (fit.wave_efficiency[launch] < FULL_WAVES),
        Flag.LOW_OCCUPANCY: far & starved & (fit.occupancy[launch] < LOW_OCCUPANCY) & ~multiplies,
        Flag.INEFFICIENT_KERNELS: (limits.efficiency < INEFFICIENT_SHARE)
        & (limits.duration_ns >= SHORT_KERNEL_NS)
        & ~latency_bound,
        Flag.UNFUSED: _in_chains(trace, activities, kernels, limits),
        Flag.TINY_KERNELS: limits.duration_ns < TINY_NS,
    }


def _named_where(chosen: Mask, trace: TraceColumns, rows: IntColumn, wanted: Callable[[str], object]) -> Mask:
    """Whether each row is chosen and its name is wanted; only names of chosen rows are tested."""
    places = np.flatnonzero(chosen)
    named = np.zeros(len(rows), np.bool_)
    named[places] = trace.named(rows[places], wanted)
    return named


def _has_tensor_cores(device: TraceDevice | None) -> bool:
    """Whether a device has tensor cores (since Volta); assumed of a device that the trace does not describe."""
    if device is None:
        return True
    return has_nvidia_limits(device) and (device.compute_capability is None or device.compute_capability >= (7, 0))


def _in_chains(
    trace: TraceColumns, activities: Activities, kernels: npt.NDArray[np.intp], limits: KernelLimits
) -> Mask:
    """Kernels among at least MIN_CHAIN consecutive element-wise ones on their stream."""
    rows = activities.row[kernels]
    passes = (limits.family == Family.OPTIMIZER) & ~trace.named(
        rows, lambda name: any(word in name for word in _FUSED_OPTIMIZER)
    )
    element_wise = np.isin(limits.family, _ELEMENT_WISE) | passes
    order = np.argsort(activities.stream[kernels], kind="stable")  # by start within a stream
    same_stream = np.diff(activities.stream[kernels][order], prepend=0) == 0
    same_stream[:1] = False  # whatever the first stream's id
    goes_on = element_wise[order] & same_stream & np.roll(element_wise[order], 1)
    run = np.cumsum(~goes_on) - 1  # a kernel that does not continue a run begins one
    long = np.bincount(run, minlength=1) >= MIN_CHAIN
    chained = np.zeros(len(kernels), np.bool_)
    chained[order] = long[run] if len(run) else False
    return chained
