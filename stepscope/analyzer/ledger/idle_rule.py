"""Nothing runs on the device: whose doing is that? And when only communication runs, was the host late anyway?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, contains, intersect, subtract, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.host_spans import AFTER_BLOCKING_CALL_NS, HostSpans, host_spans
from stepscope.analyzer.ledger.segments import CHARGE, Paint
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.membership import distinct
from stepscope.core.causes import Cause
from stepscope.core.headings import Heading
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns


@dataclass(frozen=True, slots=True)
class Host:
    """What the host threads of a rank did, by the thread that launched an activity."""

    spans_of_lane: dict[int, HostSpans]
    launches_known: bool
    """whether the trace has any launch at all"""

    def copy_charges(self, activities: Activities) -> IntColumn:
        """Charge of each activity if it is a copy: the checkpoint's or the loader's that launched it, else copy."""
        charges = np.full(len(activities), CHARGE[Cause.COPY], np.int8)
        for lane, spans in self.spans_of_lane.items():
            here = activities.launch_lane == lane
            charges[here & contains(spans.annotated.data_loading, activities.launch_ns)] = CHARGE[Cause.DATA_LOADING]
            charges[here & contains(spans.annotated.checkpoint, activities.launch_ns)] = CHARGE[Cause.CHECKPOINT]
        return charges


def observe_host(trace: TraceColumns, steps: HostSteps, activities: Activities) -> Host:
    """Read the spans of every thread that launched something."""
    lanes = [int(lane) for lane in distinct(activities.launch_lane) if lane != NONE]
    return Host(host_spans(trace, steps, activities, lanes), bool(len(trace.rows_of(Category.RUNTIME))))


def book_gaps(gaps: Intervals, activities: Activities, host: Host) -> list[Paint]:
    """Book idle time, gap by gap: by the activity that ends the gap, its launch, and what its thread did before.

    From the launch on, the work was queued and the device was late (`device_gap`). Before it, instant by instant:
    profiler, checkpoint, data loading; else the blocking call that the gap opens in; else the host was slow.
    """
    ended_by = np.minimum(np.searchsorted(activities.start_ns, gaps.end, side="left"), max(len(activities) - 1, 0))
    launch, lane = activities.launch_ns[ended_by], activities.launch_lane[ended_by]
    if not host.launches_known:
        return [Paint(gaps, Heading.IDLE_OTHER)]
    linked = activities.launch_ns != NONE
    first_launch = int(activities.launch_ns[linked].min()) if linked.any() else 0
    launched_before = (launch == NONE) & (gaps.end <= first_launch)
    orphan = (launch == NONE) & ~launched_before
    queued_from = np.where(launched_before, gaps.start, np.clip(launch, gaps.start, gaps.end))
    queued_from = np.where(orphan, gaps.end, queued_from)
    paints = [Paint(union(queued_from, gaps.end), Heading.DEVICE_GAP)]
    paints.append(Paint(union(gaps.start[orphan], gaps.end[orphan]), Heading.IDLE_OTHER))
    for number, spans in host.spans_of_lane.items():
        here = lane == number
        start, end = gaps.start[here], queued_from[here]
        opens_blocked = _opens_blocked(spans.blocked, start)
        paints += _by_spans(union(start[opens_blocked], end[opens_blocked]), spans, Heading.SYNCHRONIZATION)
        paints += _by_spans(union(start[~opens_blocked], end[~opens_blocked]), spans, Heading.HOST_BOUND)
    return paints


def late_host(alone: Intervals, activities: Activities, host: Host) -> list[Paint]:
    """The part of communication-only time in which the next compute kernel was not even launched.

    Exposed is not blocking: were the communication instantaneous, the device would have idled there all the same,
    so that time is charged by the idle rule. While the launching thread itself is blocked (it may wait for this very
    communication) nothing is moved. Paints carry the idle heading as their heading.
    """
    compute = activities.of(Work.COMPUTE)
    if not len(compute) or not len(alone):
        return []
    place = np.searchsorted(activities.start_ns[compute], alone.end, side="left")
    known = place < len(compute)
    following = compute[np.minimum(place, len(compute) - 1)]
    launch = activities.launch_ns[following]
    known &= launch != NONE
    paints: list[Paint] = []
    for number, spans in host.spans_of_lane.items():
        here = known & (activities.launch_lane[following] == number)
        late = union(alone.start[here], np.minimum(alone.end[here], launch[here]))
        paints += _by_spans(subtract(late, spans.blocked), spans, Heading.HOST_BOUND)
    return paints


def _opens_blocked(blocked: Intervals, opening: Nanoseconds) -> npt.NDArray[np.bool_]:
    """Whether each gap opens inside a blocking call or just after one returned."""
    if not len(blocked):
        return np.zeros(len(opening), np.bool_)
    last = np.searchsorted(blocked.start, opening, side="right") - 1
    return (last >= 0) & (opening - blocked.end[np.maximum(last, 0)] <= AFTER_BLOCKING_CALL_NS)


def _by_spans(time: Intervals, spans: HostSpans, rest: Heading) -> list[Paint]:
    """First match: profiler, checkpoint, data loading, the rest."""
    paints = []
    for cover, heading in (
        (spans.annotated.profiler, Heading.PROFILER),
        (spans.annotated.checkpoint, Heading.CHECKPOINT),
        (spans.annotated.data_loading, Heading.DATA_LOADING),
    ):
        paints.append(Paint(intersect(time, cover), heading))
        time = subtract(time, cover)
    return [*paints, Paint(time, rest)]
