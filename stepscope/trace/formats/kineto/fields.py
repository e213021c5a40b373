"""Values of an event's fields: category from its name, lane from its ids, nanoseconds from its times."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import Category, Lane, Numbered

LEGACY_OPERATOR = "Operator"
"""Category of operators and user annotations in traces of 2021."""

LEGACY_NAMES = frozenset({LEGACY_OPERATOR, "Runtime", "Kernel", "Memcpy", "Memset"})

STEP_MARK = "ProfilerStep#"
LEGACY_ANNOTATIONS = (STEP_MARK, "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
"""Prefixes of torch's own annotations, which were operators before user_annotation existed."""

PYTHON_FUNCTION = "python_function"
READ_FRAMES = ("nn.Module: ", "Python GC", "<built-in function collect>")
"""Prefixes of python_function events that are always read: calls of a module, and garbage collections (the rows of
torch's `record_python_gc_info`, calls of `gc.collect()`)."""
IGNORED_FRAMES = ("<", "torch/")
"""Prefixes of the others that are not: built-in functions and torch's own files, nine tenths of a trace with stacks."""
TRACE_SPAN = "Trace"
"""The profiler's own span, with words as ids and, in some versions, an overflowed duration."""

CATEGORIES: dict[str | None, Category] = {
    "cpu_op": Category.CPU_OP,
    LEGACY_OPERATOR: Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "cuda_runtime": Category.RUNTIME,  # HIP calls come under this name too
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_USER_ANNOTATION,
    "cuda_sync": Category.SYNC_RECORD,
    "cuda_event": Category.SYNC_RECORD,
    "xpu_sync": Category.SYNC_RECORD,
    "overhead": Category.OVERHEAD,
    PYTHON_FUNCTION: Category.PYTHON_FUNCTION,
}
"""Names not listed are Category.OTHER."""

ON_DEVICE = frozenset(
    {Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_USER_ANNOTATION, Category.SYNC_RECORD}
)
"""Rows whose process and thread are a device and a stream."""


def category_of_name(name: str | None) -> Category:
    """Category of a category name; OTHER for unknown names."""
    return CATEGORIES.get(name, Category.OTHER)


_UNUSED_NAMES = frozenset(
    {
        "external_correlation",
        "cpu_instant_event",
        "mtia_ccp_events",
        "mtia_insight",
        "mtia_counters",
        "cuda_profiler_range",
        "collective_comm",
        "xpu_scope_profiler",
        "hardware_counters",
        "hpu_op",
        "user_annotations",
        "async_cpu_to_gpu",
        TRACE_SPAN,
    }
)
"""Further categories that Kineto writes; the analysis does not use them."""


KNOWN_CATEGORY_NAMES = tuple(sorted({name for name in CATEGORIES if name} | _UNUSED_NAMES))
"""All categories that PyTorch's profiler writes."""


def is_pytorch_category(name: str | None) -> bool:
    """Whether any version of PyTorch's profiler writes events of this category."""
    return name is not None and name in KNOWN_CATEGORY_NAMES


Track = tuple[str | None, int | str | None, int | str | None]
"""(category, process, thread) as written."""

_SYNC_THREAD_OFFSET = 1_000_000
"""Since 2026-04 the synchronizations of a stream are on a thread of their own: the stream's number + this."""
_STREAM_NAME = re.compile(r"stream\s*(-?\d+)")
_PART_NAME = re.compile(r"(\[[^\]]*\]|(?:rank|worker)[ _:#-]*\d+)(?:[ _:/,-]+(\S.*))?", re.IGNORECASE)
"""Process ids that merging tools write: rank, then the original id ("[TP01-PP00] 4711", "rank3 4711", "rank 3")."""
_WORD_ID_BASE = -(2**40)
"""Ids that are words are numbered from here down, far from real ids, which may be negative too."""
_MAX_ID = 2**62


