"""Predictions: what each fix, and each root cause of a verdict, would gain, with the replay's error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.blame.root_causes import ranks_to_name
from stepscope.analyzer.what_if.fixes import FIX_OF_REASON, FIXES, ideal
from stepscope.analyzer.what_if.model import ReplayModel
from stepscope.analyzer.what_if.pipeline_schedule import FIXED_CAUSES, PipelineSchedule, replay_schedules
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.analyzer.what_if.replay import Scenario
from stepscope.core.documents.analysis import RootCause, Verdict, WhatIf
from stepscope.core.documents.evidence import Evidence, Notice
from stepscope.core.documents.what_if import Fix, WhatIfReport
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted, form, listed
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary.causes import Cause

CLOSE_ENOUGH = 0.005
"""The calibrated replay meets its goal this closely."""

SAME_STEP = 0.02
"""A captured step that is no longer than this needs no calibration."""

RUNS_DIFFER = 0.08
"""Two measurements of one job may differ by this much (recorded: up to 7 % where traffic goes over host memory). Within
it the device alone explains the unprofiled step, and the host is taken to be that much faster than would decide."""

_MOST_REPLAYS = 12
_COLUMNS = [HOST_COLUMN[Cause.HOST_BOUND], HOST_COLUMN[Cause.PROFILER]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Host time as it would be without the profiler.

    Attributes:
        scale: what host time was multiplied by.
        scenario: the job then.
        step_ms: its replay.
    """

    scale: float
    scenario: Scenario
    step_ms: float


def calibrate(model: ReplayModel, captured_ms: float, unprofiled_ms: float) -> Calibration | None:
    """Scale host time until the replay meets the unprofiled step.

    None where no scale does: the captured steps are shorter than the unprofiled one (they are other steps), or what
    the device does takes longer by itself.
    """
    slower = captured_ms / unprofiled_ms - 1.0
    if slower <= SAME_STEP:
        return Calibration(1.0, model.base, captured_ms) if slower >= -RUNS_DIFFER / 2 else None
    floor = _scaled(model, 0.0)
    if floor.step_ms > unprofiled_ms * (1 + RUNS_DIFFER):
        return None
    explained = floor.step_ms >= unprofiled_ms * (1 - RUNS_DIFFER)
    goal = floor.step_ms * (1 + CLOSE_ENOUGH) if explained else unprofiled_ms
    low, high, best = 0.0, 1.0, floor
    for _ in range(_MOST_REPLAYS):
        tried = _scaled(model, (low + high) / 2)
        if tried.step_ms > goal:
            high = tried.scale
            continue
        low, best = tried.scale, tried
        if high - low < CLOSE_ENOUGH or (not explained and best.step_ms >= goal * (1 - CLOSE_ENOUGH)):
            break
    return _scaled(model, best.scale * (1 - RUNS_DIFFER)) if explained else best


def _scaled(model: ReplayModel, scale: float) -> Calibration:
    scenario = model.base.scaled_host(_COLUMNS, scale)
    return Calibration(scale, scenario, model.step_ms(scenario))


BINDS_FROM = 0.02
"""A second fix must gain at least this share of the step to be what binds next."""

TRUSTED_ERROR = 0.05
"""A replay that misses the measured step by more is no ground for predictions."""

MOST_RANKS_APART = 64
"""Ranks up to which each one's own slowdown is replayed."""

_SAME = 0.001
"""Steps that differ by less are alike."""

_Change = tuple[Cause, str]


