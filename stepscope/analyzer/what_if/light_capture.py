"""Light capture of a rank as a replay needs it: its runtime calls, and the device work that they launch.

A light capture holds kernels, copies and runtime calls, no operators. The host advances from call to call: the training
loop's thread hands over to autograd's and back, so all threads that take turns are one host. A thread that launches
while another does (one that prefetches) goes beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.ledger.activities import Activities, Work, device_activities
from stepscope.analyzer.ledger.host_spans import BLOCKING_CALL, allocator_rows, blocking_copies
from stepscope.analyzer.what_if.device_graph import blocking_edges, event_edges, read_streams
from stepscope.analyzer.what_if.launches import observe_calls
from stepscope.analyzer.what_if.read_loops import calls_for_reads
from stepscope.analyzer.what_if.slowed_kernels import Span, kernel_places
from stepscope.core.hardware.gpu_catalogue import pcie_link
from stepscope.trace.columns import NONE, Category, IntColumn, Rows, TraceColumns
from stepscope.trace.rows import distinct, on_lanes

LONGEST_QUEUE = 1_000
"""Launches that CUDA takes before the GPU has begun the first of them; the next one waits."""

_WAITS_FOR_ALL = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$|^(cuda|hip|cu)(Device|Ctx|Thread)Synchronize")
_FROM_PAGEABLE = re.compile(r"Pageable ->")
LONG_LAUNCH_NS = 1_000_000
"""A launch that takes longer, while the GPU has work, waits for room in the launch queue, or only once for a module."""
_MIN_ENDS = 3  # the first whole step may begin with an empty launch queue
_MIN_OVERLAPS = 2
"""Calls of a thread during those of another that show that the two do not take turns."""


class Kind(IntFlag):
    """What a call does."""

    PLAIN = 0
    WAITS = 1
    """Returns only when earlier work of the GPU has ended."""
    COPIES_AND_WAITS = 2
    """Returns only when its own copy has ended."""
    ALLOCATES = 4
    ONLY_COPIES = 8
    SYNCHRONIZES = 16
    """Does nothing but wait."""
    OF_COPY = 32
    """Waits for nothing but the copy that was launched just before."""
    FOR_READ = 64
    """Launches, copies or awaits what the host reads in a loop, and nobody else needs."""
    GAP_FOR_READ = 128
    """The host time before it is spent for such a read too."""


class LaunchedWork(NamedTuple):
    """Work of the GPU.

    Attributes:
        after: positions of work of other streams that it waits for.
        pinned_ns: duration of a copy from pageable memory if that were pinned; NONE for other work.
    """

    stream: int
    duration_ns: int
    communicates: bool
    after: tuple[int, ...]
    pinned_ns: int


class LaunchingCall(NamedTuple):
    """A runtime call.

    Attributes:
        before_ns: host time since the call before it had returned.
        own_ns: its own time, without waiting for the GPU or for room in the launch queue.
        works: positions of the work that it launches.
        awaits: positions of the work that a waiting call waits for; None: all.
        aside: number of its thread where that goes beside the others, from 1; 0: the host.
    """

    kind: Kind
    before_ns: int
    own_ns: int
    works: range
    awaits: tuple[int, ...] | None
    aside: int


class LightCapture:
    """Steps of a rank's light capture.

    Attributes:
        step_ms: mean time of its steps as recorded until the GPU has done their work, without the first, which may
            begin with an empty launch queue.
        num_steps: whole steps.
        calls, works: what a replay goes through; positions are places in `works`.
        usual_ns: own time of a launch, the median.
        collectives: positions of the communication kernels, in order of launch, and the name of each.
        spans: of `works`, as recorded.

    Args:
        trace: kernels, copies and runtime calls of one rank.
        step_ends_ns: ends of its steps by the trace's clock; the first whole step begins at the first of them.

    Raises:
        ValueError: it has fewer than two whole steps, or none of their launches.
    """

    def __init__(self, trace: TraceColumns, step_ends_ns: Sequence[int]) -> None:
        if len(step_ends_ns) < _MIN_ENDS:
            raise ValueError("a light capture needs two whole steps")
        activities = device_activities(trace)
        second_ns, last_ns = (_done_ns(activities, end_ns) for end_ns in (step_ends_ns[1], step_ends_ns[-1]))
        self.step_ms = (last_ns - second_ns) / (len(step_ends_ns) - 2) / 1e6
        self.num_steps = len(step_ends_ns) - 1
        rows, caller = _outermost_calls(trace, activities, step_ends_ns[0], step_ends_ns[-1])
        launched = _Launched(trace, activities, rows, caller)
        if not len(launched.position):
            raise ValueError("no kernel was launched in the steps of the light capture")
        self.works = _works(trace, activities, launched)
        self.calls, self.usual_ns = _calls(trace, activities, rows, launched, (step_ends_ns[0], step_ends_ns[-1]))
        names = (trace.names[trace.name[row]] for row in activities.row[launched.position].tolist())
        self.collectives = [
            (place, name) for place, (work, name) in enumerate(zip(self.works, names, strict=True)) if work.communicates
        ]
        self.spans = _spans(trace, activities, rows, launched, step_ends_ns)


class _Launched:
    """Work that is launched in the window, by call and then by start.

    Attributes:
        position: index of each in the activities.
        place: by activity, its place among these, or NONE.
        first: by call, the place of its first work; the next one's where it has none.
    """

    def __init__(self, trace: TraceColumns, activities: Activities, rows: Rows, caller: IntColumn) -> None:
        number = np.full(len(trace) + 1, NONE, np.int64)
        number[rows] = np.arange(len(rows))
        launched_by = number[caller[activities.launch_row]]
        launched_by[activities.launch_row == NONE] = NONE
        launched = np.flatnonzero(launched_by != NONE)
        self.position = launched[np.lexsort((activities.start_ns[launched], launched_by[launched]))]
        self.place = np.full(len(activities), NONE, np.int64)
        self.place[self.position] = np.arange(len(self.position))
        self.first = np.searchsorted(launched_by[self.position], np.arange(len(rows) + 1))


def _done_ns(activities: Activities, step_end_ns: int) -> int:
    """When the host has ended a step and the GPU has done what was launched by then."""
    launched = (activities.launch_ns != NONE) & (activities.launch_ns < step_end_ns)
    return max(step_end_ns, int(activities.end_ns[launched].max(initial=0)))


def _outermost_calls(trace: TraceColumns, activities: Activities, begin_ns: int, end_ns: int) -> tuple[Rows, IntColumn]:
    """Rows of the launching threads' calls, without those inside of another; and by row of the trace its outermost."""
    linked = activities.launch_row != NONE
    rows = on_lanes(trace, trace.rows_of(Category.RUNTIME), distinct(activities.launch_lane[linked]).tolist())
    rows = rows[(trace.start_ns[rows] >= begin_ns) & (trace.start_ns[rows] < end_ns)]
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    caller = np.full(len(trace) + 1, NONE, np.int64)
    outer: dict[int, int] = {}
    kept = []
    for row, lane, end in zip(rows.tolist(), trace.lane[rows].tolist(), trace.end_ns[rows].tolist(), strict=True):
        if lane not in outer or end > trace.end_ns[outer[lane]]:
            outer[lane] = row
            kept.append(row)
        caller[row] = outer[lane]
    return np.array(kept, np.intp), caller


