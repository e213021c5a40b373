"""Training steps: where each begins and ends, on the host and on the device."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_until, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import distinct

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")


@dataclass(frozen=True, slots=True)
class HostSteps:
    """The steps on the host, in order. `main_lane` is the thread of the training loop, or NONE."""

    index: IntColumn
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    main_lane: int
    notices: tuple[Notice, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    def since(self, first: int) -> HostSteps:
        """The steps with this number and later ones."""
        kept = self.index >= first
        return HostSteps(self.index[kept], self.start_ns[kept], self.end_ns[kept], self.main_lane, self.notices)

    def position_of(self, time_ns: Nanoseconds) -> npt.NDArray[np.intp]:
        """Position of the step that contains each host time, or NONE."""
        if not len(self):
            return np.full(len(time_ns), NONE, np.intp)
        place = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < self.end_ns[np.maximum(place, 0)])
        return np.where(inside, place, NONE)


@dataclass(frozen=True, slots=True)
class Window:
    """The analysed part of a rank's trace; step `index[i]` begins at `boundary_ns[i]`, the first with the window.

    Attributes:
        num_merged: boundaries that did not increase.
        before_ns, after_ns: time of the steps, or of a file without steps, that is left out: before the window, with
            nothing on the device, and after it.
    """

    start_ns: int
    end_ns: int
    index: IntColumn
    boundary_ns: Nanoseconds
    num_merged: int
    before_ns: int = 0
    after_ns: int = 0

    def since(self, time_ns: int) -> Window:
        """The window of a file without steps, begun no earlier than a time inside it."""
        if not self.start_ns < time_ns < self.end_ns:
            return self
        left_out = self.before_ns + time_ns - self.start_ns
        return replace(self, start_ns=time_ns, boundary_ns=np.array([time_ns], np.int64), before_ns=left_out)

    @property
    def step_bounds_ns(self) -> Nanoseconds:
        """Starts of the steps and the end of the window."""
        return np.concatenate((self.boundary_ns, [self.end_ns]))

    @property
    def whole_step_ns(self) -> Nanoseconds:
        """Lengths of the whole steps, boundary to boundary; with a single boundary, the window."""
        if len(self.boundary_ns) > 1:
            return np.diff(self.boundary_ns)
        return np.array([self.end_ns - self.start_ns], np.int64)


def host_steps(trace: TraceColumns) -> HostSteps:
    """Time breakdown: steps by `ProfilerStep#` marks, else by the optimizer's cycle, else none.

    Steps of length 0 are left out.
    """
    rows = trace.rows_named(_PROFILER_STEP.match, Category.USER_ANNOTATION)
    rows = rows[trace.end_ns[rows] > trace.start_ns[rows]]
    marks = [(match, row) for row in rows if (match := _PROFILER_STEP.match(trace.names[trace.name[row]]))]
    if trace.header.whole_steps:
        marks = [(match, row) for match, row in marks if int(match.group(1)) in trace.header.whole_steps]
    if marks:
        marks = list({int(trace.start_ns[row]): (match, row) for match, row in reversed(marks)}.values())
        marks.sort(key=lambda mark: int(trace.start_ns[mark[1]]))  # repeated marks would be steps of length 0
        chosen = np.array([row for _, row in marks])
        index = np.array([int(match.group(1)) for match, _ in marks])
        return HostSteps(index, trace.start_ns[chosen], trace.end_ns[chosen], int(trace.lane[chosen[0]]))
    return _optimizer_cycles(trace)


def _optimizer_cycles(trace: TraceColumns) -> HostSteps:
    rows = trace.rows_named(_OPTIMIZER_STEP.match, Category.USER_ANNOTATION)
    rows = rows[trace.end_ns[rows] > trace.start_ns[rows]]
    if not len(rows):
        notice = Notice("no_steps", "no ProfilerStep# and no optimizer annotation: the whole trace is one window")
        none = np.empty(0, np.int64)
        return HostSteps(none, none, none, NONE, (notice,))
    rows = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    last_of_cycle = rows[trace.name[rows] == trace.name[rows[-1]]]
    end = distinct(trace.end_ns[last_of_cycle])
    lane = int(trace.lane[last_of_cycle[0]])
    first = int(trace.start_ns[trace.lane == lane].min())
    notice = Notice("steps_from_optimizer", "no ProfilerStep# marks: a step ends where the optimizer's annotation ends")
    return HostSteps(np.arange(len(end)), np.concatenate(([first], end[:-1])), end, lane, (notice,))


QUEUED_NS = 500_000
"""The first activity of a stream that is queued this long on a device that seems idle waits for unrecorded work: 4 to
460 ms in recorded traces that begin amid work, else 5 to 25 us (H100, H200, MI300X)."""


def device_window(activities: Activities, steps: HostSteps) -> Window | None:
    """Time breakdown: step boundaries and window on the device; None where no step launched a kernel with time.

    A boundary is the start of the first kernel launched inside the host step, never of a copy: those of a prefetch
    stream run as soon as they are launched. A single step begins with the host step, or where earlier work ends: before
    its first kernel the device may wait for data.
    """
    launched_in = np.where(activities.launch_ns == NONE, NONE, steps.position_of(activities.launch_ns))
    takes_time = activities.end_ns > activities.start_ns
    kernels = np.flatnonzero((activities.work != Work.COPY) & (launched_in != NONE) & takes_time)
    # activities are ordered by start, so the first of each step is its earliest
    places, first = np.unique(launched_in[kernels], return_index=True)
    boundaries: list[int] = []
    kept: list[int] = []
    merged = 0
    first = kernels[first]
    for place, boundary in zip(places.tolist(), activities.start_ns[first].tolist(), strict=True):
        if boundaries and boundary <= boundaries[-1]:
            merged += 1
            continue
        boundaries.append(boundary)
        kept.append(place)
    if not boundaries:
        return None
    last = (launched_in >= kept[-1]) & (launched_in <= places[-1])
    end = int(activities.end_ns[last].max())
    idle_from = _idle_before(activities, int(first[0]), int(steps.start_ns[kept[0]]))
    if len(boundaries) == 1:
        boundaries[0] = idle_from
    return Window(
        boundaries[0],
        end,
        steps.index[kept],
        np.array(boundaries, np.int64),
        merged,
        before_ns=boundaries[0] - idle_from,
        after_ns=max(int(steps.end_ns[places[-1]]) - end, 0),
    )


def _idle_before(activities: Activities, first: int, since_ns: int) -> int:
    """From when the device had nothing to do before the activity `first`, no earlier than `since_ns`.

    If that activity had long been queued on a device that seems idle, the device worked on something unrecorded: from
    its start.
    """
    start = int(activities.start_ns[first])
    launch = activities.launch_ns[:first]
    earlier = activities.end_ns[:first][(launch == NONE) | (launch < since_ns)]
    idle_from = min(max(since_ns, int(earlier.max(initial=since_ns))), start)
    queued = int(activities.launch_end_ns[first])
    return start if queued == NONE or start - max(queued, idle_from) >= QUEUED_NS else idle_from


def file_window(trace: TraceColumns, activities: Activities, earlier_work: Intervals, *, whole: bool) -> Window:
    """Time breakdown: the file as one window, where its steps give none.

    It is whole, or from when the device's state is known to the last device activity.

    Args:
        earlier_work: time in which the device may run what was launched before the trace began.
    """
    host = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION, Category.RUNTIME)
    begin = min(int(activities.start_ns.min()), int(trace.start_ns[host].min(initial=activities.start_ns.min())))
    last = int(activities.end_ns.max())
    end = max(last, int(trace.end_ns[host].max(initial=last)))
    if whole:
        return Window(begin, end, np.array([0]), np.array([begin], np.int64), 0)
    start = _idle_before(activities, 0, begin)
    busy = union(activities.start_ns, activities.end_ns)
    unknown_first = earlier_work.end - earlier_work.start > covered_until(busy, earlier_work.start)
    start = max(start, int(earlier_work.end[unknown_first].max(initial=start)))
    return Window(start, last, np.array([0]), np.array([start], np.int64), 0, start - begin, end - last)
