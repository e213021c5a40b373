"""Calibrated replay of a light capture: what steps take without the profiler, and without one of their costs.

A light capture holds kernels, copies and runtime calls, no operators. CUPTI adds a cost to each runtime call, which
differs from job to job, and leaves the rest of the host's time as it is. So one number is unknown: the cost with which
the replayed steps take as long as the unprofiled ones before the capture. With it the replay predicts the same steps
without blocking calls, allocations, copies, collectives or launch costs.

The host advances from call to call, of all launching threads in order of their starts: the training thread hands over
to autograd's thread and back. A kernel starts when its launch has returned and its stream is free. A call that waited
for the GPU in the capture waits for the same work in the replay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag, StrEnum
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.ledger.activities import Activities, Work, device_activities
from stepscope.analyzer.ledger.host_spans import BLOCKING_CALL, allocator_rows, blocking_copies
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import distinct, on_lanes

BETWEEN_KERNELS_NS = 800
"""From the end of a kernel to the start of the next queued one of its stream, measured on H100 and H200."""
LAUNCH_LATENCY_NS = 4_000
"""From the return of a launch to the start of its kernel on an idle stream, measured on H200."""
SHORTEST_LAUNCH_NS = 500
"""No launch takes less, whatever the profiler's cost is."""
LONGEST_QUEUE = 1_000
"""Launches that CUDA takes before the GPU has begun the first of them; the next one waits."""
DEPENDENCY_NS = 10_000
"""Work that could have started earlier and started this soon after work of another stream had ended waited for it."""
MAX_CALL_COST_NS = 25_000
"""A cost of a call beyond this is not the profiler's."""
MAX_ERROR = 0.05
"""Largest relative error of a replay from which anything is predicted."""

_WAITS = re.compile(rf"{BLOCKING_CALL.pattern}|^(cuda|hip)Free$|^cuMemFree(_v2)?$")
_MIN_ENDS = 3  # the first whole step may begin with an empty launch queue
_FITTED = 0.002
"""Relative error at which a cost is good enough."""
_FINEST_COST_NS = 50.0


class Removal(StrEnum):
    """What a replay takes away."""

    NOTHING = "nothing"
    BLOCKING_CALLS = "blocking calls"
    """waits for the GPU, and copies that return only when they have ended, as reading a value"""
    ALLOCATIONS = "allocations"
    """the driver's"""
    COPIES = "copies"
    COLLECTIVES = "collectives"
    HOST_TIME = "host time"
    """all of it: what remains is the GPU's own time and its waits for the launches' latency"""


class _Kind(IntFlag):
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


_REMOVED_CALLS = {
    Removal.BLOCKING_CALLS: _Kind.SYNCHRONIZES | _Kind.COPIES_AND_WAITS,
    Removal.ALLOCATIONS: _Kind.ALLOCATES,
    Removal.COPIES: _Kind.ONLY_COPIES,
}


class _Work(NamedTuple):
    """Work of the GPU; `after` is the position of that of another stream that it waited for, or NONE."""

    stream: int
    duration_ns: int
    communicates: bool
    after: int


class _Call(NamedTuple):
    """A runtime call.

    Attributes:
        before_ns: host time since the call before it had returned.
        own_ns: its own time, without waiting for the GPU or for room in the launch queue.
        works: positions of the work that it launches.
        spared: streams that a waiting call did not wait for.
    """

    kind: _Kind
    before_ns: int
    own_ns: int
    works: range
    spared: frozenset[int] = frozenset()


class Calibration(NamedTuple):
    """How well a light capture explains unprofiled steps; times in ms, errors relative.

    Attributes:
        call_cost_us: what the profiler added to each runtime call.
        step_ms: the replayed step with that cost taken off and all else kept.
        captured_error: of the replay with no cost taken off, against the captured steps.
        error: of `step_ms`, against the unprofiled steps.
    """

    call_cost_us: float
    step_ms: float
    captured_error: float
    error: float

    @property
    def is_sound(self) -> bool:
        """Whether the replay predicts anything; else only bounds are known."""
        return (
            self.call_cost_us <= MAX_CALL_COST_NS / 1e3 and max(abs(self.captured_error), abs(self.error)) <= MAX_ERROR
        )


class ReplayedSteps(NamedTuple):
    """Replayed steps in steady state, ms.

    Attributes:
        step_ms: mean time of a step.
        host_ms: of it, what the host does without waiting for the GPU.
        queued_ms: for how much longer the GPU is busy when the host has ended a step: a host that stops for less than
            that costs nothing.
    """

    step_ms: float
    host_ms: float
    queued_ms: float


