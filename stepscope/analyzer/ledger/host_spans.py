"""What was a host thread busy with: profiling, a checkpoint, loading data, or blocked on the device?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, time_of, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.membership import on_lanes
from stepscope.trace.columns import NONE, Category, TraceColumns

AFTER_BLOCKING_CALL_NS = 20_000
"""A gap that opens this soon after a blocking call returned is still that call's doing (the return itself costs)."""

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
ANNOTATES = (Category.USER_ANNOTATION, Category.CPU_OP, Category.PYTHON_FUNCTION)
BLOCKING_CALL = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)Synchronize")
_NOT_THE_PROFILER = re.compile(r"^Command Buffer Full|Module Loading|Lazy Function Loading")
"""Recorded as profiler overhead though it is none: back-pressure of the launch queue, CUDA loading its kernels."""
_ASYNCHRONOUS_CALL = re.compile(r"Async")
_NOT_WAITED_FOR = re.compile(r"^Memset|DtoD|DeviceToDevice|PtoP|Pinned")
"""Fills and copies that an asynchronous call does not wait for, even where it happens to return after they ended."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """Spans by what their names say."""

    profiler: Intervals
    checkpoint: Intervals
    data_loading: Intervals


@dataclass(frozen=True, slots=True)
class HostSpans:
    """One launching thread's spans; `blocked` are calls that lasted until device work ended."""

    annotated: Annotated
    blocked: Intervals


def host_spans(trace: TraceColumns, steps: HostSteps, activities: Activities, lane: int) -> HostSpans:
    """The spans of one thread, together with the training loop's own thread.

    Backward kernels are launched by a thread that autograd keeps for it; what the loop did before it called
    backward (load data, save a checkpoint, wait for the device) stands on the loop's thread.
    """
    lanes = [lane, steps.main_lane]
    return HostSpans(host_annotations(trace, lanes), union(*blocking_calls(trace, lanes, activities)))


def host_annotations(trace: TraceColumns, lanes: list[int]) -> Annotated:
    """Profiler, checkpoint and loader spans on these threads (the profiler's own overhead on any)."""
    overhead = trace.rows_named(lambda name: not _NOT_THE_PROFILER.search(name), Category.OVERHEAD)
    profiler, checkpoint, loading = (
        on_lanes(trace, trace.rows_named(pattern.search, *ANNOTATES), lanes)
        for pattern in (_PROFILER, _CHECKPOINT, _DATA_LOADING)
    )
    return Annotated(
        profiler=time_of(trace, np.concatenate((profiler, overhead))),
        checkpoint=time_of(trace, checkpoint),
        data_loading=time_of(trace, loading),
    )


def data_loading_rows(trace: TraceColumns, lanes: list[int]) -> npt.NDArray[np.intp]:
    """The loader's annotations on these threads."""
    rows = trace.rows_named(_DATA_LOADING.search, Category.USER_ANNOTATION, Category.CPU_OP)
    return on_lanes(trace, rows, lanes)


def blocking_calls(trace: TraceColumns, lanes: list[int], activities: Activities) -> tuple[Nanoseconds, Nanoseconds]:
    """Start and end of the calls that synchronize, and of the copies whose call returned only when they had ended."""
    calls = trace.rows_named(BLOCKING_CALL.search, Category.RUNTIME)
    calls = on_lanes(trace, calls, lanes)
    copies = blocking_copies(trace, activities)
    copies = copies[np.isin(activities.launch_lane[copies], lanes)]
    return (
        np.concatenate((trace.start_ns[calls], activities.launch_ns[copies])),
        np.concatenate((trace.end_ns[calls], activities.launch_end_ns[copies])),
    )


def blocking_copies(trace: TraceColumns, activities: Activities) -> npt.NDArray[np.intp]:
    """Positions of the copies whose call returned only when the copy had ended."""
    copies = activities.of(Work.COPY)
    copies = copies[activities.launch_row[copies] != NONE]
    not_waited_for = trace.named(activities.row[copies], _NOT_WAITED_FOR.search)
    asynchronous = trace.named(activities.launch_row[copies], _ASYNCHRONOUS_CALL.search)
    copies = copies[~(not_waited_for & asynchronous)]
    kept: npt.NDArray[np.intp] = copies[activities.launch_end_ns[copies] >= activities.end_ns[copies]]
    return kept
