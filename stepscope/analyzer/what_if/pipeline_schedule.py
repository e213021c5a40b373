"""Replay of a pipeline's schedule with another cut of the batch or of the model.

Pipeline schedule: More micro-batches are other operators, which no replay of the recorded ones can tell. The schedule
can: passes in their order, each with its measured time outside the pipeline's own transfers, step by step: a pass
that was slow once holds up whoever waits for it then, which the mean of all steps would hide. What lies between the
last backward and the next first forward (optimizer, loader, gradients reduced after the schedule) is kept as it was
measured. Smaller kernels are taken to be as efficient, but a host has as many more to launch: below what that takes
no cut goes. Others print the closed form (P-1)/(M+P-1) of the schedule that the configuration names: it knows neither
uneven passes, nor transfers, nor what follows, nor the host.

Two replays: The calls and kernels hold everything that was measured; only the schedule can be continued with more
micro-batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.pipeline.schedules import Order, Pass, Schedule, Task, interleaved_order, recognise, replay
from stepscope.analyzer.pipeline.stages import Chain
from stepscope.core.documents.evidence import Notice
from stepscope.core.documents.what_if import Fix, WhatIfInput, WhatIfReport
from stepscope.core.vocabulary.causes import Cause

PassTimes = Mapping[Task, float]
"""One step's passes, ns."""

FINER_CUTS = (2, 4)
"""How many times as many micro-batches are tried: the usual next settings."""

TRUSTED_ERROR = 0.05
"""A replay that misses the measured step by more is no ground for predictions (as for the graph of GPU jobs)."""

