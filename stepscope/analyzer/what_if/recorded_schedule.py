"""Pipeline schedule of a job as recorded: its passes, how long each took, and what lay between.

Between the end of a pass and the beginning of the one that waits for its result on another device lies a hand-over:
the transfer, and until the waiting thread has its core again. Between two passes of one device that need not wait lie
the calls that send and receive: next to nothing, but on a busy machine milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stepscope.analyzer.alignment.calls import P2P_KINDS
from stepscope.analyzer.intervals import contains, covered_time, intersect, union
from stepscope.analyzer.pipeline.schedules import MicroBatch, Order, Pass, Task, received
from stepscope.analyzer.pipeline.stages import Chain, observe
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.pipeline_schedule import HostTime, PipelineSchedule
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.core.vocabulary.categories import EXPOSED_COMMUNICATION_CATEGORIES
from stepscope.core.vocabulary.causes import Cause
from stepscope.trace.columns import NONE


@dataclass(frozen=True, slots=True)
class Ran:
    """One pass as it ran: `own_ns` is its time without waiting for other stages."""

    end_ns: int
    own_ns: float

    @property
    def begin_ns(self) -> float:
        """When it computed, whether it was waited for before the mark or inside it."""
        return self.end_ns - self.own_ns


_Step = Mapping[Task, Ran]


def schedule_of(chain: Chain, views: Mapping[int, RankView]) -> PipelineSchedule | None:
    """A job's pipeline from its marks; None where the marks do not tell whole steps.

    Args:
        chain: its ranks.
        views: on one clock.
    """
    ranks = [views[rank] for rank in chain.ranks]
    if any(not view.micro_batches or any(mark.busy_ns == 0 for mark in view.micro_batches) for view in ranks):
        return None
    observed = observe(chain, views)
    if observed is None:
        return None
    length_ns = _steps(ranks[0])
    ran = _passes(ranks)
    steps = [ran[number] for number in length_ns]
    extent = _extent(ranks[0], len(observed.order[0]), length_ns)
    passes = [task for tasks in observed.order for task in tasks]
    if not steps or extent is None or any(task not in step for step in steps for task in passes):
        return None
    if {task.stage for task in passes} != set(range(1 + max(task.stage for task in passes))):
        return None
    period = float(np.mean(list(length_ns.values())))
    transfer, between = between_passes(observed.order, steps)
    schedule = PipelineSchedule(
        chain=chain,
        order=observed.order,
        pass_ns=[{task: step[task].own_ns for task in passes} for step in steps],
        transfer_ns=_shortest_call_ns(ranks) if transfer is None else transfer,
        between_ns=between,
        tail_ns=period - extent,
        period_ns=period,
        steps=list(length_ns),
        host=[_launching_ns(view) for view in ranks],
    )
    if schedule.tail_ns < 0:  # marks that do not lie inside their steps
        return None
    try:
        schedule.step_ns()
    except ValueError:
        return None
    return schedule


def _passes(ranks: Sequence[RankView]) -> Mapping[int, _Step]:
    """By step, all ranks' passes."""
    ran: dict[int, dict[Task, Ran]] = defaultdict(dict)
    for place, view in enumerate(ranks):
        for mark, own in zip(view.micro_batches, _pass_times(view), strict=True):
            ran[mark.step][_task_of(mark, place)] = Ran(mark.end_ns, own)
    return ran


