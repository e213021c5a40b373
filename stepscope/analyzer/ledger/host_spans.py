"""Spans of a host thread: profiling, checkpoint, data loading, memory management, blocked on the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, join, time_of, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.core.vocabulary import TimeCategory
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import on_lanes

AFTER_BLOCKING_CALL_NS = 20_000
"""A gap that opens this soon after a blocking call returned is still caused by it (returning takes time)."""

_PROFILER = re.compile(r"profiler (start|stop|export)|(start|stop|export)[_ ]profil|export_chrome_trace", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"^(prof\.phase: )?(save[_ ])?checkpoint(ing)?$|^torch\.save|checkpoint[_ ]?(save|saving)|save[_ ]checkpoint"
    r"|distributed[_.]checkpoint|^dcp[.:_ ]",
    re.IGNORECASE,
)
_DATA_LOADING = re.compile(
    r"^enumerate\(DataLoader\)#|^prof\.data$|^(prof\.phase: )?data[_ ]?load(er|ing)$|^(next|get)[_ ]batch$",
    re.IGNORECASE,
)
_ANNOTATION_NAMES = {
    TimeCategory.PROFILER: _PROFILER,
    TimeCategory.CHECKPOINT: _CHECKPOINT,
    TimeCategory.DATA_LOADING: _DATA_LOADING,
}
_GARBAGE = re.compile(
    r"^Python GC|^(prof\.phase: )?gc(\.collect)?$|garbage[_ ]collect|<built-in (function|method) collect>"
)
_ALLOCATOR = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister)(?!.*Async)"
    r"|^cuMem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|HostAlloc)(?!.*Async)"
)
ANNOTATES = (Category.USER_ANNOTATION, Category.CPU_OP, Category.PYTHON_FUNCTION)
BLOCKING_CALL = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)Synchronize")
_NOT_THE_PROFILER = re.compile(r"^Command Buffer Full|Module Loading|Lazy Function Loading")
"""Recorded as profiler overhead, but back-pressure of the launch queue or CUDA loading its kernels."""
_ASYNCHRONOUS_CALL = re.compile(r"Async")
_NOT_WAITED_FOR = re.compile(r"^Memset|DtoD|DeviceToDevice|PtoP|Pinned")
"""Fills and copies that an asynchronous call does not wait for, even if it happens to return after they end."""


Annotations = dict[TimeCategory, Intervals]
"""Profiler, checkpoint and data loading spans, in order of priority."""


class HostSpans(NamedTuple):
    """Spans of one launching thread.

    Attributes:
        memory: Python collects garbage, or the driver allocates or frees memory.
        blocked: calls that lasted until device work ended.
    """

    annotated: Annotations
    memory: Intervals
    blocked: Intervals

    def joined(self, other: HostSpans) -> HostSpans:
        """Spans open on either thread."""
        annotated = {category: join(spans, other.annotated[category]) for category, spans in self.annotated.items()}
        return HostSpans(annotated, join(self.memory, other.memory), join(self.blocked, other.blocked))


class _AnnotationRows(NamedTuple):
    """Annotation rows of all threads by category, and rows of profiler overhead."""

    of_category: dict[TimeCategory, npt.NDArray[np.intp]]
    overhead: npt.NDArray[np.intp]

    def on(self, trace: TraceColumns, lanes: list[int]) -> Annotations:
        """The spans on some threads; profiler overhead counts on any thread."""
        rows = {category: on_lanes(trace, rows, lanes) for category, rows in self.of_category.items()}
        rows[TimeCategory.PROFILER] = np.concatenate((rows[TimeCategory.PROFILER], self.overhead))
        return {category: time_of(trace, own) for category, own in rows.items()}


class _BlockingCalls(NamedTuple):
    """Calls of all threads that block on the device, one entry a call."""

    lane: IntColumn
    start_ns: Nanoseconds
    end_ns: Nanoseconds

    def on(self, lanes: list[int]) -> tuple[Nanoseconds, Nanoseconds]:
        """Start and end of those on some threads."""
        here = np.isin(self.lane, lanes)
        return self.start_ns[here], self.end_ns[here]


def host_spans(
    trace: TraceColumns, steps: HostSteps, activities: Activities, lanes: Sequence[int]
) -> dict[int, HostSpans]:
    """Time breakdown: host spans of each of these threads, joined with those of the training loop's thread.

    Autograd launches backward kernels from a thread of its own, while what delayed them (loading data, saving a
    checkpoint, waiting for the device) is on the loop's thread.
    """
    annotations, blocking = _annotation_rows(trace), _all_blocking_calls(trace, activities)
    garbage, allocator = garbage_rows(trace), allocator_rows(trace)

    def alone(thread: int) -> HostSpans:
        memory = time_of(trace, np.concatenate((garbage, on_lanes(trace, allocator, [thread]))))
        return HostSpans(annotations.on(trace, [thread]), memory, union(*blocking.on([thread])))

    loop = alone(steps.main_lane)
    return {lane: loop if lane == steps.main_lane else alone(lane).joined(loop) for lane in lanes}


def host_annotations(trace: TraceColumns, lanes: list[int]) -> Annotations:
    """Time breakdown: profiler, checkpoint and loader spans on these threads; profiler overhead on any thread."""
    return _annotation_rows(trace).on(trace, lanes)


def _annotation_rows(trace: TraceColumns) -> _AnnotationRows:
    of_category = {
        category: trace.rows_named(names.search, *ANNOTATES) for category, names in _ANNOTATION_NAMES.items()
    }
    overhead = trace.rows_named(lambda name: not _NOT_THE_PROFILER.search(name), Category.OVERHEAD)
    return _AnnotationRows(of_category, overhead)


def garbage_rows(trace: TraceColumns) -> npt.NDArray[np.intp]:
    """Garbage collections of Python on any thread: the one that collects holds the GIL, so all others stop."""
    return trace.rows_named(_GARBAGE.search, *ANNOTATES)


def allocator_rows(trace: TraceColumns) -> npt.NDArray[np.intp]:
    """Calls with which the driver allocates or frees memory."""
    return trace.rows_named(_ALLOCATOR.search, Category.RUNTIME)


def data_loading_rows(trace: TraceColumns, lanes: list[int]) -> npt.NDArray[np.intp]:
    """Time breakdown: the data loader's annotations on these threads."""
    rows = trace.rows_named(_DATA_LOADING.search, Category.USER_ANNOTATION, Category.CPU_OP)
    return on_lanes(trace, rows, lanes)