class LightCapture:
    """Steps of a light capture, ready to be replayed.

    Attributes:
        step_ms: mean time of its steps as recorded until the GPU has done their work, without the first, which may
            begin with an empty launch queue.

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
        self._num_steps = len(step_ends_ns) - 1
        self._calls, self._works = _observe(trace, activities, step_ends_ns[0], step_ends_ns[-1])
        if not self._works:
            raise ValueError("no kernel was launched in the steps of the light capture")

    def calibrated(self, unprofiled_ms: float) -> Calibration:
        """The cost of a call with which the replayed step takes as long as unprofiled ones, by bisection."""
        step_ms = plain_ms = self.replayed_ms(0.0)
        cost = low = 0.0
        high = float(MAX_CALL_COST_NS) if plain_ms > unprofiled_ms else 0.0
        fastest_ms = self.replayed_ms(high) if high else plain_ms
        if fastest_ms > unprofiled_ms * (1 + _FITTED):  # the host does not count, or something else is wrong
            close = plain_ms <= unprofiled_ms * (1 + MAX_ERROR)
            cost, step_ms, high = (0.0, plain_ms, 0.0) if close else (high, fastest_ms, 0.0)
        while high - low > _FINEST_COST_NS and abs(step_ms / unprofiled_ms - 1) > _FITTED:
            cost = (low + high) / 2
            step_ms = self.replayed_ms(cost)
            low, high = (cost, high) if step_ms > unprofiled_ms else (low, cost)
        return Calibration(cost / 1e3, step_ms, plain_ms / self.step_ms - 1, step_ms / unprofiled_ms - 1)

    def replayed_ms(self, call_cost_ns: float, without: Removal = Removal.NOTHING) -> float:
        """Mean time of a step in steady state, ms."""
        return self.replayed(call_cost_ns, without).step_ms

    def replayed(self, call_cost_ns: float, without: Removal = Removal.NOTHING) -> ReplayedSteps:
        """The steps in steady state: all of them are replayed twice, and the second time counts.

        A call that is taken away leaves the host time before it.
        """
        removed = _REMOVED_CALLS.get(without, _Kind.PLAIN)
        host_ns = waited_ns = 0.0
        free_ns: dict[int, float] = {}  # by stream: when its last work ends
        begun_ns: list[float] = []  # by launch: when its first work starts
        end_ns = [0.0] * len(self._works)
        began_ns = host_began_ns = 0.0
        for is_counted in (False, True):
            for call in self._calls:
                before, own = float(call.before_ns), call.own_ns - call_cost_ns
                if without is Removal.HOST_TIME:
                    before, own = 0.0, -np.inf
                if call.kind & removed:
                    host_ns += before
                elif call.kind & _Kind.WAITS:
                    waited_for = [end for stream, end in free_ns.items() if stream not in call.spared]
                    host_ns += before
                    waited_ns += max(*waited_for, host_ns, 0.0) - host_ns
                    host_ns = max(host_ns, *waited_for, 0.0) + max(own, 0.0)
                elif not call.works:
                    host_ns += max(before + own, 0.0)
                else:
                    if len(begun_ns) >= LONGEST_QUEUE:
                        waited_ns += max(begun_ns[-LONGEST_QUEUE] - host_ns, 0.0)
                        host_ns = max(host_ns, begun_ns[-LONGEST_QUEUE])
                    waits = bool(call.kind & _Kind.COPIES_AND_WAITS)
                    host_ns += before if waits else max(before + own, SHORTEST_LAUNCH_NS)
                    for place in call.works:
                        work = self._works[place]
                        start_ns = max(free_ns.get(work.stream, 0.0) + BETWEEN_KERNELS_NS, host_ns + LAUNCH_LATENCY_NS)
                        if work.after != NONE:
                            start_ns = max(start_ns, end_ns[work.after])
                        if place == call.works.start:
                            begun_ns.append(start_ns)
                        weightless = work.communicates and without is Removal.COLLECTIVES
                        end_ns[place] = free_ns[work.stream] = start_ns + (0 if weightless else work.duration_ns)
                    if waits:
                        waited_ns += max(end_ns[call.works.stop - 1] - host_ns, 0.0)
                        host_ns = max(host_ns, end_ns[call.works.stop - 1]) + max(own, 0.0)
            ended_ns = max(host_ns, *free_ns.values(), 0.0)
            if not is_counted:
                began_ns, host_began_ns, waited_ns = ended_ns, host_ns, 0.0
        per_step = 1e6 * self._num_steps
        host = (host_ns - host_began_ns - waited_ns) / per_step
        return ReplayedSteps((ended_ns - began_ns) / per_step, host, (ended_ns - host_ns) / 1e6)


def _done_ns(activities: Activities, step_end_ns: int) -> int:
    """When the host has ended a step and the GPU has done what was launched by then."""
    launched = (activities.launch_ns != NONE) & (activities.launch_ns < step_end_ns)
    return max(step_end_ns, int(activities.end_ns[launched].max(initial=0)))


def _observe(
    trace: TraceColumns, activities: Activities, begin_ns: int, end_ns: int
) -> tuple[list[_Call], list[_Work]]:
    """Calls that start in the window, by start, and the work that they launch, in order of launch."""
    rows, caller = _outermost_calls(trace, activities, begin_ns, end_ns)
    number = np.full(len(trace) + 1, NONE, np.int64)
    number[rows] = np.arange(len(rows))
    launched_by = number[caller[activities.launch_row]]
    launched_by[activities.launch_row == NONE] = NONE
    launched = np.flatnonzero(launched_by != NONE)
    launched = launched[np.lexsort((activities.start_ns[launched], launched_by[launched]))]
    works = _works(activities, launched, trace.end_ns[rows][launched_by[launched]])
    first = np.searchsorted(launched_by[launched], np.arange(len(rows) + 1))
    kinds = _kinds(trace, activities, rows, launched, first)
    return _calls(trace, activities, rows, kinds, launched, first, begin_ns), works


def _outermost_calls(
    trace: TraceColumns, activities: Activities, begin_ns: int, end_ns: int
) -> tuple[IntColumn, IntColumn]:
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
    return np.array(kept, np.int64), caller


def _works(activities: Activities, launched: IntColumn, returned_ns: Nanoseconds) -> list[_Work]:
    """The launched work, and which of another stream it waited for."""
    start, end = activities.start_ns[launched], activities.end_ns[launched]
    stream = activities.stream[launched]
    free = np.zeros(len(launched), np.int64)
    for one in distinct(stream).tolist():
        own = np.flatnonzero(stream == one)
        own = own[np.argsort(start[own], kind="stable")]
        free[own[1:]] = end[own[:-1]]
    could_start = np.maximum(free + BETWEEN_KERNELS_NS, returned_ns + LAUNCH_LATENCY_NS)
    by_end = np.argsort(end, kind="stable")
    before = by_end[np.maximum(np.searchsorted(end[by_end], start, side="right") - 1, 0)]
    waited = (start > could_start + DEPENDENCY_NS) & (start - end[before] <= DEPENDENCY_NS)
    waited &= (stream[before] != stream) & (before < np.arange(len(launched))) & (end[before] <= start)
    after = np.where(waited, before, NONE)
    communicates = activities.work[launched] == Work.COMMUNICATION
    columns = (stream.tolist(), (end - start).tolist(), communicates.tolist(), after.tolist())
    return [_Work(*values) for values in zip(*columns, strict=True)]


def _kinds(
    trace: TraceColumns, activities: Activities, rows: IntColumn, launched: IntColumn, first: IntColumn
) -> IntColumn:
    """By call: its kind."""
    kinds = np.where(trace.named(rows, _WAITS.search), _Kind.WAITS, _Kind.PLAIN).astype(np.int64)
    kinds[trace.named(rows, BLOCKING_CALL.search)] |= _Kind.SYNCHRONIZES
    kinds[np.isin(rows, allocator_rows(trace))] |= _Kind.ALLOCATES
    launches = first[1:] > first[:-1]
    kinds[launches] &= ~_Kind.WAITS
    call_of = np.repeat(np.arange(len(rows)), np.diff(first))
    blocking = np.isin(launched, blocking_copies(trace, activities))
    kinds[call_of[blocking]] |= _Kind.COPIES_AND_WAITS
    others = np.zeros(len(rows), np.bool_)
    others[call_of[activities.work[launched] != Work.COPY]] = True
    kinds[launches & ~others] |= _Kind.ONLY_COPIES
    return kinds


def _calls(
    trace: TraceColumns,
    activities: Activities,
    rows: IntColumn,
    kinds: IntColumn,
    launched: IntColumn,
    first: IntColumn,
    begin_ns: int,
) -> list[_Call]:
    """The calls with their own time: what they waited for the GPU, or for room in the launch queue, is left out."""
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    only_launches = (first[1:] > first[:-1]) & (kinds & _Kind.COPIES_AND_WAITS == 0)
    usual_ns = int(np.median((ends - starts)[only_launches])) if only_launches.any() else 0
    begun_ns: list[int] = []
    last_end: dict[int, int] = {}  # by stream, of the work launched so far
    calls = []
    returned = begin_ns
    of_calls = zip(starts.tolist(), ends.tolist(), kinds.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True)
    work_start, work_end = activities.start_ns[launched].tolist(), activities.end_ns[launched].tolist()
    stream = activities.stream[launched].tolist()
    for start, end, kind, place, stop in of_calls:
        spared = frozenset[int]()
        waited_until = start
        if kind & _Kind.WAITS:
            spared = frozenset(one for one, ended in last_end.items() if ended > end)
            waited_until = max((ended for one, ended in last_end.items() if one not in spared), default=start)
        elif kind & _Kind.COPIES_AND_WAITS:
            waited_until = min(work_end[stop - 1], end)
        own = max(end - max(start, waited_until, returned), 0)
        if stop > place:
            if len(begun_ns) >= LONGEST_QUEUE and begun_ns[-LONGEST_QUEUE] > start:
                own = min(own, usual_ns)
            begun_ns.append(work_start[place])
        calls.append(_Call(_Kind(kind), max(start - returned, 0), own, range(place, stop), spared))
        returned = max(returned, end)
        for one, ended in zip(stream[place:stop], work_end[place:stop], strict=True):
            last_end[one] = max(last_end.get(one, 0), ended)
    return calls
