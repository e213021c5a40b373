"""Captured steps of a job: whole steps of one capture, their time by cause, and what the capture shows of the floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.blame.root_causes import CauseTable
from stepscope.analyzer.job_time.steps import Floats
from stepscope.analyzer.pipeline.bubble import PipelineParts
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import WhatIf
from stepscope.core.vocabulary import Cause

_TO_PAGEABLE = "DtoH (Device -> Pageable)"


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """Whole steps of one capture; arrays are by step, times in ms.

    Attributes:
        index: number of each step.
        step_ms: mean over the ranks.
        cause_ms: by step and cause, in CAUSE_ORDER; sums to the step.
        floor_ms: kernels of a step back to back, of the rank with most; None without a device.
        paused_ms: mean of a step's pauses inside kernels and before queued ones, of the rank with most.
        pageable_bytes: copied to pageable host memory in the whole capture, of the rank with most.
        without_blocking_ms: replayed step without blocking calls; None where not replayed.
        without_straggler: the same without the straggler's delay, as a share of the captured step.
        evened_ms: what a step of the devices' work is shorter if that is cut evenly over the ranks; None where unknown.
        is_one_clock: all ranks have the same time, and end a step together unless something holds one of them up.
    """

    index: list[int]
    step_ms: Floats
    cause_ms: Floats
    floor_ms: float | None
    paused_ms: float
    pageable_bytes: int
    without_blocking_ms: float | None
    without_straggler: float | None = None
    evened_ms: float | None = None
    is_one_clock: bool = False

    @property
    def on_device(self) -> bool:
        return self.floor_ms is not None


def captured_steps(
    views: Mapping[int, RankView],
    table: CauseTable,
    what_if: Sequence[WhatIf],
    pipelines: Sequence[PipelineParts] = (),
    *,
    is_one_clock: bool = False,
) -> CapturedSteps:
    """The whole steps of a capture; views on the job's clock."""
    num = min(table.num_whole, len(table.step_ns))
    whole_ms = [view.window.whole_step_ns[:num] / 1e6 for view in views.values()]
    num = min(num, *(len(own) for own in whole_ms))
    step_ms = np.mean([own[:num] for own in whole_ms], axis=0)
    shares = table.time_ns[:num] / np.maximum(table.step_ns[:num], 1.0)[:, None]
    floors = [view.floor for view in views.values() if view.floor is not None]
    evened_ms = None
    if floors and pipelines:
        evened_ms = float(np.mean([parts.evened_ns for parts in pipelines])) / 1e6
    elif len(floors) == len(views) > 1:
        kernels_ns = [floor.kernels_ns for floor in floors]
        evened_ms = (max(kernels_ns) - float(np.mean(kernels_ns))) / 1e6
    copies = [
        sum(copy.num_bytes for copy in view.kernel_sums.copies if copy.kind == _TO_PAGEABLE) for view in views.values()
    ]
    straggler = [
        gain.step_ms / gain.measured_step_ms
        for gain in what_if
        if gain.fix is Cause.STRAGGLER and gain.measured_step_ms
    ]
    return CapturedSteps(
        index=next(iter(views.values())).window.index[:num].tolist(),
        step_ms=step_ms,
        cause_ms=shares * step_ms[:, None],
        floor_ms=max(floor.kernels_ns for floor in floors) / 1e6 if floors else None,
        paused_ms=max((floor.paused_ns for floor in floors), default=0) / 1e6,
        pageable_bytes=max(copies, default=0),
        without_blocking_ms=next((gain.step_ms for gain in what_if if gain.fix is Cause.SYNCHRONIZATION), None),
        without_straggler=straggler[0] if straggler else None,
        evened_ms=evened_ms,
        is_one_clock=is_one_clock,
    )