def _works(trace: TraceColumns, activities: Activities, launched: _Launched) -> list[LaunchedWork]:
    """The launched work, and which of other streams it waits for."""
    edges = event_edges(trace, activities, read_streams(activities))
    after: dict[int, list[int]] = {}
    for source, target in zip(
        launched.place[edges.source].tolist(), launched.place[edges.target].tolist(), strict=True
    ):
        if NONE < source < target:
            after.setdefault(target, []).append(source)
    position = launched.position
    rows = activities.row[position]
    duration = activities.end_ns[position] - activities.start_ns[position]
    is_copy = activities.work[position] == Work.COPY
    rate = pcie_link(trace.header.devices[0].name if trace.header.devices else "").bytes_per_second
    size = trace.num_bytes[rows]
    is_pageable = is_copy & trace.named(rows, _FROM_PAGEABLE.search) & (size != NONE)
    pinned = np.where(is_pageable, np.minimum(size * 1e9 / rate, duration), NONE).astype(np.int64)
    columns = (
        activities.stream[position].tolist(),
        duration.tolist(),
        (activities.work[position] == Work.COMMUNICATION).tolist(),
        [tuple(after.get(place, ())) for place in range(len(position))],
        pinned.tolist(),
    )
    return [LaunchedWork(*values) for values in zip(*columns, strict=True)]


