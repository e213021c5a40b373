"""What would another cut of the batch, or of the model, make of a pipelined step on CPUs? By replay of its schedule.

More micro-batches are other operators, which no replay of the recorded ones can tell. The schedule can: passes in their
order, each with its measured time outside the pipeline's own transfers. What lies between the last backward and the
next first forward (optimizer, loader, gradients reduced after the schedule) is kept as it was measured. Others print
the closed form (P-1)/(M+P-1) of the schedule that the configuration names: it knows neither uneven passes, nor
transfers, nor what follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.analyzer.intervals import covered_time, intersect, union
from stepscope.analyzer.pipeline.chains import Chain
from stepscope.analyzer.pipeline.replay import replay
from stepscope.analyzer.pipeline.schedules import Schedule, interleaved_order, recognise
from stepscope.analyzer.pipeline.stage_times import observe
from stepscope.analyzer.pipeline.tasks import MicroBatch, Order, Pass, Task
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice
from stepscope.core.causes import Cause
from stepscope.core.headings import EXPOSED_COMMUNICATION_HEADINGS
from stepscope.core.what_if import Fix, WhatIfInput, WhatIfReport
from stepscope.trace.columns import NONE

FINER_CUTS = (2, 4)
"""How many times as many micro-batches are tried: the usual next settings."""

TRUSTED_ERROR = 0.05
"""A replay that misses the measured step by more is no ground for predictions (as for the graph of GPU jobs)."""

FIXED_CAUSES = frozenset({Cause.PIPELINE_BUBBLE, Cause.IMBALANCE})
"""What a schedule replay can remove."""


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """One pipeline's step, ready to be replayed. Times are nanoseconds, means over the steps.

    Attributes:
        chain: its ranks.
        order: by device, its passes.
        pass_ns: by pass, its time outside transfers between stages.
        transfer_ns: the shortest transfer between two stages.
        tail_ns: the first rank's step outside the schedule.
        period_ns: its whole step as measured.
        steps: the numbers of the steps.
    """

    chain: Chain
    order: Order
    pass_ns: Mapping[Task, float]
    transfer_ns: float
    tail_ns: float
    period_ns: float
    steps: list[int]

    @property
    def num_stages(self) -> int:
        return 1 + max(task.stage for tasks in self.order for task in tasks)

    @property
    def num_micro_batches(self) -> int:
        return len({task.micro_batch for tasks in self.order for task in tasks})

    def step_ns(self) -> float:
        """The replayed step: schedule and tail.

        Raises:
            ValueError: the order waits for itself.
        """
        ran = replay(self.order, self.pass_ns, num_stages=self.num_stages, transfer_ns=self.transfer_ns)
        return ran.period_ns + self.tail_ns

    def finer(self, times: int) -> PipelineSchedule | None:
        """The same batch in so many times as many micro-batches; None for a schedule that cannot be continued.

        A pass takes its part of the time; what only the last micro-batch has (gradients reduced over replicas) stays.
        """
        order = _order_of(recognise(self.order), len(self.order), self.num_micro_batches * times, self.num_stages)
        if order is None:
            return None
        usual, extra = self._usual_and_extra()
        last = self.num_micro_batches * times - 1
        pass_ns = {
            task: usual[task.kind, task.stage] / times
            + (extra[task.kind, task.stage] if task.micro_batch == last else 0.0)
            for tasks in order
            for task in tasks
        }
        return replace(self, order=order, pass_ns=pass_ns)

    def evened(self, keep: int | None = None) -> PipelineSchedule:
        """Every pass at the mean of all stages, but the passes of the stage to keep."""
        alike: dict[tuple[Pass, int], list[float]] = defaultdict(list)
        for task, own in self.pass_ns.items():
            alike[task.kind, task.micro_batch].append(own)
        pass_ns = {
            task: own if task.stage == keep else float(np.mean(alike[task.kind, task.micro_batch]))
            for task, own in self.pass_ns.items()
        }
        return replace(self, pass_ns=pass_ns)

    def _usual_and_extra(self) -> tuple[dict[tuple[Pass, int], float], dict[tuple[Pass, int], float]]:
        """By kind and stage: a pass's time, and what the last micro-batch's takes more."""
        last = self.num_micro_batches - 1
        before: dict[tuple[Pass, int], list[float]] = defaultdict(list)
        at_last: dict[tuple[Pass, int], float] = {}
        for task, own in self.pass_ns.items():
            if task.micro_batch == last:
                at_last[task.kind, task.stage] = own
            else:
                before[task.kind, task.stage].append(own)
        usual = {key: float(np.mean(before[key])) if before[key] else own for key, own in at_last.items()}
        return usual, {key: max(own - usual[key], 0.0) for key, own in at_last.items()}


def schedule_of(chain: Chain, views: Mapping[int, RankView]) -> PipelineSchedule | None:
    """A CPU job's pipeline from its marks; None on devices and where the marks do not tell whole steps."""
    ranks = [views[rank] for rank in chain.ranks]
    if any(view.on_device or not view.micro_batches for view in ranks):
        return None
    observed = observe(chain, views)
    if observed is None:
        return None
    length_ns = _steps(ranks[0])
    if not length_ns:
        return None
    spent: dict[Task, list[float]] = defaultdict(list)
    for place, view in enumerate(ranks):
        for mark, own in zip(view.micro_batches, _pass_times(view), strict=True):
            if mark.step in length_ns:
                spent[_task_of(mark, place)].append(own)
    extent = _extent(ranks[0], len(observed.order[0]), length_ns)
    if extent is None or any(task not in spent for tasks in observed.order for task in tasks):
        return None
    period = float(np.mean(list(length_ns.values())))
    tail = period - extent
    lengths = [c.end_ns - c.start_ns for view in ranks for c in view.calls if c.kind in P2P_KINDS]
    schedule = PipelineSchedule(
        chain=chain,
        order=observed.order,
        pass_ns={task: float(np.mean(spent[task])) for tasks in observed.order for task in tasks},
        transfer_ns=float(min(lengths, default=0)),
        tail_ns=tail,
        period_ns=period,
        steps=list(length_ns),
    )
    if tail < 0:  # marks that do not lie inside their steps
        return None
    try:
        schedule.step_ns()
    except ValueError:
        return None
    return schedule