def lanes_of(
    tracks: Sequence[Track], categories: Sequence[Category], rank_of_process: Mapping[int | str | None, int]
) -> tuple[list[int], tuple[Lane, ...]]:
    """Kineto trace format: for each track the index of its lane, and the lanes in order of first appearance.

    Args:
        categories: of each track.
        rank_of_process: process (as written) -> rank, where events carry it.
    """
    words: Numbered[str] = Numbered()
    lanes: Numbered[Lane] = Numbered()
    places: list[int] = []
    is_merged = len(set(rank_of_process.values())) > 1  # a single rank is that of the whole file
    for (_, process, thread), category in zip(tracks, categories, strict=True):
        thread_id = _id(thread, words)
        if category is Category.SYNC_RECORD and thread_id >= _SYNC_THREAD_OFFSET:
            thread_id -= _SYNC_THREAD_OFFSET
        part, written = _part_of(process)
        if is_merged and process in rank_of_process:
            part = f"rank {rank_of_process[process]}"
        places.append(lanes[Lane(_id(written, words), thread_id, category in ON_DEVICE, part)])
    return places, tuple(lanes)


def _part_of(process: int | str | None) -> tuple[str, int | str | None]:
    """The rank's label that a merging tool put before the process id, and the id without it."""
    if isinstance(process, str) and (match := _PART_NAME.fullmatch(process)):
        return match[1], match[2] or match[1]
    return "", process


def _id(written: int | str | None, words: Numbered[str]) -> int:
    if isinstance(written, int) and abs(written) < _MAX_ID:
        return written
    text = str(written)
    if stream := _STREAM_NAME.fullmatch(text):
        text = stream[1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return _WORD_ID_BASE - words[text]


MAX_START_NS = 2**62 - 2**54
"""Start + duration + base stays within int64."""
_EXACT_BELOW_US = float(2**43)
"""Below this float64 resolves 2**-10 us, so whole ns survive rounding; also the longest plausible duration."""
_MAX_START_US = MAX_START_NS // 1000
UNKNOWN_NS = np.int64(-(2**63))


def starts_ns(values_us: Sequence[int | float]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds of decoded timestamps; UNKNOWN_NS where not finite or out of range.

    None when float64 has already rounded some of them: their text must be decoded again.
    """
    column = _column(values_us)
    if column.dtype == np.int64:
        fits = (column >= -_MAX_START_US) & (column <= _MAX_START_US)
        return np.where(fits, column, 0) * 1000 + np.where(fits, 0, UNKNOWN_NS)
    if column.dtype != np.float64:
        return None
    with np.errstate(invalid="ignore"):
        if (np.abs(column) >= _EXACT_BELOW_US).any():
            return None
    return _float_ns(column)


def exact_starts_ns(values_us: Sequence[Decimal | int | float]) -> npt.NDArray[np.int64]:
    """Nanoseconds of timestamps with all their decimals, rounded half to even."""
    with localcontext() as context:
        context.prec = 60
        return np.fromiter(map(_exact_ns, values_us), np.int64, len(values_us))


def durations_ns(values_us: Sequence[float]) -> npt.NDArray[np.int64]:
    """Nanoseconds of durations; UNKNOWN_NS for negative, missing and overflowed ones."""
    column = np.frombuffer(struct.pack(f"{len(values_us)}d", *values_us), np.float64)
    with np.errstate(invalid="ignore"):
        sane = (column >= 0) & (column < _EXACT_BELOW_US)
    return np.where(sane, _float_ns(np.where(sane, column, 0.0)), UNKNOWN_NS)


def _column(values_us: Sequence[int | float]) -> npt.NDArray[Any]:
    """int64 where all are integers, else float64; another type where integers exceed both.

    struct.pack takes half as long as np.array.
    """
    count = len(values_us)
    try:
        if count and isinstance(values_us[0], int):
            return np.frombuffer(struct.pack(f"{count}q", *values_us), np.int64)
        return np.frombuffer(struct.pack(f"{count}d", *values_us), np.float64)
    except (struct.error, OverflowError):
        return np.array(values_us)


def _float_ns(column: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    known = np.isfinite(column)
    finite = np.where(known, column, 0.0)
    whole = np.floor(finite)  # multiplying the whole number at once would round a second time
    ns = whole.astype(np.int64) * 1000 + np.rint((finite - whole) * 1000).astype(np.int64)
    return np.where(known, ns, UNKNOWN_NS)


def _exact_ns(value_us: Decimal | int | float) -> int:
    if isinstance(value_us, float) and not isfinite(value_us):
        return int(UNKNOWN_NS)
    value = Decimal(value_us)
    if not value.is_finite() or value.adjusted() > 18:
        return int(UNKNOWN_NS)
    ns = int((value * 1000).to_integral_value())
    return ns if abs(ns) <= MAX_START_NS else int(UNKNOWN_NS)