def _spans(
    trace: TraceColumns, activities: Activities, rows: Rows, launched: _Launched, step_ends_ns: Sequence[int]
) -> list[Span]:
    """Spans of the launched work."""
    position = launched.position
    computes = activities.work[position] == Work.COMPUTE
    kernels = activities.row[position[computes]]
    names = [trace.names[name] for name in trace.name[kernels].tolist()]
    launches = [None if launch == NONE else trace.launches[launch] for launch in trace.launch[kernels].tolist()]
    step = np.searchsorted(np.asarray(step_ends_ns), trace.start_ns[rows], side="right")
    places = iter(kernel_places(names, launches, np.repeat(step, np.diff(launched.first))[computes].tolist()))
    starts, ends = activities.start_ns[position].tolist(), activities.end_ns[position].tolist()
    return [
        Span(start, end, next(places) if is_kernel else None)
        for start, end, is_kernel in zip(starts, ends, computes.tolist(), strict=True)
    ]


def _awaited(
    trace: TraceColumns, activities: Activities, rows: Rows, launched: _Launched
) -> list[tuple[int, ...] | None]:
    """By call, the places of the work that it waits for; None: all that was launched before."""
    calls = observe_calls(trace, activities)
    edges, _ = blocking_edges(trace, activities, read_streams(activities), calls)
    by_row: dict[int, list[int]] = {}
    for row, place in zip(calls.row[edges.target].tolist(), launched.place[edges.source].tolist(), strict=True):
        if place != NONE:
            by_row.setdefault(row, []).append(place)
    of_all = trace.named(rows, _WAITS_FOR_ALL.search).tolist()
    return [
        None if is_of_all else tuple(by_row.get(row, ()))
        for row, is_of_all in zip(rows.tolist(), of_all, strict=True)
    ]  # fmt: skip


def _kinds(
    trace: TraceColumns,
    activities: Activities,
    rows: Rows,
    launched: _Launched,
    awaited: Sequence[tuple[int, ...] | None],
) -> IntColumn:
    """By call: its kind."""
    first, position = launched.first, launched.position
    synchronizes = trace.named(rows, BLOCKING_CALL.search)
    waits = synchronizes | trace.named(rows, _WAITS_FOR_ALL.search)
    kinds = np.where(waits, Kind.WAITS, Kind.PLAIN).astype(np.int64)
    kinds[synchronizes] |= Kind.SYNCHRONIZES
    kinds[np.isin(rows, allocator_rows(trace))] |= Kind.ALLOCATES
    launches = first[1:] > first[:-1]
    kinds[launches] &= ~Kind.WAITS
    call_of = np.repeat(np.arange(len(rows)), np.diff(first))
    blocking = np.isin(position, blocking_copies(trace, activities))
    kinds[call_of[blocking]] |= Kind.COPIES_AND_WAITS
    others = np.zeros(len(rows), np.bool_)
    others[call_of[activities.work[position] != Work.COPY]] = True
    kinds[launches & ~others] |= Kind.ONLY_COPIES
    for number in np.flatnonzero(synchronizes).tolist():
        just_before = range(int(first[max(number - 1, 0)]), int(first[number]))
        if awaited[number] and just_before and kinds[number - 1] & Kind.ONLY_COPIES:
            kinds[number] |= Kind.OF_COPY if set(awaited[number] or ()) <= set(just_before) else 0
    waits_in = kinds & (Kind.WAITS | Kind.COPIES_AND_WAITS) != 0
    for_reads = calls_for_reads(trace, activities.row[position], first, waits_in)
    kinds[for_reads.is_for_read] |= Kind.FOR_READ
    kinds[for_reads.has_gap] |= Kind.GAP_FOR_READ
    return kinds