def predict(
    model: ReplayModel, *, unprofiled_ms: float | None = None, causes: Collection[Cause] = (), by_rank: bool = True
) -> WhatIfReport:
    """Replay the job as it was, ideal, and with each fix.

    Args:
        model: the job.
        unprofiled_ms: its step without the profiler, or None.
        causes: fixes to replay; all when empty.
        by_rank: whether to replay each rank's and each stage's own slowdown.

    Raises:
        DataError: the step has no length, or none without its causes: there is nothing to compare with.
    """
    measured = model.measured_ms()
    replayed = model.step_ms(model.base)
    ideal_scenario = ideal(model.job, model.base)
    ideal_ms = model.step_ms(ideal_scenario)
    if min(measured, replayed, ideal_ms) <= 0:
        raise DataError(
            "these traces cannot be replayed: nothing in their steps takes time", what_next="profile whole steps"
        )
    calibration = calibrate(model, replayed, unprofiled_ms) if unprofiled_ms else None
    changes = [change for change in FIXES if not causes or change[0] in causes]
    fixes = [fix for change in changes if (fix := _fix(model, change, replayed, calibration)) is not None]
    numbers = model.step_numbers
    return WhatIfReport(
        measured_step_ms=measured,
        replayed_step_ms=replayed,
        replay_error=replayed / measured - 1.0,
        ideal_step_ms=ideal_ms,
        slowdown=measured / ideal_ms,
        fixes=sorted(fixes, key=lambda fix: fix.step_ms),
        by_rank=_slowdowns_by_rank(model, ideal_scenario, ideal_ms) if by_rank else {},
        by_stage=_slowdowns_by_stage(model, ideal_scenario, ideal_ms) if by_rank else {},
        warnings=[*_warnings(model, unprofiled_ms, calibration, replayed), *_of_ideal(measured, ideal_ms)],
        unprofiled_step_ms=unprofiled_ms,
        host_scale=None if calibration is None else calibration.scale,
        calibrated_replay_ms=None if calibration is None else calibration.step_ms,
        steps=[numbers[place] for place in model.kept],
        skipped_steps=[numbers[place] for place in model.skipped],
    )


def _fix(model: ReplayModel, change: _Change, replayed: float, calibration: Calibration | None) -> Fix | None:
    scenario = FIXES[change](model.job, model.base)
    if scenario is None:
        return None
    step = model.step_ms(scenario)
    if step <= 0:  # nothing is left of the step: no figure
        return None
    fix = Fix(
        fix=change[0],
        change=change[1],
        step_ms=step,
        speedup=replayed / step,
        ranks=_touched(model, scenario),
        binds_next=binds_next(model, change[0], scenario, step),
    )
    if calibration is None:
        return fix
    calibrated = FIXES[change](model.job, calibration.scenario)
    if calibrated is None:
        return fix
    calibrated_step = model.step_ms(calibrated)
    if calibrated_step <= 0:
        return fix
    return replace(fix, calibrated_step_ms=calibrated_step, calibrated_speedup=calibration.step_ms / calibrated_step)


def binds_next(model: ReplayModel, fixed: Cause, scenario: Scenario, step_ms: float) -> Cause | None:
    """The cause whose removal would gain most once this one is gone."""
    best: tuple[float, Cause] | None = None
    for (cause, _), apply in FIXES.items():
        if cause is fixed:
            continue
        second = apply(model.job, scenario)
        if second is None:
            continue
        gain = 1.0 - model.step_ms(second) / step_ms
        if gain >= BINDS_FROM and (best is None or gain > best[0]):
            best = gain, cause
    return None if best is None else best[1]


def _touched(model: ReplayModel, scenario: Scenario) -> list[int]:
    """Ranks whose own time the change takes away, most first."""
    base = model.base
    taken: dict[int, int] = {}
    for rank, part in model.graph.layout.parts.items():
        calls, activities, transfers = part.calls, part.activities, part.communications
        taken[rank] = int(
            np.maximum(base.host_ns[calls] - scenario.host_ns[calls], 0).sum()
            + np.maximum(base.duration_ns[activities] - scenario.duration_ns[activities], 0).sum()
            + np.maximum(base.transfer_ns[transfers] - scenario.transfer_ns[transfers], 0).sum()
        )
    return ranks_to_name(taken)


def _slowdowns_by_rank(model: ReplayModel, ideal_scenario: Scenario, ideal_ms: float) -> dict[str, float]:
    ranks = list(model.graph.layout.parts)
    if not 1 < len(ranks) <= MOST_RANKS_APART:
        return {}
    return {str(rank): model.step_ms(_only(model, ideal_scenario, {rank})) / ideal_ms for rank in ranks}


def _slowdowns_by_stage(model: ReplayModel, ideal_scenario: Scenario, ideal_ms: float) -> dict[str, float]:
    role = model.job.role
    stages = sorted(set(role.values()))
    if len(stages) < 2:
        return {}
    members = {stage: {rank for rank, own in role.items() if own == stage} for stage in stages}
    return {
        str(stage): model.step_ms(_only(model, ideal_scenario, ranks)) / ideal_ms for stage, ranks in members.items()
    }