def blocking_calls(trace: TraceColumns, lanes: list[int], activities: Activities) -> tuple[Nanoseconds, Nanoseconds]:
    """Start and end of synchronizing calls, and of the calls of copies that returned only when the copy had ended."""
    return _all_blocking_calls(trace, activities).on(lanes)


def _all_blocking_calls(trace: TraceColumns, activities: Activities) -> _BlockingCalls:
    calls = trace.rows_named(BLOCKING_CALL.search, Category.RUNTIME)
    copies = blocking_copies(trace, activities)
    return _BlockingCalls(
        lane=np.concatenate((trace.lane[calls], activities.launch_lane[copies])),
        start_ns=np.concatenate((trace.start_ns[calls], activities.launch_ns[copies])),
        end_ns=np.concatenate((trace.end_ns[calls], activities.launch_end_ns[copies])),
    )


def blocking_copies(trace: TraceColumns, activities: Activities) -> npt.NDArray[np.intp]:
    """Time breakdown: positions of the copies whose call returned only when the copy had ended."""
    copies = activities.of(Work.COPY)
    copies = copies[activities.launch_row[copies] != NONE]
    not_waited_for = trace.named(activities.row[copies], _NOT_WAITED_FOR.search)
    asynchronous = trace.named(activities.launch_row[copies], _ASYNCHRONOUS_CALL.search)
    copies = copies[~(not_waited_for & asynchronous)]
    kept: npt.NDArray[np.intp] = copies[activities.launch_end_ns[copies] >= activities.end_ns[copies]]
    return kept
