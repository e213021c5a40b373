"""Unrecorded work: spans in which the device may run what the trace does not hold, so that nobody knows if it is idle.

Evidence, kind by kind: a launch call without device activity; a call that waits for the device although nothing
recorded runs; a first activity that is queued on a device that seems idle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, contains, empty, intersect, join, subtract, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import BLOCKING_CALL, blocking_copies
from stepscope.analyzer.ledger.steps import QUEUED_NS
from stepscope.trace.columns import NONE, Category, Rows, TraceColumns
from stepscope.trace.rows import are_among, distinct, row_mask

Mask = npt.NDArray[np.bool_]


class Missing(StrEnum):
    """What a trace lacks, so that idle time has no cause or may not be idle."""

    DEVICE = "device_activities"
    """all activities of the device"""
    GRAPH_REPLAYS = "graph_replays"
    """graph launches without kernels"""
    LAUNCHES = "launches"
    """kernel launches without kernels"""
    WAITS = "waits"
    """synchronizations that outlast all recorded work"""
    EARLIER_WORK = "earlier_work"
    """activities queued behind what was launched before the trace began"""
    LINKS = "links"
    """launches of the activities that end idle time"""


MIN_SILENCE_NS = 1_000_000
"""A synchronization that lasts so long without recorded work waits for unrecorded work. Less may be the call's return
or clock error: at most 0.1 ms in recorded traces."""

_LAUNCHES_KERNELS = re.compile(r"Launch(\w*Kernel|Grid)|KernelLaunch|^cudaLaunch(_|$)")
_LAUNCHES_GRAPH = re.compile(r"GraphLaunch")
_BEGINS_CAPTURE = re.compile(r"StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"StreamEndCapture")
_WAITS_FOR_ALL_BEFORE = re.compile(r"^(cuda|hip|cu)(Device|Stream|Ctx)Synchronize")
"""Calls after whose return earlier launches are done; an event may have been recorded before them."""


class Launches(NamedTuple):
    """Calls that launch kernels, or graphs, and those of them without device activity (rows of the trace)."""

    rows: Rows
    lost: Rows


class UnrecordedWork(NamedTuple):
    """Spans in which the device may run unrecorded work, by kind, each instant of one kind; and the launches."""

    spans: Mapping[Missing, Intervals]
    kernels: Launches
    graphs: Launches

    def time(self) -> Intervals:
        """The spans of all kinds."""
        return join(*self.spans.values())

    def of_idle(self, idle: Intervals) -> dict[Missing, int]:
        """Nanoseconds of idle time by kind; kinds without any are left out."""
        return {kind: total for kind, spans in self.spans.items() if (total := intersect(idle, spans).total)}


def launch_calls(trace: TraceColumns) -> Rows:
    """Time breakdown: host calls that launch kernels or graphs."""
    return trace.rows_named(lambda n: _LAUNCHES_KERNELS.search(n) or _LAUNCHES_GRAPH.search(n), Category.RUNTIME)


def uses_gpu(trace: TraceColumns) -> bool:
    """Time breakdown: whether a trace, perhaps without device activities, is of a job with GPUs."""
    return bool(len(launch_calls(trace)) or (trace.header.devices and trace.header.backend != "gloo"))


def launches(trace: TraceColumns, activities: Activities) -> tuple[Launches, Launches]:
    """Time breakdown: launches of kernels, and of graphs, in the trace of a rank."""
    launched = row_mask(trace, activities.launch_row)
    kernels = _launches(trace, activities, launched, _LAUNCHES_KERNELS)
    return kernels, _launches(trace, activities, launched, _LAUNCHES_GRAPH)


def unrecorded_work(trace: TraceColumns, activities: Activities) -> UnrecordedWork:
    """Find the unrecorded work of a rank with device activities."""
    kernels, graphs = launches(trace, activities)
    spans: dict[Missing, Intervals] = {}
    for kind, found in (
        (Missing.GRAPH_REPLAYS, _since_launches(trace, activities, graphs.lost)),
        (Missing.LAUNCHES, _since_launches(trace, activities, kernels.lost)),
        (Missing.WAITS, _silent_waits(trace, activities)),
        (Missing.EARLIER_WORK, _behind_earlier_work(trace, activities)),
    ):
        spans[kind] = subtract(found, join(*spans.values()))
    return UnrecordedWork(spans, kernels, graphs)


def _launches(trace: TraceColumns, activities: Activities, launched: Mask, pattern: re.Pattern[str]) -> Launches:
    """Launches by name, without those that a graph captures instead of running them.

    Args:
        launched: by row of the trace, whether an activity is linked to it.
    """
    rows = trace.rows_named(pattern.search, Category.RUNTIME)
    lost = rows[~launched[rows]]
    if not len(lost):
        return Launches(rows, lost)
    captures = graph_captures(trace)
    rows = rows[~contains(captures, trace.start_ns[rows])]
    lost = lost[(trace.correlation[lost] > 0) & ~contains(captures, trace.start_ns[lost])]
    # a runtime call that contains the driver call of the same work is not lost, although it is not linked
    lost = lost[~are_among(trace.correlation[lost], trace.correlation[activities.row])]
    unlinked = (activities.launch_row == NONE) & (activities.start_ns > trace.start_ns[rows].min(initial=2**62))
    # as many kernels as lost launches may be theirs, without the ids that link them
    return Launches(rows, lost if len(lost) > np.count_nonzero(unlinked) else lost[:0])


def graph_captures(trace: TraceColumns) -> Intervals:
    """Time in which streams are captured into graphs; of a capture that does not end, until the end of the trace."""
    begin = trace.rows_named(_BEGINS_CAPTURE.search, Category.RUNTIME)
    end = np.sort(trace.end_ns[trace.rows_named(_ENDS_CAPTURE.search, Category.RUNTIME)])
    last = int(trace.end_ns.max(initial=0))
    place = np.searchsorted(end, trace.end_ns[begin])
    return union(trace.start_ns[begin], np.append(end, last)[place])


def _since_launches(trace: TraceColumns, activities: Activities, lost: Rows) -> Intervals:
    """From each lost launch until its work is certainly done: its thread's next kernel starts, or a wait returns."""
    if not len(lost):
        return empty()
    launched = trace.start_ns[lost]
    done = _next_return(trace, activities, launched)
    kernels = activities.of(Work.COMPUTE)
    for lane in distinct(trace.lane[lost]).tolist():
        here = np.flatnonzero(trace.lane[lost] == lane)
        own = kernels[activities.launch_lane[kernels] == lane]
        own = own[np.argsort(activities.launch_ns[own], kind="stable")]
        starts = np.append(activities.start_ns[own], trace.end_ns.max())
        done[here] = np.minimum(done[here], starts[np.searchsorted(activities.launch_ns[own], launched[here], "right")])
    return union(launched, done)