def _only(model: ReplayModel, ideal_scenario: Scenario, ranks: set[int]) -> Scenario:
    """These ranks as they are, everybody else ideal."""
    base = model.base
    host, duration = ideal_scenario.host_ns.copy(), ideal_scenario.duration_ns.copy()
    transfer, blocks = ideal_scenario.transfer_ns.copy(), ideal_scenario.blocks.copy()
    for rank in ranks:
        part = model.graph.layout.parts[rank]
        calls, activities, transfers = part.calls, part.activities, part.communications
        host[calls], duration[activities] = base.host_ns[calls], base.duration_ns[activities]
        transfer[transfers], blocks[calls] = base.transfer_ns[transfers], base.blocks[calls]
    return replace(ideal_scenario, host_ns=host, duration_ns=duration, transfer_ns=transfer, blocks=blocks)


def _of_ideal(measured_ms: float, ideal_ms: float) -> list[Notice]:
    if ideal_ms <= measured_ms * (1 + _SAME):
        return []
    slower = (
        f"the ideal step ({ideal_ms:,.1f} ms) is longer than the measured one: it takes each operation's mean over "
        "ranks and steps, and what varied did so where nobody waited for it; there is no slowdown to explain"
    )
    return [Notice("ideal_is_slower", slower)]


def _warnings(
    model: ReplayModel, unprofiled_ms: float | None, calibration: Calibration | None, replayed: float
) -> list[Notice]:
    notices = []
    error = replayed / model.measured_ms() - 1.0
    if abs(error) > TRUSTED_ERROR:
        wrong = (
            f"the replay misses the measured step by {error:+.1%}: something it does not know decides, trust no gain"
        )
        notices.append(Notice("replay_error", wrong))
    if model.graph.num_alone:
        alone = (
            f"{counted(model.graph.num_alone, 'communication has', 'communications have')} no "
            "partner in these traces: such waits count as transfer"
        )
        notices.append(Notice("communication_alone", alone))
    if len(model.skipped):
        numbers = ", ".join(str(model.step_numbers[place]) for place in model.skipped)
        notices.append(Notice("skipped_steps", f"step {numbers} left out: what it waited for began before the traces"))
    if len(set(model.job.role.values())) > 1:
        left_out = (
            "no fix for the pipeline bubble: more micro-batches are other kernels, which no replay of these can tell"
        )
        notices.append(Notice("no_pipeline_fix", left_out))
    if unprofiled_ms and calibration is None:
        cannot = (
            f"not calibrated: no host speed makes the replay ({replayed:,.1f} ms) meet the unprofiled step "
            f"({unprofiled_ms:,.1f} ms)"
        )
        notices.append(Notice("not_calibrated", cannot))
    return notices


REPLAY_THRESHOLD = 0.05
"""A cause is worth a replay from this share of the time on (the verdict names second causes from here)."""

MOST_CAUSES = 3

MOST_SLOTS = 2_000_000
"""A larger graph is left to `stepscope whatif`: a replay takes about 0.2 us a slot."""

_WEAK_GAIN = 0.5
"""When a fix gains less than this part of the cause's share, something else binds next."""

_ANSWERS = 0.5
"""Of the most that a change of the cause gains: what gains less is no answer to its reason."""


