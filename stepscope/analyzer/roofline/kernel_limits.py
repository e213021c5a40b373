"""Which limit binds each kernel: arithmetic, memory bandwidth, or its own latency?

A kernel whose operator has a cost model gets two floors, FLOPs / peak and bytes / bandwidth. One that is short or small
and far above both is latency-bound; any other is bound by its larger floor, however inefficient it is. Without a model
the kernel's family decides, and that is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_family import Family, family_of
from stepscope.analyzer.roofline.kernel_operator import launching_operators
from stepscope.analyzer.roofline.operator_cost import operator_cost
from stepscope.core.analysis import RooflineCoverage
from stepscope.core.hardware import GpuModel
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_ORDER
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]

SHORT_KERNEL_NS = 20_000
"""Below this a kernel may be bound by its own start and tail rather than by a rate."""
LATENCY_FLOOR_SHARE = 0.4
"""A short or small kernel with both floors under this share of its duration is latency-bound."""
CONVICTION_MARGIN = 1.05
"""A FLOP floor above the duration by more than this convicts the peak; less may be the timestamps' rounding."""

DTYPES = ("", "bfloat16", "float16", "tfloat32", "float32", "float64", "float8")
"""Element types of matrix operands by code, in core.hardware's words; "" where there are none."""

_COMPUTE_FAMILIES = frozenset({Family.MATMUL, Family.ATTENTION, Family.CONVOLUTION})
_UNDECIDED_FAMILIES = frozenset({Family.OTHER, Family.SORT, Family.TRITON, Family.RECURRENT})


