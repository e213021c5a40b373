"""View of one rank: the small result of the per-rank analysis, input of the cross-rank analysis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.calls import Call
from stepscope.analyzer.job_time.floor import DeviceFloor
from stepscope.analyzer.kernels.rank_kernels import RankKernels
from stepscope.analyzer.ledger.idle_time import HostWork
from stepscope.analyzer.ledger.segments import CAUSE_CODE, Segments, TimeTable
from stepscope.analyzer.ledger.steps import Window
from stepscope.analyzer.pipeline.schedules import MicroBatch
from stepscope.analyzer.trace_quality import TraceFacts
from stepscope.analyzer.what_if.host_graph import HostTimeline
from stepscope.analyzer.what_if.rank_graph import RankGraph
from stepscope.core.documents.analysis import KernelTime, RooflineCoverage
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, COMPUTE_CATEGORIES, Notice
from stepscope.trace.columns import TraceHeader

NUM_COMPARED_CODES = len(CAUSE_CODE) + 2
"""Number of cause codes with TO_ATTRIBUTE and COMPUTE_CODE."""

COMPUTE_CODE = NUM_COMPARED_CODES - 1
"""Code of all compute categories together when ranks are compared."""

_IS_COMPUTE = np.isin(np.arange(len(CATEGORY_ORDER)), [CATEGORY_CODE[h] for h in COMPUTE_CATEGORIES])


@dataclass(frozen=True, slots=True)
class RankView:
    """One analysed rank: a few hundred kilobytes however large the trace was.

    Attributes:
        segments: time breakdown of the window; communication-only time is not split yet.
        calls: its communication calls in issue order.
        micro_batches: marked forwards and backwards in launch order; empty without marks.
        optimizer_ns, backward_ns: time by step attributed to kernels of the optimizer, and to those that autograd's
            thread launched; without a device, under the optimizer's annotations, and 0.
        kernels: those with most time, by name.
        kernel_sums: kernels and copies, as sums that can be added over ranks.
        on_device: whether the breakdown is of a device (else of the host's main thread).
        graph: input of a replay (on the rank's own clock); None without steps or a device, or if too large.
        timeline: input of a replay without a device.
        floor: kernels of a step back to back; None without a device or a step.
    """

    rank: int
    header: TraceHeader
    window: Window
    segments: Segments
    calls: list[Call]
    hidden_communication_ns: int
    micro_batches: list[MicroBatch]
    optimizer_ns: npt.NDArray[np.int64]
    backward_ns: npt.NDArray[np.int64]
    kernels: list[KernelTime]
    kernel_sums: RankKernels
    coverage: RooflineCoverage
    step_flops: float | None
    executed_flops: float | None
    peak_flops: float | None
    facts: TraceFacts
    host_work: HostWork
    on_device: bool
    notices: list[Notice]
    graph: RankGraph | None = None
    timeline: HostTimeline | None = None
    floor: DeviceFloor | None = None

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window.end_ns - self.window.start_ns

    @property
    def step_bounds_ns(self) -> npt.NDArray[np.int64]:
        """Starts of the steps and the end of the window."""
        return self.window.step_bounds_ns


def comparison_table(view: RankView) -> TimeTable:
    """Time by cause, with all compute as one, for comparing ranks."""
    codes = np.where(_IS_COMPUTE[view.segments.category], COMPUTE_CODE, view.segments.cause)
    return TimeTable(view.segments, codes, NUM_COMPARED_CODES)


def compute_by_step(view: RankView) -> npt.NDArray[np.float64]:
    """Compute time in each step, nanoseconds."""
    bounds = view.step_bounds_ns
    return comparison_table(view).between(bounds[:-1], bounds[1:])[:, COMPUTE_CODE]
