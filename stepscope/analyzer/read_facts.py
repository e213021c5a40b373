"""What did reading and linking a rank's trace find, and how far does its window stand on few or odd activities?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.completeness import lost_launches
from stepscope.analyzer.ledger.graph_loops import has_untraced_iterations
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.membership import distinct
from stepscope.trace.columns import NONE, Category, TraceColumns

_GRAPH_LAUNCH = re.compile(r"GraphLaunch")


@dataclass(frozen=True, slots=True)
class ReadFacts:
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


def host_facts(trace: TraceColumns, steps: HostSteps) -> ReadFacts:
    """The facts of a rank without device activities."""
    return replace(_reading(trace), step_indices=tuple(steps.index.tolist()))


def device_facts(trace: TraceColumns, activities: Activities, window: Window, steps: HostSteps) -> ReadFacts:
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
        _reading(trace),
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


def _reading(trace: TraceColumns) -> ReadFacts:
    quality = trace.quality
    return ReadFacts(quality.repaired, quality.dropped, quality.clipped, quality.clipped_ns)


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