def replay_schedules(schedules: Sequence[PipelineSchedule], causes: Collection[Cause] = ()) -> WhatIfReport:
    """Nothing changed, finer micro-batches, even stages. Of several pipelines (replicas) the mean.

    Args:
        schedules: one a pipeline, at least one.
        causes: the fixes; all that apply when empty.
    """
    measured = float(np.mean([s.period_ns for s in schedules])) / 1e6
    replayed = _step_ms(schedules)
    ideal = _step_ms([s.evened() for s in schedules])
    fixes = [fix for fix in _fixes(schedules, replayed) if not causes or fix.fix in causes]
    stages = range(schedules[0].num_stages)
    return WhatIfReport(
        measured_step_ms=measured,
        replayed_step_ms=replayed,
        replay_error=replayed / measured - 1.0,
        ideal_step_ms=ideal,
        slowdown=measured / ideal,
        fixes=sorted(fixes, key=lambda fix: fix.step_ms),
        by_rank={},
        by_stage={str(stage): _step_ms([s.evened(keep=stage) for s in schedules]) / ideal for stage in stages},
        warnings=_warnings(schedules, replayed / measured - 1.0),
        steps=schedules[0].steps,
        input=WhatIfInput.SCHEDULE,
    )


def _fixes(schedules: Sequence[PipelineSchedule], replayed_ms: float) -> list[Fix]:
    fixes = []
    for times in FINER_CUTS:
        finer = [cut for s in schedules if (cut := s.finer(times)) is not None]
        if len(finer) == len(schedules):
            now = schedules[0].num_micro_batches
            change = f"the same batch in {now * times} micro-batches instead of {now}"
            step = _step_ms(finer)
            fixes.append(Fix(Cause.PIPELINE_BUBBLE, change, step, replayed_ms / step))
    even = _step_ms([s.evened() for s in schedules])
    if even < replayed_ms:
        ranks = sorted(rank for s in schedules for rank in _heavy(s))
        fixes.append(Fix(Cause.IMBALANCE, "compute cut evenly over the stages", even, replayed_ms / even, ranks))
    return fixes


def _heavy(schedule: PipelineSchedule) -> list[int]:
    """The ranks that compute more than the mean."""
    busy = [sum(schedule.pass_ns[task] for task in tasks) for tasks in schedule.order]
    return [rank for rank, own in zip(schedule.chain.ranks, busy, strict=True) if own > np.mean(busy)]


def _step_ms(schedules: Sequence[PipelineSchedule]) -> float:
    return float(np.mean([s.step_ns() for s in schedules])) / 1e6


def _warnings(schedules: Sequence[PipelineSchedule], error: float) -> list[Notice]:
    told = "the pipeline's schedule is replayed, with what follows it as it was measured"
    notices = [Notice("schedule_only", told)]
    if abs(error) > TRUSTED_ERROR:
        wrong = f"the replay misses the measured step by {error:+.1%}: something it does not know decides"
        notices.append(Notice("replay_error", f"{wrong}, trust no gain"))
    if schedules[0].finer(FINER_CUTS[0]) is None:
        unknown = (
            f"no fix for pipeline_bubble: how {recognise(schedules[0].order)} orders more micro-batches is unknown"
        )
        notices.append(Notice("no_pipeline_fix", unknown))
    return notices


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
    exposed = view.segments.intervals_of(*EXPOSED_COMMUNICATION_HEADINGS)
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
    if any(len(by_step[step]) != num_passes for step in steps):
        return None
    extents = [max(m.end_ns for m in by_step[step]) - min(m.start_ns for m in by_step[step]) for step in steps]
    return float(np.mean(extents))


def _order_of(schedule: Schedule, num_devices: int, num_micro_batches: int, num_stages: int) -> Order | None:
    """The order in which this schedule runs so many micro-batches."""
    num_chunks = num_stages // num_devices
    if schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        return interleaved_order(num_devices, num_micro_batches, num_chunks)
    if schedule not in (Schedule.GPIPE, Schedule.LOOPED_BFS):
        return None
    order = []
    for device in range(num_devices):
        stages = range(device, num_stages, num_devices)
        forwards = [Task(Pass.FORWARD, stage, m) for stage in stages for m in range(num_micro_batches)]
        backwards = [Task(Pass.BACKWARD, stage, m) for stage in reversed(stages) for m in range(num_micro_batches)]
        order.append(forwards + backwards)
    return order
