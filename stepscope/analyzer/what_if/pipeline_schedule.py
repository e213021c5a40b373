"""Replay of a pipeline schedule with more micro-batches or even stages, built from recorded micro-batch marks.

More micro-batches are other operators, which a replay of the recorded calls cannot contain. The schedule can: passes
in their order (`pipeline.schedules.replay`), each with its measured time outside the pipeline's own transfers, step by
step, because a pass that is slow once delays whoever waits for it then, which the mean of all steps would hide. What
lies between the last backward and the next first forward (optimizer, data loading, gradient reductions after the
schedule) keeps its measured time.

Smaller kernels are assumed to be as efficient, but a host has more of them to launch: the step never gets shorter
than the launches take. The closed form (P - 1) / (M + P - 1) that other tools report knows neither uneven passes, nor
transfers, nor what follows the schedule, nor the host.

A hand-over lies between the end of a pass and the beginning of the pass on another device that waits for its result:
the transfer, and the time until the waiting thread runs again. Between two passes of one device that need not wait are
the calls that send and receive, which take milliseconds on a busy machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.collectives.calls import P2P_KINDS
from stepscope.analyzer.intervals import contains, covered_time, intersect, union
from stepscope.analyzer.pipeline.schedules import (
    MicroBatch,
    Order,
    Pass,
    ScheduleKind,
    Task,
    interleaved_order,
    received_inputs,
    recognise_schedule,
    replay_schedule,
)
from stepscope.analyzer.pipeline.stages import Chain, observe_passes, shortest_message_ns
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.core.documents.what_if import Fix, WhatIfInput, WhatIfReport
from stepscope.core.vocabulary import EXPOSED_COMMUNICATION_CATEGORIES, Cause, Notice
from stepscope.trace.columns import NONE

PassTimes = Mapping[Task, float]
"""Duration of each pass of one step, ns."""

MICRO_BATCH_FACTORS = (2, 4)
"""Factors by which the number of micro-batches is raised: the usual next settings."""

MAX_MODEL_ERROR = 0.05
"""Largest relative difference between the replay and the measured step with which predictions are trusted."""

PIPELINE_CAUSES = frozenset({Cause.PIPELINE_BUBBLE, Cause.IMBALANCE})
"""Causes that a schedule replay can remove."""

_SCOPE = "the pipeline's schedule is replayed, with what follows it as it was measured"


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host time of a replayed step without waits, mean, ns: launches of the passes, and everything else."""

    passes_ns: float
    rest_ns: float

    @property
    def whole_ns(self) -> float:
        return self.passes_ns + self.rest_ns


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Recorded steps of one pipeline, ready to be replayed. Times are nanoseconds.

    Attributes:
        chain: its ranks.
        order: by device, its passes.
        pass_ns: of each step, by pass, its time outside transfers between stages.
        transfer_ns: from the end of a pass to the beginning of the one that waits for its result, mean.
        between_ns: from the end of a pass to the beginning of the device's next one if its inputs are ready, mean.
        tail_ns: the first rank's step outside the schedule, mean.
        period_ns: its whole step as measured, mean.
        steps: numbers of the steps.
        host: by device, host time of a step; empty without a device.
    """

    chain: Chain
    order: Order
    pass_ns: Sequence[PassTimes]
    transfer_ns: float
    between_ns: float
    tail_ns: float
    period_ns: float
    steps: list[int]
    host: Sequence[HostTime] = ()

    @property
    def num_stages(self) -> int:
        return 1 + max(task.stage for tasks in self.order for task in tasks)

    @property
    def num_micro_batches(self) -> int:
        return len({task.micro_batch for tasks in self.order for task in tasks})

    def step_ns(self) -> float:
        """Replayed step: schedule and tail, mean over the steps, or the host's time where that is longer.

        Raises:
            ValueError: the passes of the order wait for each other.
        """
        took = {"transfer_ns": self.transfer_ns, "between_ns": self.between_ns}
        ran = [replay_schedule(self.order, step, num_stages=self.num_stages, **took).period_ns for step in self.pass_ns]
        return max(float(np.mean(ran)) + self.tail_ns, self._busiest_host_ns)

    def is_host_bound(self, step_ns: float) -> bool:
        """Whether a step of this duration, from `step_ns()`, is limited by the host's launches."""
        return 0.0 < self._busiest_host_ns == step_ns

    @property
    def _busiest_host_ns(self) -> float:
        return max((host.whole_ns for host in self.host), default=0.0)

    def with_more_micro_batches(self, factor: int) -> PipelineSchedule | None:
        """The same batch in `factor` times as many micro-batches; None if the schedule's order for them is unknown.

        A pass takes its share of the time; what only the last micro-batch has (gradient reductions) stays.
        """
        order = _order_of(
            recognise_schedule(self.order), len(self.order), self.num_micro_batches * factor, self.num_stages
        )
        if order is None:
            return None
        last = self.num_micro_batches * factor - 1
        pass_ns = []
        for step in self.pass_ns:
            usual, extra = self._usual_and_extra(step)
            cut = {
                task: usual[task.kind, task.stage] / factor
                + (extra[task.kind, task.stage] if task.micro_batch == last else 0.0)
                for tasks in order
                for task in tasks
            }
            pass_ns.append(cut)
        host = [replace(own, passes_ns=own.passes_ns * factor) for own in self.host]
        return replace(self, order=order, pass_ns=pass_ns, host=host)

    def with_even_stages(self, keep: int | None = None) -> PipelineSchedule:
        """Every pass at the mean of all stages, except the passes of the stage `keep`."""
        pass_ns = []
        for step in self.pass_ns:
            alike: dict[tuple[Pass, int], list[float]] = defaultdict(list)
            for task, own in step.items():
                alike[task.kind, task.micro_batch].append(own)
            mean = {key: float(np.mean(times)) for key, times in alike.items()}
            evened = {t: own if t.stage == keep else mean[t.kind, t.micro_batch] for t, own in step.items()}
            pass_ns.append(evened)
        return replace(self, pass_ns=pass_ns)

    def _usual_and_extra(self, step: PassTimes) -> tuple[dict[tuple[Pass, int], float], dict[tuple[Pass, int], float]]:
        """By kind and stage: the time of a pass, and the extra time of the last micro-batch's."""
        last = self.num_micro_batches - 1
        before: dict[tuple[Pass, int], list[float]] = defaultdict(list)
        at_last: dict[tuple[Pass, int], float] = {}
        for task, own in step.items():
            if task.micro_batch == last:
                at_last[task.kind, task.stage] = own
            else:
                before[task.kind, task.stage].append(own)
        usual = {key: float(np.mean(before[key])) if before[key] else own for key, own in at_last.items()}
        return usual, {key: max(own - usual[key], 0.0) for key, own in at_last.items()}


