"""Quality of one rank's trace: lost launches, untraced graph loops, empty steps.

Graph loops: Of a graph with a conditional `while` node CUPTI records the first iteration only (pytorch/kineto#1062).
The rest shows as a host that waits for a device on which nothing seems to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.rows import are_among, distinct
from stepscope.trace.columns import NONE, Category, TraceColumns

_GRAPH_LAUNCH = re.compile(r"GraphLaunch")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What reading and linking a rank's trace found; counts unless the name says otherwise.

    Attributes:
        repaired, dropped, clipped, clipped_ns: as ReadQuality.
        num_activities, num_unlinked, num_early: device activities in the window, those without their launch, and those
            that start before it.
        num_kernels, num_graph_kernels: kernels of the file, and those launched by a graph.
        lost_launches: share of launches that have no device activity.
        lost_at_start: such launches before the first that has one.
        step_indices, empty_steps: the steps that the host marks, and those in which no device activity was launched.
        largest_share, largest_name: share of the window that one compute kernel or copy takes, and its name.
        untraced_iterations: a graph ran on although the trace has no kernels of it.
    """

    repaired: int
    dropped: int
    clipped: int
    clipped_ns: int
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


def host_facts(trace: TraceColumns, steps: HostSteps) -> TraceFacts:
    """The facts of a rank without device activities."""
    return replace(_read_quality(trace), step_indices=tuple(steps.index.tolist()))


def device_facts(trace: TraceColumns, activities: Activities, window: Window, steps: HostSteps) -> TraceFacts:
    """Counts of the reading, and of the device's activities inside the window.

    Args:
        trace: the rank's events.
        activities: its device activities.
        window: what is booked.
        steps: the marked steps, whether the window follows them or not.
    """
    inside = (activities.end_ns > window.start_ns) & (activities.start_ns < window.end_ns)
    linked = activities.launch_ns != NONE
    kernels = activities.of(Work.COMPUTE, Work.COMMUNICATION)
    losses = lost_launches(trace, activities)
    largest, name = _largest(trace, activities, window)
    return replace(
        _read_quality(trace),
        num_activities=int(np.count_nonzero(inside)),
        num_unlinked=int(np.count_nonzero(inside & ~linked)),
        num_early=int(np.count_nonzero(inside & linked & (activities.start_ns < activities.launch_ns))),
        num_kernels=len(kernels),
        num_graph_kernels=_count_graph_kernels(trace, activities.row[kernels]),
        lost_launches=losses.share,
        lost_at_start=losses.num_at_start,
        step_indices=tuple(steps.index.tolist()),
        empty_steps=_empty_steps(activities, steps),
        largest_share=largest,
        largest_name=name,
        untraced_iterations=has_untraced_iterations(trace, activities, _graph_launches(trace)),
    )


def _read_quality(trace: TraceColumns) -> TraceFacts:
    quality = trace.quality
    return TraceFacts(quality.repaired, quality.dropped, quality.clipped, quality.clipped_ns)


def _empty_steps(activities: Activities, steps: HostSteps) -> tuple[int, ...]:
    """Marked steps in which nothing was launched that ran; none where no activity can be tied to any step."""
    places = distinct(steps.position_of(activities.launch_ns[activities.launch_ns != NONE]))
    filled = places[places != NONE]
    return tuple(np.delete(steps.index, filled).tolist()) if len(filled) else ()


def _largest(trace: TraceColumns, activities: Activities, window: Window) -> tuple[float, str]:
    """The window's share that one compute kernel or copy takes, and its name; a collective may wait that long."""
    chosen = activities.of(Work.COMPUTE, Work.COPY)
    lengths = np.minimum(activities.end_ns[chosen], window.end_ns) - np.maximum(
        activities.start_ns[chosen], window.start_ns
    )
    if not len(lengths) or lengths.max() <= 0:
        return 0.0, ""
    place = int(lengths.argmax())
    name = trace.names[int(trace.name[activities.row[chosen[place]]])]
    return float(lengths[place]) / (window.end_ns - window.start_ns), name


def _graph_launches(trace: TraceColumns) -> npt.NDArray[np.intp]:
    return trace.rows_named(_GRAPH_LAUNCH.search, Category.RUNTIME)


def _count_graph_kernels(trace: TraceColumns, kernel_rows: npt.NDArray[np.signedinteger]) -> int:
    """Kernels whose launch is a graph's launch."""
    launches = trace.correlation[_graph_launches(trace)]
    return int(np.count_nonzero(np.isin(trace.correlation[kernel_rows], launches)))


_LAUNCHES_WORK = re.compile(
    r"^(cuda|hip|cu)(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Calls that asked for device work and have none in the trace.

    Attributes:
        share: of all calls that ask for some; 0 without such calls.
        num_at_start: those before the first whose work is there: the profiler was not recording the device yet.
    """

    share: float
    num_at_start: int


def lost_launches(trace: TraceColumns, activities: Activities) -> Losses:
    """What the trace lacks of the work that its calls asked for."""
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
"""A shorter silence may be the return of the call, or a clock."""
MIN_SILENCE_RATIO = 10
"""The silence is so many times longer than what was seen of the graph."""


def has_untraced_iterations(trace: TraceColumns, activities: Activities, graph_launches: npt.NDArray[np.intp]) -> bool:
    """Whether a call that waits for the device outlasts all recorded work by far, right after a graph's kernels.

    Args:
        trace: the rank's events.
        activities: its device activities, by start.
        graph_launches: rows of the calls that launch graphs.
    """
    calls = trace.rows_named(_WAITS_FOR_DEVICE.match, Category.RUNTIME)
    calls = calls[trace.end_ns[calls] - trace.start_ns[calls] >= MIN_SILENCE_NS]
    if not len(graph_launches) or not len(calls) or not len(activities):
        return False
    ended = np.maximum.accumulate(activities.end_ns)
    before = np.searchsorted(activities.start_ns, trace.end_ns[calls]) - 1  # the last to start while the call waits
    calls, before = calls[before >= 0], before[before >= 0]
    silence = trace.end_ns[calls] - np.maximum(ended[before], trace.start_ns[calls])
    ids = trace.correlation[activities.row]
    for place in before[silence >= MIN_SILENCE_NS].tolist():
        graph = ids == ids[place]
        is_graph = ids[place] > 0 and bool(np.isin(ids[place], trace.correlation[graph_launches]))
        seen = int(activities.end_ns[graph].max() - activities.start_ns[graph].min())
        if is_graph and silence[before == place].max() > MIN_SILENCE_RATIO * seen:
            return True
    return False
