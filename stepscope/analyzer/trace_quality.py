"""Quality of one rank's trace: lost launches, untraced graph loops, empty steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.rows import are_among, distinct, graph_launches
from stepscope.trace.columns import NONE, Category, ReadQuality, TraceColumns


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Counts of what was read, linked and lost in a rank's trace; other units are in the names.

    Attributes:
        reading: what the reader repaired and lost.
        num_activities, num_unlinked, num_early: device activities in the window, those without their launch, and those
            that start before it.
        num_kernels, num_graph_kernels: kernels of the file, and those launched by a graph.
        lost_launches: share of launches without a device activity.
        lost_at_start: such launches before the first that has one.
        step_indices, empty_steps: the steps that the host marks, and those in which no device activity was launched.
        largest_share, largest_name: share of the window of the longest compute kernel or copy, and its name.
        untraced_iterations: a graph kept running without kernels in the trace.
        span_ns: first to last device activity of the file.
    """

    reading: ReadQuality
    num_activities: int = 0
    num_unlinked: int = 0
    num_early: int = 0
    num_kernels: int = 0
    num_graph_kernels: int = 0
    lost_launches: float = 0.0
    lost_at_start: int = 0
    step_indices: tuple[int, ...] = ()
    empty_steps: tuple[int, ...] = ()
    largest_share: float = 0.0
    largest_name: str = ""
    untraced_iterations: bool = False
    span_ns: int | None = None


def host_facts(trace: TraceColumns, steps: HostSteps) -> TraceFacts:
    """The facts of a rank without device activities."""
    return TraceFacts(trace.quality, step_indices=tuple(steps.index.tolist()))


def device_facts(trace: TraceColumns, activities: Activities, window: Window, steps: HostSteps) -> TraceFacts:
    """The facts of a rank with device activities.

    Args:
        window: the part of the trace that is analysed.
        steps: the marked steps, whether the window follows them or not.
    """
    inside = (activities.end_ns > window.start_ns) & (activities.start_ns < window.end_ns)
    linked = activities.launch_ns != NONE
    kernels = activities.of(Work.COMPUTE, Work.COMMUNICATION)
    losses = lost_launches(trace, activities)
    largest, name = _largest(trace, activities, window)
    graphs = graph_launches(trace)
    in_graph = np.isin(trace.correlation[activities.row[kernels]], trace.correlation[graphs])
    return TraceFacts(
        trace.quality,
        num_activities=int(np.count_nonzero(inside)),
        num_unlinked=int(np.count_nonzero(inside & ~linked)),
        num_early=int(np.count_nonzero(inside & linked & (activities.start_ns < activities.launch_ns))),
        num_kernels=len(kernels),
        num_graph_kernels=int(np.count_nonzero(in_graph)),
        lost_launches=losses.share,
        lost_at_start=losses.num_at_start,
        step_indices=tuple(steps.index.tolist()),
        empty_steps=_empty_steps(activities, steps),
        largest_share=largest,
        largest_name=name,
        untraced_iterations=has_untraced_iterations(trace, activities, graphs),
        span_ns=int(activities.end_ns.max() - activities.start_ns.min()),
    )


def _empty_steps(activities: Activities, steps: HostSteps) -> tuple[int, ...]:
    """Marked steps in which no device activity was launched; none where no activity has a known step."""
    places = distinct(steps.position_of(activities.launch_ns[activities.launch_ns != NONE]))
    filled = places[places != NONE]
    return tuple(np.delete(steps.index, filled).tolist()) if len(filled) else ()


def _largest(trace: TraceColumns, activities: Activities, window: Window) -> tuple[float, str]:
    """Share of the window of the longest compute kernel or copy, and its name; a collective may wait that long."""
    chosen = activities.of(Work.COMPUTE, Work.COPY)
    lengths = np.minimum(activities.end_ns[chosen], window.end_ns) - np.maximum(
        activities.start_ns[chosen], window.start_ns
    )
    if not len(lengths) or lengths.max() <= 0:
        return 0.0, ""
    place = int(lengths.argmax())
    name = trace.names[int(trace.name[activities.row[chosen[place]]])]
    return float(lengths[place]) / (window.end_ns - window.start_ns), name


_LAUNCHES_WORK = re.compile(
    r"^(cuda|hip|cu)(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Calls that launched device work which is missing in the trace.

    Attributes:
        share: of all calls that launch work; 0 without such calls.
        num_at_start: those before the first whose work is there: the profiler was not recording the device yet.
    """

    share: float
    num_at_start: int


def lost_launches(trace: TraceColumns, activities: Activities) -> Losses:
    """Launches of the trace without device work."""
    calls = trace.rows_named(_LAUNCHES_WORK.match, Category.RUNTIME)
    calls = calls[trace.correlation[calls] > 0]
    if not len(calls):
        return Losses(0.0, 0)
    kept = are_among(trace.correlation[calls], trace.correlation[activities.row])
    share = 1.0 - float(kept.mean())
    if not kept.any():
        return Losses(share, 0)
    first_kept = trace.start_ns[calls[kept]].min()
    return Losses(share, int(np.count_nonzero(trace.start_ns[calls[~kept]] < first_kept)))


_WAITS_FOR_DEVICE = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
MIN_SILENCE_NS = 1_000_000
"""Shorter waits without device work may be the call's return, or clock error."""
MIN_SILENCE_RATIO = 10
"""Least ratio of the wait without device work to the recorded part of the graph."""


def has_untraced_iterations(trace: TraceColumns, activities: Activities, graphs: npt.NDArray[np.intp]) -> bool:
    """Whether a call that waits for the device outlasts all recorded work by far, right after a graph's kernels.

    Of a graph with a conditional `while` node CUPTI records the first iteration only (pytorch/kineto#1062): the host
    waits for a device on which nothing seems to run.
    """
    calls = trace.rows_named(_WAITS_FOR_DEVICE.match, Category.RUNTIME)
    calls = calls[trace.end_ns[calls] - trace.start_ns[calls] >= MIN_SILENCE_NS]
    if not len(graphs) or not len(calls) or not len(activities):
        return False
    ended = np.maximum.accumulate(activities.end_ns)
    before = np.searchsorted(activities.start_ns, trace.end_ns[calls]) - 1  # the last to start before the call ends
    calls, before = calls[before >= 0], before[before >= 0]
    silence = trace.end_ns[calls] - np.maximum(ended[before], trace.start_ns[calls])
    ids = trace.correlation[activities.row]
    for place in before[silence >= MIN_SILENCE_NS].tolist():
        graph = ids == ids[place]
        is_graph = ids[place] > 0 and bool(np.isin(ids[place], trace.correlation[graphs]))
        seen = int(activities.end_ns[graph].max() - activities.start_ns[graph].min())
        if is_graph and silence[before == place].max() > MIN_SILENCE_RATIO * seen:
            return True
    return False