def replay_causes(
    build: Callable[[], ReplayModel | None], causes: Sequence[RootCause], unprofiled_ms: float | None
) -> tuple[list[WhatIf], list[Notice]]:
    """Predictions for the largest causes that can be fixed, and why there are none.

    Args:
        build: makes the model; only called when there is something to replay.
        causes: the root-cause table, largest first.
        unprofiled_ms: the step without the profiler, or None.
    """
    fixable = {cause for cause, _ in FIXES}
    named = [row for row in causes if row.cause in fixable and row.fraction >= REPLAY_THRESHOLD][:MOST_CAUSES]
    model = build() if named else None
    if model is None:
        return [], []
    if model.graph.num_slots > MOST_SLOTS:
        large = f"what-if left out: {model.graph.num_slots:,} events to replay; run: stepscope whatif"
        return [], [Notice("what_if_too_large", large)]
    replayed, measured = model.step_ms(model.base), model.measured_ms()
    if min(replayed, measured) <= 0:
        return [], []  # steps without length: there is nothing to gain
    error = replayed / measured - 1.0
    calibration = calibrate(model, replayed, unprofiled_ms) if unprofiled_ms else None
    skipped = [model.step_numbers[place] for place in model.skipped]
    found = []
    for row in named:
        gains = []
        for change in (change for change in FIXES if change[0] is row.cause):
            scenario = FIXES[change](model.job, model.base)
            if scenario is None:
                continue
            step = model.step_ms(scenario)
            if step <= 0:  # nothing is left of the step: no figure
                continue
            calibrated = FIXES[change](model.job, calibration.scenario) if calibration else None
            is_weak = row is named[0] and 1.0 - step / replayed < _WEAK_GAIN * row.fraction
            gains.append(
                WhatIf(
                    fix=row.cause,
                    change=change[1],
                    step_ms=step,
                    speedup=replayed / step,
                    calibrated_step_ms=None if calibrated is None else model.step_ms(calibrated),
                    binds_next=binds_next(model, row.cause, scenario, step) if is_weak else None,
                    replay_error=error,
                    measured_step_ms=measured,
                    skipped_steps=skipped,
                )
            )
        found += _answer_first(row, gains)
    return found, [_on_other_steps(skipped, measured)] if found and skipped else []


def _answer_first(row: RootCause, gains: list[WhatIf]) -> list[WhatIf]:
    """A cause's changes; first what answers its first reason, which the verdict quotes.

    Transfers of tensor parallelism may be what is not overlapped: then reductions hold little of what free ones gain.
    """
    wanted = FIX_OF_REASON.get(row.reasons[0]) if row.reasons else None
    least = _ANSWERS * max((1.0 - 1.0 / gain.speedup for gain in gains), default=0.0)

    def answers(gain: WhatIf) -> bool:
        return (gain.fix, gain.change) == wanted and 1.0 - 1.0 / gain.speedup >= least

    return sorted(gains, key=lambda gain: not answers(gain))


def _on_other_steps(skipped: Sequence[int], measured_ms: float) -> Notice:
    text = (
        f"what-if leaves out {form(len(skipped), 'step')} {listed(skipped)}, whose waits "
        "began before the traces: the steps it stands on take "
        f"{measured_ms:,.1f} ms, which its figures are to be held against"
    )
    return Notice("what_if_steps", text)


def replay_pipeline_causes(schedules: Sequence[PipelineSchedule], causes: Sequence[RootCause]) -> list[WhatIf]:
    """Predictions for a job's pipeline: by its schedule, for the causes that a schedule can remove.

    Args:
        schedules: one a pipeline.
        causes: the root-cause table, largest first.
    """
    named = [row.cause for row in causes if row.cause in FIXED_CAUSES and row.fraction >= REPLAY_THRESHOLD]
    if not named or not schedules:
        return []
    report = replay_schedules(schedules, named)
    return [
        WhatIf(
            fix=fix.fix,
            change=fix.change,
            step_ms=fix.step_ms,
            speedup=fix.speedup,
            calibrated_step_ms=None,
            binds_next=fix.binds_next,
            replay_error=report.replay_error,
            measured_step_ms=report.measured_step_ms,
        )
        for fix in reversed(report.fixes)  # the nearest setting first: the verdict quotes it
    ]


def beside_verdict(verdict: Verdict, what_if: Sequence[WhatIf]) -> Verdict:
    """The verdict with what fixing its cause alone would buy."""
    own = next((w for w in what_if if w.fix is verdict.cause), None)
    if own is None or abs(own.replay_error) > TRUSTED_ERROR:
        return verdict
    of_others = "" if not own.skipped_steps else f" instead of {own.measured_step_ms:,.1f} ms in the steps replayed"
    figures = f"{own.speedup:.2f}x, replay {own.replay_error:+.1%}"
    gain = f"; {own.change}: {own.step_ms:,.1f} ms a step{of_others} ({figures})"
    if own.calibrated_step_ms is not None:
        gain += f", {own.calibrated_step_ms:,.1f} ms without the profiler"
    if own.binds_next is not None:
        gain += f", and the next limit is {cause_phrase(own.binds_next)}"
    evidence = [*verdict.evidence, Evidence("what_if_step", own.step_ms, "ms")]
    return replace(verdict, summary=verdict.summary + gain, evidence=evidence)
