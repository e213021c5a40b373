"""Limit of each kernel: arithmetic, memory bandwidth, or its own latency.

Roofline model (Williams et al., CACM 2009): a kernel with a known cost has two floors, FLOPs / peak and bytes /
bandwidth. If it is short or small and far above both it is latency-bound; otherwise its larger floor limits it, however
inefficient it is. Without a cost the kernel's family decides, and that is marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_costs import DTYPES, Codes, DecidedBy, KernelCosts, kernel_costs
from stepscope.analyzer.roofline.kernel_family import Family, family_of
from stepscope.analyzer.roofline.operator_call import Floats
from stepscope.core.hardware.gpu_catalogue import GpuModel
from stepscope.core.vocabulary import CATEGORY_CODE, TimeCategory
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

SHORT_KERNEL_NS = 20_000
"""Shorter kernels may be bound by their own start and tail rather than by a rate."""
LATENCY_FLOOR_SHARE = 0.4
"""A short or small kernel with both floors below this share of its duration is latency-bound."""
_COMPUTE_FAMILIES = frozenset({Family.MATMUL, Family.ATTENTION, Family.CONVOLUTION})
_UNDECIDED_FAMILIES = frozenset({Family.OTHER, Family.SORT, Family.TRITON, Family.RECURRENT})


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Limit of each kernel; one entry a kernel, nan is unknown.

    Attributes:
        category: category code: compute_bound, memory_bound, latency_bound or compute_other.
        decided_by: DecidedBy codes.
        family: kernel_family.Family codes.
        dtype: index into DTYPES, of the matrix operands.
        flops: matrix FLOPs executed.
        model_flops: those without recomputation, as MFU counts them.
        flops_are_upper_bound: whether it may have needed fewer FLOPs (Winograd's convolutions).
        num_bytes: fewest bytes to and from memory.
        floor_ns_flops, floor_ns_bytes: least time at the GPU's dense peak, and at its memory bandwidth.
        launch: row of the call that launched it, or NONE.
        operator: row of the operator that launched it, or NONE.
    """

    duration_ns: npt.NDArray[np.int64]
    category: Codes
    decided_by: Codes
    family: Codes
    dtype: Codes
    flops: Floats
    model_flops: Floats
    flops_are_upper_bound: npt.NDArray[np.bool_]
    num_bytes: Floats
    floor_ns_flops: Floats
    floor_ns_bytes: Floats
    launch: IntColumn
    operator: IntColumn

    def __len__(self) -> int:
        return len(self.category)

    @property
    def efficiency(self) -> Floats:
        """Larger floor / duration; above 1 it shows cache reuse (bytes) or a wrong peak (FLOPs)."""
        return np.fmax(self.floor_ns_flops, self.floor_ns_bytes) / np.maximum(self.duration_ns, 1)


def kernel_limits(
    trace: TraceColumns, kernel_rows: IntColumn, launch: IntColumn, *, gpu: GpuModel | None
) -> KernelLimits:
    """Limits of a rank's compute kernels.

    Args:
        launch: row of the call that launched each, or NONE.
        gpu: the catalogue's entry; None leaves the floors unknown, so that families decide.
    """
    duration = trace.end_ns[kernel_rows] - trace.start_ns[kernel_rows]
    family = trace.by_name(kernel_rows, family_of, np.uint8)
    costs = kernel_costs(trace, kernel_rows, launch, family)
    is_float32 = costs.dtype == DTYPES.index("float32")
    dtype = costs.dtype
    dtype[is_float32] = trace.by_name(kernel_rows[is_float32], _float32_arithmetic, np.uint8)
    floor_flops, floor_bytes = _floors(costs, dtype, gpu)
    num_sms = _num_sms(trace, gpu)
    blocks = trace.num_blocks(kernel_rows)
    small = (duration < SHORT_KERNEL_NS) | ((blocks != NONE) & (blocks < num_sms))
    # a pass over lists that was faster than its full chunks allow had chunks filled to an unknown degree
    floor_bytes[(costs.source == DecidedBy.PARAMETERS) & (floor_bytes > duration)] = np.nan
    category, decided_by = _decide(family, costs.source, duration, small, floor_flops, floor_bytes)
    return KernelLimits(
        duration_ns=duration,
        category=category,
        decided_by=decided_by,
        family=family,
        dtype=dtype,
        flops=costs.flops,
        model_flops=costs.model_flops,
        flops_are_upper_bound=costs.is_upper_bound,
        num_bytes=costs.num_bytes,
        floor_ns_flops=floor_flops,
        floor_ns_bytes=floor_bytes,
        launch=launch,
        operator=costs.operator,
    )