class DecidedBy(IntEnum):
    """How a kernel's limit was found."""

    NOTHING = 0
    NAME = 1
    """by its family"""
    MODEL = 2


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What limits each kernel; one entry a given row. nan is unknown.

    Attributes:
        duration_ns: the kernel's duration.
        heading: index into core.timeline.HEADING_ORDER: compute_bound, memory_bound, latency_bound or compute_other.
        decided_by: DecidedBy codes.
        family: kernel_family.Family codes.
        dtype: index into DTYPES: of the matrix operands.
        flops: matrix FLOPs executed.
        model_flops: those without attention's recomputation in backward, as MFU counts them.
        floor_ns_flops, floor_ns_bytes: least time at the GPU's dense peak, and at its memory bandwidth.
    """

    duration_ns: npt.NDArray[np.int64]
    heading: Codes
    decided_by: Codes
    family: Codes
    dtype: Codes
    flops: Floats
    model_flops: Floats
    floor_ns_flops: Floats
    floor_ns_bytes: Floats

    def __len__(self) -> int:
        return len(self.heading)

    @property
    def efficiency(self) -> Floats:
        """Larger floor / duration; above 1 for bytes means cache reuse, for FLOPs a wrong peak."""
        return np.fmax(self.floor_ns_flops, self.floor_ns_bytes) / np.maximum(self.duration_ns, 1)


def kernel_limits(trace: TraceColumns, kernel_rows: IntColumn, *, gpu: GpuModel | None) -> KernelLimits:
    """Find each kernel's limit.

    Args:
        trace: one rank's events.
        kernel_rows: rows of its compute kernels (no communication).
        gpu: the catalogue's entry; None leaves the floors unknown, so that families decide.
    """
    duration = trace.end_ns[kernel_rows] - trace.start_ns[kernel_rows]
    family = _by_name(trace, kernel_rows, family_of)
    costs = _kernel_costs(trace, launching_operators(trace, kernel_rows), family, duration)
    is_float32 = costs.dtype == DTYPES.index("float32")
    dtype = costs.dtype
    dtype[is_float32] = _by_name(trace, kernel_rows[is_float32], _float32_arithmetic)
    floor_flops, floor_bytes = _floors(costs, dtype, gpu)
    num_sms = _num_sms(trace, gpu)
    blocks = trace.num_blocks(kernel_rows)
    small = (duration < SHORT_KERNEL_NS) | ((blocks != NONE) & (blocks < num_sms))
    heading, decided_by = _decide(family, duration, small, floor_flops, floor_bytes)
    return KernelLimits(
        duration_ns=duration,
        heading=heading,
        decided_by=decided_by,
        family=family,
        dtype=dtype,
        flops=costs.flops,
        model_flops=costs.model_flops,
        floor_ns_flops=floor_flops,
        floor_ns_bytes=floor_bytes,
    )


def _by_name(trace: TraceColumns, rows: IntColumn, code_of: Callable[[str], int]) -> Codes:
    """A code for each row from its name; each name in use is asked once."""
    used = np.zeros(len(trace.names), np.bool_)
    used[trace.name[rows]] = True
    code = np.zeros(len(trace.names), np.uint8)
    code[used] = [code_of(trace.names[name]) for name in np.flatnonzero(used)]
    return code[trace.name[rows]]


@dataclass(frozen=True, slots=True)
class _Costs:
    """Per kernel; nan where its operator has no model or it is a side kernel."""

    flops: Floats
    model_flops: Floats
    num_bytes: Floats
    dtype: Codes


def _kernel_costs(trace: TraceColumns, operator: IntColumn, family: Codes, duration: IntColumn) -> _Costs:
    """Each operator's cost, shared among the kernels that do its work in proportion to their durations."""
    # names and shapes are few, so each pair of them is modelled once
    pairs = np.where(operator != NONE, trace.name[operator].astype(np.int64) << 32 | trace.shapes[operator], NONE)
    pairs[(operator == NONE) | (trace.shapes[operator] == NONE)] = NONE
    distinct, which = np.unique(pairs, return_inverse=True)
    table = np.full((len(distinct), 3), np.nan)
    dtype = np.zeros(len(distinct), np.uint8)
    works = np.zeros((len(distinct), len(Family)), np.bool_)
    for place, pair in enumerate(distinct):
        if pair == NONE:
            continue
        cost = operator_cost(trace.names[pair >> 32], trace.shape_table[pair & 0xFFFFFFFF])
        if cost is None:
            continue
        table[place] = cost.flops, cost.flops - cost.recomputed_flops, cost.num_bytes
        dtype[place] = DTYPES.index(cost.dtype) if cost.dtype in DTYPES else 0
        works[place, list(cost.families)] = True
    share = _share_of_work(operator, works[which, family], family, duration)
    flops, model_flops, num_bytes = (table[which, column] * share for column in range(3))
    return _Costs(flops, model_flops, num_bytes, np.where(np.isnan(flops), 0, dtype[which]).astype(np.uint8))


def _share_of_work(operator: IntColumn, does_work: npt.NDArray[np.bool_], family: Codes, duration: IntColumn) -> Floats:
    """The share of its operator's cost that each kernel bears: nan for side kernels."""
    seen = np.zeros(int(operator.max(initial=NONE)) + 2, np.bool_)
    seen[operator + 1] = True  # NONE is a call of its own
    call = (np.cumsum(seen) - 1)[operator + 1]
    # where no kernel of a call has a fitting name, those without any known name may be the one
    unnamed = np.isin(family, [Family.OTHER, Family.TRITON])
    has_named = np.bincount(call, weights=does_work) > 0
    main = does_work | (unnamed & ~has_named[call])
    weight = np.where(main, np.maximum(duration, 1), 0).astype(np.float64)
    total = np.bincount(call, weights=weight)[call]
    return np.where(main, weight / np.maximum(total, 1.0), np.nan)


_EXACT_FLOAT32 = re.compile(r"sgemm|scudnn|simt|gemv|^Cijk_.*_S_?B_|s_?s_?s_.*ffma", re.IGNORECASE)
_TENSOR_FLOAT32 = re.compile(r"tf32|s1688(?!gemm_f16|gemm_bf16)|xf32", re.IGNORECASE)