def _next_return(trace: TraceColumns, activities: Activities, time_ns: Nanoseconds) -> Nanoseconds:
    """The first return of a call that began after each time and waits for what was launched before it."""
    calls = trace.rows_named(_WAITS_FOR_ALL_BEFORE.search, Category.RUNTIME)
    copies = blocking_copies(trace, activities)
    start = np.concatenate((trace.start_ns[calls], activities.launch_ns[copies]))
    end = np.concatenate((trace.end_ns[calls], activities.launch_end_ns[copies]))
    order = np.argsort(start, kind="stable")
    first_return = np.append(np.minimum.accumulate(end[order][::-1])[::-1], trace.end_ns.max())
    found: Nanoseconds = first_return[np.searchsorted(start[order], time_ns)]
    return found


def _silent_waits(trace: TraceColumns, activities: Activities) -> Intervals:
    """The end of synchronizations, after all recorded work that they can have waited for."""
    calls = trace.rows_named(BLOCKING_CALL.search, Category.RUNTIME)
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    begun = np.searchsorted(activities.start_ns, end)
    done = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(activities.end_ns)))[begun]
    silent_from = np.maximum(start, done)
    is_silent = end - silent_from >= MIN_SILENCE_NS
    return union(silent_from[is_silent], end[is_silent])


def _behind_earlier_work(trace: TraceColumns, activities: Activities) -> Intervals:
    """Idle time before the first activity of each stream, if that was queued meanwhile or before the trace began."""
    lane = trace.lane[activities.row]
    first = np.full(len(trace.lanes), NONE, np.intp)
    first[lane[::-1]] = np.arange(len(lane))[::-1]  # the last assignment wins: the first of each stream
    first = first[first != NONE]
    start = activities.start_ns[first]
    ended = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(activities.end_ns)))[first]
    queued = activities.launch_end_ns[first]
    waited = (queued != NONE) & (start - np.maximum(ended, queued) >= QUEUED_NS)
    waited |= (queued == NONE) & (first == 0)
    idle_from = np.where(first == 0, np.iinfo(np.int64).min // 2, ended)
    return union(idle_from[waited], start[waited])