def _aside(trace: TraceColumns, rows: Rows) -> IntColumn:
    """By call: the number of its thread where its calls overlap with those of the others, else 0."""
    lane = trace.lane[rows]
    aside = np.zeros(len(rows), np.int64)
    lanes, counts = np.unique(lane, return_counts=True)
    host = np.zeros(len(rows), np.bool_)
    for one in lanes[np.argsort(-counts)].tolist():
        own = lane == one
        starts, ends = trace.start_ns[rows[host]], trace.end_ns[rows[host]]
        begun = np.searchsorted(starts, trace.end_ns[rows[own]], side="left")
        ended = np.searchsorted(np.maximum.accumulate(ends), trace.start_ns[rows[own]], side="right")
        if host.any() and np.count_nonzero(begun > ended) >= _MIN_OVERLAPS:
            aside[own] = int(aside.max()) + 1
        else:
            host |= own
    return aside


def _calls(
    trace: TraceColumns, activities: Activities, rows: Rows, launched: _Launched, window: tuple[int, int]
) -> tuple[list[LaunchingCall], int]:
    """The calls with their own time: what they waited for the GPU, or for room in the launch queue, is left out.

    The host time from the last of them to the end of the window is a call that does nothing.
    """
    first, position = launched.first, launched.position
    awaited = _awaited(trace, activities, rows, launched)
    kinds = _kinds(trace, activities, rows, launched, awaited)
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    only_launches = (first[1:] > first[:-1]) & (kinds & Kind.COPIES_AND_WAITS == 0)
    usual_ns = int(np.median((ends - starts)[only_launches])) if only_launches.any() else 0
    work_start, work_end = activities.start_ns[position].tolist(), activities.end_ns[position].tolist()
    begun_ns: list[int] = []
    latest_ns = 0  # when all work so far has ended
    calls = []
    returned = returned_before = window[0]
    columns = (starts, ends, kinds, first[:-1], first[1:], _aside(trace, rows))
    of_calls = zip(*(column.tolist() for column in columns), awaited, strict=True)
    for start, end, kind, place, stop, aside, awaits in of_calls:
        waited_until = start
        if kind & Kind.WAITS:
            waited_until = latest_ns if awaits is None else max((work_end[one] for one in awaits), default=start)
            waited_until = min(waited_until, end)
        elif kind & Kind.COPIES_AND_WAITS:
            waited_until = min(work_end[stop - 1], end)
        since = returned if returned <= start or not aside else returned_before
        own = max(end - max(start, waited_until, 0 if aside else returned), 0)
        if stop > place:
            is_full = len(begun_ns) >= LONGEST_QUEUE and begun_ns[-LONGEST_QUEUE] > start
            before_window = len(begun_ns) < LONGEST_QUEUE  # what was launched before it may fill the queue
            if is_full or (before_window and own > LONG_LAUNCH_NS and latest_ns > end):
                own = min(own, usual_ns)
            begun_ns.append(work_start[place])
            latest_ns = max(latest_ns, *work_end[place:stop])
        before = max(start - since, 0)
        calls.append(LaunchingCall(Kind(kind), before, own, range(place, stop), awaits, aside))
        if not aside:
            returned_before, returned = returned, max(returned, end)
    nothing = range(len(position), len(position))
    calls.append(LaunchingCall(Kind.PLAIN, max(window[1] - returned, 0), 0, nothing, (), 0))
    return calls, usual_ns