_EXACT_FLOAT32 = re.compile(r"sgemm|scudnn|simt|gemv|ffma|^Cijk_.*_S_?B_|s_?s_?s_.*ffma", re.IGNORECASE)
_TENSOR_FLOAT32 = re.compile(r"tf32|s1688(?!gemm_f16|gemm_bf16)|xf32", re.IGNORECASE)


def _float32_arithmetic(kernel_name: str) -> int:
    """Code of the type in which a kernel multiplies float32 operands; the faster one where its name leaves it open."""
    exact = _EXACT_FLOAT32.search(kernel_name) and not _TENSOR_FLOAT32.search(kernel_name)
    return DTYPES.index("float32" if exact else "tfloat32")


def _floors(costs: KernelCosts, dtype: Codes, gpu: GpuModel | None) -> tuple[Floats, Floats]:
    if gpu is None:
        unknown = np.full(len(dtype), np.nan)
        return unknown, unknown.copy()
    peaks = np.array([gpu.peak_flops(name) or np.nan for name in DTYPES])
    floor_flops = np.where(costs.flops == 0, 0.0, costs.flops / peaks[dtype] * 1e9)
    return floor_flops, costs.num_bytes / gpu.memory_bytes_per_second * 1e9


def _num_sms(trace: TraceColumns, gpu: GpuModel | None) -> int:
    """Multiprocessors by the driver, else the catalogue; 0 without both, so that no kernel is small by its blocks."""
    reported = [device.num_sms for device in trace.header.devices if device.num_sms]
    return reported[0] if reported else (gpu.num_sms if gpu is not None else 0)


def _decide(
    family: Codes,
    source: Codes,
    duration: IntColumn,
    small: npt.NDArray[np.bool_],
    floor_flops: Floats,
    floor_bytes: Floats,
) -> tuple[Codes, Codes]:
    by_family = np.array([CATEGORY_CODE[_category_of_family(kind)] for kind in Family], np.uint8)
    modelled = ~np.isnan(floor_flops) & ~np.isnan(floor_bytes)
    category = by_family[family]
    decided_by = np.where(category == CATEGORY_CODE[TimeCategory.COMPUTE_OTHER], DecidedBy.NOTHING, DecidedBy.NAME)
    decided_by[modelled] = source[modelled]
    larger = np.where(
        floor_flops >= floor_bytes, CATEGORY_CODE[TimeCategory.COMPUTE_BOUND], CATEGORY_CODE[TimeCategory.MEMORY_BOUND]
    )
    category[modelled] = larger[modelled]
    far_above = np.fmax(floor_flops, floor_bytes) < LATENCY_FLOOR_SHARE * duration
    category[modelled & small & far_above] = CATEGORY_CODE[TimeCategory.LATENCY_BOUND]
    return category, decided_by.astype(np.uint8)


def _category_of_family(family: Family) -> TimeCategory:
    if family in _COMPUTE_FAMILIES:
        return TimeCategory.COMPUTE_BOUND
    return TimeCategory.COMPUTE_OTHER if family in _UNDECIDED_FAMILIES else TimeCategory.MEMORY_BOUND