FIXED_CAUSES = frozenset({Cause.PIPELINE_BUBBLE, Cause.IMBALANCE})
"""What a schedule replay can remove."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a host takes for a step by itself, mean, ns: to launch the passes, and for all else."""

    passes_ns: float
    rest_ns: float

    @property
    def whole_ns(self) -> float:
        return self.passes_ns + self.rest_ns


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """One pipeline's steps, ready to be replayed. Times are nanoseconds.

    Attributes:
        chain: its ranks.
        order: by device, its passes.
        pass_ns: of each step, by pass, its time outside transfers between stages.
        transfer_ns: from the end of a pass to the beginning of the one that waits for its result, mean.
        between_ns: from the end of a pass to the beginning of the device's next one, whose inputs are there, mean.
        tail_ns: the first rank's step outside the schedule, mean.
        period_ns: its whole step as measured, mean.
        steps: the numbers of the steps.
        host: by device, what launching a step takes its host; nothing without a device.
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
        """The replayed step: schedule and tail, mean over the steps, or what the host takes where that is longer.

        Raises:
            ValueError: the order waits for itself.
        """
        took = {"transfer_ns": self.transfer_ns, "between_ns": self.between_ns}
        ran = [replay(self.order, step, num_stages=self.num_stages, **took).period_ns for step in self.pass_ns]
        return max(float(np.mean(ran)) + self.tail_ns, self._busiest_host_ns)

    def is_host_bound(self, step_ns: float) -> bool:
        """Whether launching the step, which takes that long by `step_ns()`, is what takes it."""
        return 0.0 < self._busiest_host_ns == step_ns

    @property
    def _busiest_host_ns(self) -> float:
        return max((host.whole_ns for host in self.host), default=0.0)

    def finer(self, times: int) -> PipelineSchedule | None:
        """The same batch in so many times as many micro-batches; None for a schedule that cannot be continued.

        A pass takes its part of the time; what only the last micro-batch has (gradients reduced over replicas) stays.
        """
        order = _order_of(recognise(self.order), len(self.order), self.num_micro_batches * times, self.num_stages)
        if order is None:
            return None
        last = self.num_micro_batches * times - 1
        pass_ns = []
        for step in self.pass_ns:
            usual, extra = self._usual_and_extra(step)
            cut = {
                task: usual[task.kind, task.stage] / times
                + (extra[task.kind, task.stage] if task.micro_batch == last else 0.0)
                for tasks in order
                for task in tasks
            }
            pass_ns.append(cut)
        host = [replace(own, passes_ns=own.passes_ns * times) for own in self.host]
        return replace(self, order=order, pass_ns=pass_ns, host=host)

    def evened(self, keep: int | None = None) -> PipelineSchedule:
        """Every pass at the mean of all stages, but the passes of the stage to keep."""
        return replace(self, pass_ns=[_evened(step, keep) for step in self.pass_ns])

    def _usual_and_extra(self, step: PassTimes) -> tuple[dict[tuple[Pass, int], float], dict[tuple[Pass, int], float]]:
        """By kind and stage: a pass's time, and what the last micro-batch's takes more."""
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


def _evened(step: PassTimes, keep: int | None) -> PassTimes:
    alike: dict[tuple[Pass, int], list[float]] = defaultdict(list)
    for task, own in step.items():
        alike[task.kind, task.micro_batch].append(own)
    return {
        task: own if task.stage == keep else float(np.mean(alike[task.kind, task.micro_batch]))
        for task, own in step.items()
    }


def replay_schedules(schedules: Sequence[PipelineSchedule], causes: Collection[Cause] = ()) -> WhatIfReport:
    """Nothing changed, finer micro-batches, even stages. Of several pipelines (replicas) the mean.

    Args:
        schedules: one a pipeline, at least one.
        causes: the fixes; all that apply when empty.
    """
    measured = float(np.mean([s.period_ns for s in schedules])) / 1e6
    replayed = _step_ms(schedules)
    ideal = _step_ms([s.evened() for s in schedules])
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
        by_stage={str(stage): _step_ms([s.evened(keep=stage) for s in schedules]) / ideal for stage in stages},
        warnings=_warnings(schedules, replayed / measured - 1.0),
        steps=schedules[0].steps,
        input=WhatIfInput.SCHEDULE,
    )


def _fixes(schedules: Sequence[PipelineSchedule], replayed_ms: float, even_ms: float) -> list[Fix]:
    fixes: list[Fix] = []
    for times in FINER_CUTS:
        finer = [cut for s in schedules if (cut := s.finer(times)) is not None]
        steps_ns = [s.step_ns() for s in finer]
        step = float(np.mean(steps_ns)) / 1e6 if len(finer) == len(schedules) else math.inf
        if step < min([replayed_ms, *(fix.step_ms for fix in fixes)]):  # a host may be too slow for a finer cut
            now = schedules[0].num_micro_batches
            change = f"the same batch in {now * times} micro-batches instead of {now}"
            binds = Cause.HOST_BOUND if any(map(PipelineSchedule.is_host_bound, finer, steps_ns)) else None
            fixes.append(Fix(Cause.PIPELINE_BUBBLE, change, step, replayed_ms / step, binds_next=binds))
    if even_ms < replayed_ms:
        ranks = sorted(rank for s in schedules for rank in _heavy(s))
        fixes.append(Fix(Cause.IMBALANCE, "compute cut evenly over the stages", even_ms, replayed_ms / even_ms, ranks))
    return fixes


def _heavy(schedule: PipelineSchedule) -> list[int]:
    """The ranks that compute more than the mean."""
    busy = [sum(step[task] for step in schedule.pass_ns for task in tasks) for tasks in schedule.order]
    return [rank for rank, own in zip(schedule.chain.ranks, busy, strict=True) if own > np.mean(busy)]


def _step_ms(schedules: Sequence[PipelineSchedule]) -> float:
    return float(np.mean([s.step_ns() for s in schedules])) / 1e6


def _warnings(schedules: Sequence[PipelineSchedule], error: float) -> list[Notice]:
    told = "the pipeline's schedule is replayed, with what follows it as it was measured"
    notices = [Notice("schedule_only", told)]
    if abs(error) > TRUSTED_ERROR:
        wrong = f"the replay misses the measured step by {error:+.1%}: something it does not know decides"
        notices.append(Notice("replay_error", f"{wrong}, trust no gain"))
    finer = schedules[0].finer(FINER_CUTS[0])
    if finer is not None and finer.is_host_bound(step_ns := finer.step_ns()):
        late = f"a host takes {step_ns / 1e6:,.1f} ms to launch a step of {finer.num_micro_batches} micro-batches"
        notices.append(Notice("no_pipeline_fix", f"more micro-batches gain little or nothing: {late}"))
    elif finer is None:
        unknown = (
            f"no fix for the pipeline bubble: how {recognise(schedules[0].order)} orders more micro-batches is unknown"
        )
        notices.append(Notice("no_pipeline_fix", unknown))
    return notices


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


def with_finer_cuts(
    report: WhatIfReport, schedules: Sequence[PipelineSchedule], causes: Collection[Cause]
) -> WhatIfReport:
    """A replay of the calls, with what only the schedule can tell: the batch cut into more micro-batches.

    Args:
        report: of the same job.
        schedules: one a pipeline, at least one.
        causes: the fixes; all that apply when empty.
    """
    if causes and Cause.PIPELINE_BUBBLE not in causes:
        return report
    by_schedule = replay_schedules(schedules, [Cause.PIPELINE_BUBBLE])
    others = [notice for notice in report.warnings if notice.code != "no_pipeline_fix"]
    unchanged = f"{by_schedule.replayed_step_ms:,.1f} ms with nothing changed ({by_schedule.replay_error:+.1%})"
    told = f"the pipeline bubble is from the replay of the schedule alone: {unchanged}"
    notices = [notice for notice in by_schedule.warnings if notice.code != "schedule_only"]
    return replace(
        report,
        fixes=sorted([*report.fixes, *by_schedule.fixes], key=lambda fix: fix.step_ms),
        warnings=[*others, *([Notice("schedule_only", told)] if by_schedule.fixes else []), *notices],
    )