def _float32_arithmetic(kernel_name: str) -> int:
    """Code of the type a kernel multiplies float32 operands in; the faster one where its name leaves it open."""
    exact = _EXACT_FLOAT32.search(kernel_name) and not _TENSOR_FLOAT32.search(kernel_name)
    return DTYPES.index("float32" if exact else "tfloat32")


def _floors(costs: _Costs, dtype: Codes, gpu: GpuModel | None) -> tuple[Floats, Floats]:
    if gpu is None:
        unknown = np.full(len(dtype), np.nan)
        return unknown, unknown.copy()
    peaks = np.array([peak_flops(gpu, name) or np.nan for name in DTYPES])
    floor_flops = np.where(costs.flops == 0, 0.0, costs.flops / peaks[dtype] * 1e9)
    return floor_flops, costs.num_bytes / gpu.memory_bytes_per_second * 1e9


def _num_sms(trace: TraceColumns, gpu: GpuModel | None) -> int:
    """As the driver reports, else the catalogue's; 0 if neither, so that no kernel counts as small by its blocks."""
    reported = [device.num_sms for device in trace.header.devices if device.num_sms]
    return reported[0] if reported else (gpu.num_sms if gpu is not None else 0)


def _decide(
    family: Codes, duration: IntColumn, small: npt.NDArray[np.bool_], floor_flops: Floats, floor_bytes: Floats
) -> tuple[Codes, Codes]:
    code = {heading: HEADING_ORDER.index(heading) for heading in HEADING_ORDER}
    by_family = np.array([code[_heading_of(kind)] for kind in Family], np.uint8)
    modelled = ~np.isnan(floor_flops) & ~np.isnan(floor_bytes)
    heading = by_family[family]
    decided_by = np.where(heading == code[Heading.COMPUTE_OTHER], DecidedBy.NOTHING, DecidedBy.NAME)
    decided_by[modelled] = DecidedBy.MODEL
    larger = np.where(floor_flops >= floor_bytes, code[Heading.COMPUTE_BOUND], code[Heading.MEMORY_BOUND])
    heading[modelled] = larger[modelled]
    far_above = np.fmax(floor_flops, floor_bytes) < LATENCY_FLOOR_SHARE * duration
    heading[modelled & small & far_above] = code[Heading.LATENCY_BOUND]
    return heading, decided_by.astype(np.uint8)


def _heading_of(family: Family) -> Heading:
    if family in _COMPUTE_FAMILIES:
        return Heading.COMPUTE_BOUND
    return Heading.COMPUTE_OTHER if family in _UNDECIDED_FAMILIES else Heading.MEMORY_BOUND


def coverage(limits: KernelLimits) -> RooflineCoverage:
    """Shares of the kernels' time by how their limit was decided; all 0 without kernel time."""
    time = np.bincount(limits.decided_by, weights=limits.duration_ns, minlength=len(DecidedBy))
    total = time.sum() or 1.0
    return RooflineCoverage(
        model=float(time[DecidedBy.MODEL] / total),
        by_name=float(time[DecidedBy.NAME] / total),
        none=float(time[DecidedBy.NOTHING] / total),
    )


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Matrix FLOPs of some kernels: `model` for MFU, `executed` (with attention's recomputation) for HFU."""

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


def peak_flops(gpu: GpuModel, dtype: str) -> float | None:
    """Dense peak in FLOP/s for an element type, or None when the catalogue has none."""
    peak = gpu.dense_flops.get(dtype)
    if peak is None and dtype == "tfloat32":  # older than Ampere: no TF32, float32 runs on the vector units
        return gpu.dense_flops.get("float32")
    return peak


def peak_is_convicted(limits: KernelLimits) -> bool:
    """Whether kernels that hold over 1 % of the matrix FLOPs ran faster than the GPU's peak allows."""
    faster = limits.floor_ns_flops > CONVICTION_MARGIN * limits.duration_ns
    return bool(np.nansum(limits.flops[faster]) > 0.01 * np.nansum(limits.flops))