def between_passes(order: Order, steps: Sequence[_Step]) -> tuple[float | None, float]:
    """What a hand-over takes (None where nobody waits for one), and what lies between two passes else; ns.

    Means, both ways, so that what clocks are off cancels. What a device runs first in a step may come late for reasons
    of its own: it is left out.
    """
    device_of_stage = {task.stage: device for device, tasks in enumerate(order) for task in tasks}
    waited: list[float] = []
    others: list[float] = []
    for step in steps:
        made = {
            (task.kind.sends_gradient, task.stage, task.micro_batch): ran.end_ns
            for task, ran in step.items()
            if task.kind is not Pass.BACKWARD_WEIGHT
        }
        for before, task in (pair for tasks in order for pair in pairwise(tasks)):
            inputs = received(task, device_of_stage, len(device_of_stage))
            ready = max((made.get((is_grad, stage, task.micro_batch), 0) for is_grad, stage in inputs), default=0)
            free = step[before].end_ns
            (waited if ready > free else others).append(step[task].begin_ns - max(ready, free))
    between = max(float(np.mean(others)), 0.0) if others else 0.0
    return max(float(np.mean(waited)), 0.0) if waited else None, between


def _shortest_call_ns(ranks: Sequence[RankView]) -> float:
    lengths = (call.end_ns - call.start_ns for view in ranks for call in view.calls if call.kind in P2P_KINDS)
    return float(min(lengths, default=0))


def _launching_ns(view: RankView) -> HostTime:
    """What a device's host takes for a step's calls by itself, without what it waits for; nothing without a device.

    Traces may begin long before the first step, with the model's making, and end after the last.
    """
    spans = [mark.launched_ns for mark in view.micro_batches if mark.launched_ns is not None]
    if view.graph is None or not spans:
        return HostTime(0.0, 0.0)
    host, device = view.graph.host, view.graph.device
    launching = device.launched_by[(device.step != NONE) & (device.launched_by != NONE)]
    in_steps = slice(int(launching.min()) + 1, int(launching.max()) + 1) if len(launching) else slice(0)
    own = host.work_ns[in_steps, HOST_COLUMN[Cause.HOST_BOUND]]
    under_marks = contains(union([start for start, _ in spans], [end for _, end in spans]), host.key_ns[in_steps])
    inside, whole = float(own[under_marks].sum()), float(own.sum())
    num_steps = len(view.window.index)
    return HostTime(inside / num_steps, (whole - inside) / num_steps)


def _steps(view: RankView) -> dict[int, int]:
    """Length of each step by its number. The last one holds the profiler's end: it counts only when it is alone."""
    numbers, lengths = view.window.index.tolist(), np.diff(view.step_bounds_ns).tolist()
    if len(numbers) != len(lengths):  # steps that were cut or merged: which length is whose is not known
        return {}
    every = dict(zip(numbers, lengths, strict=True))
    if len(every) > 1:
        every.popitem()
    return every


def _pass_times(view: RankView) -> list[float]:
    """Of each mark: its time without waiting for other stages; collectives inside it belong to it."""
    start = np.array([mark.start_ns for mark in view.micro_batches], np.int64)
    end = np.array([mark.end_ns for mark in view.micro_batches], np.int64)
    exposed = view.segments.intervals_of(*EXPOSED_COMMUNICATION_CATEGORIES)
    others = [call for call in view.calls if call.kind not in P2P_KINDS]
    collective = intersect(exposed, union([c.start_ns for c in others], [c.end_ns for c in others]))
    own = end - start - covered_time(start, end, exposed) + covered_time(start, end, collective)
    times: list[float] = own.astype(np.float64).tolist()
    return times


def _task_of(mark: MicroBatch, place: int) -> Task:
    """A mark that does not name its stage is of the only one that its rank holds."""
    return mark.task if mark.task.stage != NONE else replace(mark.task, stage=place)


def _extent(view: RankView, num_passes: int, steps: Collection[int]) -> float | None:
    """From a step's first pass to the end of its last, mean over the steps; None when one lacks some."""
    by_step: dict[int, list[MicroBatch]] = defaultdict(list)
    for mark in view.micro_batches:
        by_step[mark.step].append(mark)
    if not steps or any(len(by_step[step]) != num_passes for step in steps):
        return None
    extents = [max(m.end_ns for m in by_step[step]) - min(m.start_ns for m in by_step[step]) for step in steps]
    return float(np.mean(extents))