def replay_schedules(schedules: Sequence[PipelineSchedule], causes: Collection[Cause] = ()) -> WhatIfReport:
    """Replay pipelines (replicas) unchanged, with more micro-batches and with even stages; figures are their means.

    Only the fixes for `causes` are replayed, or all that apply if it is empty.
    """
    measured = float(np.mean([s.period_ns for s in schedules])) / 1e6
    replayed = _step_ms(schedules)
    ideal = _step_ms([s.with_even_stages() for s in schedules])
    fixes = [fix for fix in _fixes(schedules, replayed, ideal) if not causes or fix.fix in causes]
    stages = range(schedules[0].num_stages)
    return WhatIfReport(
        measured_step_ms=measured,
        replayed_step_ms=replayed,
        replay_error=replayed / measured - 1.0,
        ideal_step_ms=ideal,
        slowdown=measured / ideal,
        fixes=sorted(fixes, key=lambda fix: fix.step_ms),
        by_rank={},
        by_stage={
            str(stage): _step_ms([s.with_even_stages(keep=stage) for s in schedules]) / ideal for stage in stages
        },
        warnings=[Notice("schedule_only", _SCOPE), *_warnings(schedules, replayed / measured - 1.0)],
        steps=schedules[0].steps,
        input=WhatIfInput.SCHEDULE,
    )


