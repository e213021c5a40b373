"""Floor of a rank's step: its kernels back to back, each as short as it was in any captured step.

Kernels of one stream that are all queued follow each other after about a microsecond.

An unprofiled step idles at most for what it takes longer than this, whatever a profiler made of the host's time.
Kernels of the same launch configuration that pause for milliseconds, and queued work that does not start for as long,
show that another process has the GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.segments import CAUSE_CODE, Segments
from stepscope.analyzer.ledger.steps import HostSteps, Window
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import NONE, IntColumn, TraceColumns
from stepscope.trace.rows import combinations, distinct

MIN_PAUSE_NS = 1_000_000
"""Shortest pause that shows a time slice of another process: launches and dependencies take microseconds."""
MIN_PAUSE_RATIO = 3.0
"""Least ratio of a paused kernel to the shortest like it."""


class DeviceFloor(NamedTuple):
    """Floor of one rank's step, ns.

    Attributes:
        kernels_ns: compute kernels launched in a step, each at its shortest; median over the captured steps.
        paused_ns: a step's mean of pauses inside kernels and before queued ones.
    """

    kernels_ns: int
    paused_ns: int


def device_floor(
    trace: TraceColumns, activities: Activities, steps: HostSteps, window: Window, segments: Segments
) -> DeviceFloor | None:
    """Floor of a rank; None without a kernel launched inside a step."""
    kernels = activities.of(Work.COMPUTE)
    step = np.where(activities.launch_ns == NONE, NONE, steps.position_of(activities.launch_ns))[kernels]
    kernels, step = kernels[step != NONE], step[step != NONE]
    if not len(kernels):
        return None
    in_order = np.lexsort((activities.start_ns[kernels], activities.launch_ns[kernels], step))
    kernels, step = kernels[in_order], step[in_order]
    row = activities.row[kernels]
    duration = activities.end_ns[kernels] - activities.start_ns[kernels]
    kind, _ = combinations((trace.name[row], trace.launch[row]))
    shortest = _shortest_alike(step, kind, duration)
    overlap = _union_ns(activities.start_ns[kernels], activities.end_ns[kernels]) / max(int(duration.sum()), 1)
    each = np.bincount(step, weights=shortest + BETWEEN_KERNELS_NS)[distinct(step)]
    longer = duration - shortest
    paused = longer[(longer >= MIN_PAUSE_NS) & (duration >= MIN_PAUSE_RATIO * shortest)].sum()
    num_steps = len(window.boundary_ns)
    return DeviceFloor(
        kernels_ns=round(float(np.median(each)) * overlap),
        paused_ns=round(float(paused) / len(each) + _long_gaps_ns(segments) / num_steps),
    )


def _shortest_alike(step: npt.NDArray[np.intp], kind: IntColumn, duration: Nanoseconds) -> npt.NDArray[np.float64]:
    """By kernel: the shortest of its kind at the same place among its kind, over all steps."""
    order = np.lexsort((np.arange(len(step)), kind, step))
    begins = np.flatnonzero(np.diff(step[order], prepend=-1) | np.diff(kind[order], prepend=-1))
    place = np.empty(len(step), np.int64)
    place[order] = np.arange(len(step)) - np.repeat(begins, np.diff(np.append(begins, len(step))))
    alike, first = combinations((kind, place))
    shortest = np.full(len(first), np.inf)
    np.minimum.at(shortest, alike, duration)
    by_kernel: npt.NDArray[np.float64] = shortest[alike]
    return by_kernel


def _union_ns(start_ns: Nanoseconds, end_ns: Nanoseconds) -> int:
    """Time in which at least one of the spans is open."""
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    covered_until = np.concatenate(([start[0]], end[:-1]))
    return int(np.maximum(end - np.maximum(start, covered_until), 0).sum())


def _long_gaps_ns(segments: Segments) -> int:
    """Time of the gaps before queued work that are too long for a launch or a dependency."""
    length = segments.end_ns - segments.start_ns
    is_gap = segments.cause == CAUSE_CODE[Cause.DEVICE_GAP]
    return int(length[is_gap & (length >= MIN_PAUSE_NS)].sum())
