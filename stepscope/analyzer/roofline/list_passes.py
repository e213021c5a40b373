"""Cost of passes over lists of tensors (foreach operators, fused optimizers), from their grids.

The profiler records no shapes for long lists, but the kernel shows the size: each block of such a pass takes one chunk
of one tensor, so the grid is the number of chunks, and the template's arguments give type and number of the lists that
are read and written. A tensor's last chunk is rarely full: where the gradients in the trace need as many chunks as the
pass has, their exact sizes are used.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.element_types import element_bytes_of
from stepscope.analyzer.roofline.operator_call import parse_call
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import distinct

CHUNK_ELEMENTS = 65536
"""Elements per block: kChunkSize of torch's MultiTensorApply.cuh, and 2048 * 32 of apex' multi_tensor_applier."""

_GRADIENT = "torch::autograd::AccumulateGrad"

_LISTS = re.compile(r"TensorList(?:ScalarList)?Metadata<(?:[\w:]+, ?)?(\d)>")
_COUNTED = re.compile(r"Functor<[^<>]*?, (\d), (\d), (\d)>")
"""torch's functors end with: number of lists, number read, index of the one written."""
_COPY = re.compile(r"Copy<([\w:]+), ?([\w:]+)>")
_READS_ALL_WRITES_ALL_BUT_GRADIENTS = re.compile(r"(?:Fused\w*Math|Adam|SGD|Adagrad|NovoGrad)Functor")
_READS_OR_WRITES = re.compile(r"LpNorm|LpMax|L2Norm|MaxNorm|ZeroFunctor")


@lru_cache(maxsize=4096)
def bytes_an_element(kernel_name: str) -> int | None:
    """Bytes that a pass over lists of tensors moves per element; None for other kernels."""
    if "multi_tensor_apply" not in kernel_name:
        return None
    lists, width = _LISTS.search(kernel_name), element_bytes_of(kernel_name[kernel_name.find("Functor") :])
    if lists is None or width is None:
        return None
    num_lists = int(lists.group(1))
    copy = _COPY.search(kernel_name)
    if copy:
        widths = [element_bytes_of(f"<{word}>") for word in copy.groups()]
        return None if None in widths else sum(width or 0 for width in widths)
    if _READS_OR_WRITES.search(kernel_name):
        return width
    if _READS_ALL_WRITES_ALL_BUT_GRADIENTS.search(kernel_name):
        return (2 * num_lists - 1) * width
    counted = _COUNTED.search(kernel_name)
    return (int(counted.group(2)) + 1) * width if counted else None


class ListPassBytes(NamedTuple):
    """One entry a kernel.

    Attributes:
        num_bytes: fewest bytes moved; nan where the kernel is not a pass over lists or its grid is not recorded.
        from_shapes: whether the operator recorded the sizes; else they come from the grid and the gradients.
    """

    num_bytes: npt.NDArray[np.float64]
    from_shapes: npt.NDArray[np.bool_]


def list_pass_bytes(trace: TraceColumns, kernel_rows: IntColumn, operator: IntColumn) -> ListPassBytes:
    """Bytes of the kernels that pass over lists of tensors; `operator` is the row that launched each, or NONE."""
    num_bytes = np.full(len(kernel_rows), np.nan)
    from_shapes = np.zeros(len(kernel_rows), np.bool_)
    element_bytes = trace.by_name(kernel_rows, lambda name: bytes_an_element(name) or np.nan, np.float64)
    blocks = trace.num_blocks(kernel_rows)
    passes = np.flatnonzero(~np.isnan(element_bytes) & (blocks > 0))
    if not len(passes):
        return ListPassBytes(num_bytes, from_shapes)
    name, chunks = trace.name[kernel_rows[passes]].astype(np.int64), blocks[passes].astype(np.float64)
    calls, call = np.unique(operator[passes].astype(np.int64) << 24 | name, return_inverse=True)
    chunks_of_call = np.bincount(call, weights=chunks).astype(np.float64)
    recorded = _recorded_elements(trace, calls >> 24)
    fill = _fill_of_calls(trace, calls, chunks_of_call)
    elements = np.where(np.isnan(recorded), chunks_of_call * CHUNK_ELEMENTS * fill, recorded)
    num_bytes[passes] = elements[call] * chunks / chunks_of_call[call] * element_bytes[passes]
    from_shapes[passes] = ~np.isnan(recorded)[call]
    return ListPassBytes(num_bytes, from_shapes)


def _recorded_elements(trace: TraceColumns, operators: IntColumn) -> npt.NDArray[np.float64]:
    """Elements of the first list of each operator; nan where its dimensions were not recorded."""
    shapes = np.where(operators != NONE, trace.shapes[operators], NONE)
    elements = np.full(len(trace.shape_table) + 1, np.nan)
    for place in distinct(shapes[shapes != NONE]).tolist():
        call = parse_call(trace.shape_table[place])
        first = call.lists[0] if call is not None and call.lists else None
        if first is not None:
            elements[place] = sum(map(prod, first))
    return elements[shapes]  # NONE picks the last, which is nan


def _fill_of_calls(trace: TraceColumns, calls: IntColumn, chunks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Fill of the chunks of each call; 1 where the gradients do not give it.

    Calls without operator (launched before the window) are parts of one and get the fill of calls of the same kernel.
    """
    gradients = _gradients(trace)
    is_whole = calls >> 24 != NONE
    known = {size: _fill(gradients, size) for size in distinct(chunks[is_whole]).tolist()}
    fill = np.array([known.get(size) or np.nan for size in chunks.tolist()])
    fill[~is_whole] = np.nan
    name = calls & (1 << 24) - 1
    for place in np.flatnonzero(~is_whole):
        alike = fill[is_whole & (name == name[place])]
        if np.isfinite(alike).any():
            fill[place] = np.nanmean(alike)
    return np.where(np.isnan(fill), 1.0, fill)


class _Gradients(NamedTuple):
    """All gradients of the trace, divided into shards."""

    num_chunks: int
    num_elements: float


def _gradients(trace: TraceColumns) -> list[_Gradients]:
    """The gradients that autograd accumulated, whole and sharded over each group of ranks."""
    if _GRADIENT not in trace.names:
        return []
    rows = trace.rows_named(_GRADIENT.__eq__, Category.CPU_OP)
    shapes, counts = np.unique(trace.shapes[rows], return_counts=True)
    sizes = []
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        call = parse_call(trace.shape_table[shape]) if shape != NONE else None
        dims = call.tensor(0) if call is not None else None
        if dims is not None:
            sizes.append((prod(dims), count))
    parts = {1} | {len(group.ranks) for group in trace.groups if group.ranks}
    return [
        _Gradients(
            sum(count * -(-size // (num_parts * CHUNK_ELEMENTS)) for size, count in sizes),
            sum(count * size for size, count in sizes) / num_parts,
        )
        for num_parts in sorted(parts)
    ]


def _fill(gradients: list[_Gradients], num_chunks: float) -> float | None:
    """Fill of the chunks of a pass over all parameters; None when the gradients do not match it.

    The trace has the gradients once per backward pass, so their chunks are a whole multiple of those of one pass.
    """
    for candidate in gradients:
        if candidate.num_chunks and candidate.num_chunks % num_chunks == 0:
            return candidate.num_elements / candidate.num_chunks / CHUNK_ELEMENTS
    return None