def _fixes(schedules: Sequence[PipelineSchedule], replayed_ms: float, even_ms: float) -> list[Fix]:
    fixes: list[Fix] = []
    for factor in MICRO_BATCH_FACTORS:
        finer = [cut for s in schedules if (cut := s.with_more_micro_batches(factor)) is not None]
        steps_ns = [s.step_ns() for s in finer]
        step = float(np.mean(steps_ns)) / 1e6 if len(finer) == len(schedules) else math.inf
        if step < min([replayed_ms, *(fix.step_ms for fix in fixes)]):  # a host may be too slow for more micro-batches
            now = schedules[0].num_micro_batches
            change = f"the same batch in {now * factor} micro-batches instead of {now}"
            binds = Cause.HOST_BOUND if any(map(PipelineSchedule.is_host_bound, finer, steps_ns)) else None
            fixes.append(Fix(Cause.PIPELINE_BUBBLE, step, replayed_ms / step, change, binds_next=binds))
    if even_ms < replayed_ms:
        ranks = []
        for schedule in schedules:
            busy = [sum(step[task] for step in schedule.pass_ns for task in tasks) for tasks in schedule.order]
            ranks += [rank for rank, own in zip(schedule.chain, busy, strict=True) if own > np.mean(busy)]
        change = "compute cut evenly over the stages"
        fixes.append(Fix(Cause.IMBALANCE, even_ms, replayed_ms / even_ms, change, ranks=sorted(ranks)))
    return fixes


def _step_ms(schedules: Sequence[PipelineSchedule]) -> float:
    return float(np.mean([s.step_ns() for s in schedules])) / 1e6


def _warnings(schedules: Sequence[PipelineSchedule], error: float) -> list[Notice]:
    notices = model_error_notices(error)
    finer = schedules[0].with_more_micro_batches(MICRO_BATCH_FACTORS[0])
    if finer is not None and finer.is_host_bound(step_ns := finer.step_ns()):
        late = f"a host takes {step_ns / 1e6:,.1f} ms to launch a step of {finer.num_micro_batches} micro-batches"
        notices.append(Notice("no_pipeline_fix", f"more micro-batches gain little or nothing: {late}"))
    elif finer is None:
        unknown = f"how {recognise_schedule(schedules[0].order)} orders more micro-batches is unknown"
        notices.append(Notice("no_pipeline_fix", f"no fix for the pipeline bubble: {unknown}"))
    return notices


def model_error_notices(error: float) -> list[Notice]:
    """Warning about a what-if replay that is too far from the measured step; `error` is relative."""
    if abs(error) <= MAX_MODEL_ERROR:
        return []
    wrong = f"the replay misses the measured step by {error:+.1%}: something it does not know decides, trust no gain"
    return [Notice("replay_error", wrong)]


def _order_of(schedule: ScheduleKind, num_devices: int, num_micro_batches: int, num_stages: int) -> Order | None:
    """Order in which this schedule runs so many micro-batches; None if that is unknown."""
    num_chunks = num_stages // num_devices
    if schedule in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED):
        return interleaved_order(num_devices, num_micro_batches, num_chunks)
    if schedule not in (ScheduleKind.GPIPE, ScheduleKind.LOOPED_BFS):
        return None
    order = []
    for device in range(num_devices):
        stages = range(device, num_stages, num_devices)
        forwards = [Task(Pass.FORWARD, stage, m) for stage in stages for m in range(num_micro_batches)]
        backwards = [Task(Pass.BACKWARD, stage, m) for stage in reversed(stages) for m in range(num_micro_batches)]
        order.append(forwards + backwards)
    return order


def add_micro_batch_fixes(
    report: WhatIfReport, schedules: Sequence[PipelineSchedule], causes: Collection[Cause]
) -> WhatIfReport:
    """Add the fixes that only the schedule can predict, more micro-batches, to a replay of the same job's calls."""
    if causes and Cause.PIPELINE_BUBBLE not in causes:
        return report
    by_schedule = replay_schedules(schedules, [Cause.PIPELINE_BUBBLE])
    others = [notice for notice in report.warnings if notice.code != "no_pipeline_fix"]
    unchanged = f"{by_schedule.replayed_step_ms:,.1f} ms with nothing changed ({by_schedule.replay_error:+.1%})"
    scope = f"the pipeline bubble is from the replay of the schedule alone: {unchanged}"
    notices = [Notice("schedule_only", scope)] if by_schedule.fixes else []
    return replace(
        report,
        fixes=sorted([*report.fixes, *by_schedule.fixes], key=lambda fix: fix.step_ms),
        warnings=[*others, *notices, *_warnings(schedules, by_schedule.replay_error)],
    )


class PassRun(NamedTuple):
    """One recorded pipeline pass to replay: its end, and its time without waits for other stages, ns."""

    end_ns: int
    own_ns: float

    @property
    def begin_ns(self) -> float:
        """Start of its compute, whether it was waited for before the mark or inside it."""
        return self.end_ns - self.own_ns


_PassRuns = Mapping[Task, PassRun]


def recorded_schedule(chain: Chain, views: Mapping[int, RankView]) -> PipelineSchedule | None:
    """Pipeline schedule to replay, from its ranks' micro-batch marks; None if these do not cover whole steps."""
    ranks = [views[rank] for rank in chain]
    if any(not view.micro_batches or any(mark.busy_ns == 0 for mark in view.micro_batches) for view in ranks):
        return None
    observed = observe_passes(chain, views)
    if observed is None:
        return None
    length_ns = _steps(ranks[0])
    ran: dict[int, dict[Task, PassRun]] = defaultdict(dict)  # by step
    for place, view in enumerate(ranks):
        for mark, own in zip(view.micro_batches, _pass_times(view), strict=True):
            ran[mark.step][mark.task_of(place)] = PassRun(mark.end_ns, own)
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
        transfer_ns=shortest_message_ns(ranks) if transfer is None else transfer,
        between_ns=between,
        tail_ns=period - extent,
        period_ns=period,
        steps=list(length_ns),
        host=[_launching_ns(view) for view in ranks],
    )
    if schedule.tail_ns < 0:  # marks outside their steps
        return None
    try:
        schedule.step_ns()
    except ValueError:
        return None
    return schedule


def between_passes(order: Order, steps: Sequence[_PassRuns]) -> tuple[float | None, float]:
    """What-if of a pipeline: mean ns of a hand-over between pipeline passes, and between two others.

    The first is None if no pass waits for one. Means over both directions, in which clock offsets cancel. The first
    pass of a device in a step is left out, as it may be late for reasons of its own.
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
            inputs = received_inputs(task, device_of_stage, len(device_of_stage))
            ready = max((made.get((is_grad, stage, task.micro_batch), 0) for is_grad, stage in inputs), default=0)
            free = step[before].end_ns
            (waited if ready > free else others).append(step[task].begin_ns - max(ready, free))
    between = max(float(np.mean(others)), 0.0) if others else 0.0
    return max(float(np.mean(waited)), 0.0) if waited else None, between


def _launching_ns(view: RankView) -> HostTime:
    """Host time of a step's calls without waits; zero without a device.

    Traces may begin long before the first step, with the construction of the model, and end after the last.
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
    """Duration of each step by number, ns, without the last one (which contains the profiler's end) if others exist."""
    numbers, lengths = view.window.index.tolist(), np.diff(view.step_bounds_ns).tolist()
    if len(numbers) != len(lengths):  # steps were cut or merged
        return {}
    every = dict(zip(numbers, lengths, strict=True))
    if len(every) > 1:
        every.popitem()
    return every


def _pass_times(view: RankView) -> list[float]:
    """Time of each mark without waits for other stages, ns; collectives inside it belong to it."""
    start = np.array([mark.start_ns for mark in view.micro_batches], np.int64)
    end = np.array([mark.end_ns for mark in view.micro_batches], np.int64)
    exposed = view.segments.intervals_of(*EXPOSED_COMMUNICATION_CATEGORIES)
    others = [call for call in view.calls if call.kind not in P2P_KINDS]
    collective = intersect(exposed, union([c.start_ns for c in others], [c.end_ns for c in others]))
    own = end - start - covered_time(start, end, exposed) + covered_time(start, end, collective)
    times: list[float] = own.astype(np.float64).tolist()
    return times


def _extent(view: RankView, num_passes: int, steps: Collection[int]) -> float | None:
    """Time from a step's first pass to the end of its last, mean over the steps; None if a step lacks passes."""
    by_step: dict[int, list[MicroBatch]] = defaultdict(list)
    for mark in view.micro_batches:
        by_step[mark.step].append(mark)
    if not steps or any(len(by_step[step]) != num_passes for step in steps):
        return None
    extents = [max(m.end_ns for m in by_step[step]) - min(m.start_ns for m in by_step[step]) for step in steps]
    return float(np.mean(extents))
