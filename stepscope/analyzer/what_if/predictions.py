"""Predictions: what each fix, and each root cause of a verdict, would gain, with the model error of the replay.

The figures of a fix are only as good as the replay of the unchanged job, whose difference from the measured step (the
model error) is reported with every prediction.

Calibration: profiling slows the host. Host time is scaled by bisection until the replay meets the unprofiled step;
the fixes are replayed on that scenario as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.blame.root_causes import ranks_to_name
from stepscope.analyzer.what_if import pipeline_schedule
from stepscope.analyzer.what_if.fixes import FIX_OF_REASON, FIXES, ideal_job
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.analyzer.what_if.replay import ReplayModel, Scenario, is_accelerated
from stepscope.core.documents.analysis import RootCause, Verdict, WhatIf
from stepscope.core.documents.what_if import Fix, PredictedStep, WhatIfReport
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted, form, listed
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import Cause, Evidence, Notice

_TOLERANCE = 0.005
"""Relative difference between the calibrated replay and its goal."""

_SAME_STEP = 0.02
"""Profiling overhead up to which no calibration is needed."""

_RUN_SPREAD = 0.08
"""Relative difference between two measurements of one job (recorded: up to 7 % where traffic goes through host memory).
Within it the device alone explains the unprofiled step, and host time is scaled to stay that far below the limit."""

_MAX_REPLAYS = 12
_SCALED_COLUMNS = [HOST_COLUMN[Cause.HOST_BOUND], HOST_COLUMN[Cause.PROFILER]]


class Calibration(NamedTuple):
    """Host time scaled to what it would be without the profiler, the replay's scenario with it, and its step, ms."""

    scale: float
    scenario: Scenario
    step_ms: float


def calibrate_host_time(model: ReplayModel, captured_ms: float, unprofiled_ms: float) -> Calibration | None:
    """Scale host time until the what-if replay meets the unprofiled step.

    None if no scale does: either the profiled steps are shorter than the unprofiled one (they are different steps), or
    device work alone takes longer.
    """
    slower = captured_ms / unprofiled_ms - 1.0
    if slower <= _SAME_STEP:
        return Calibration(1.0, model.base, captured_ms) if slower >= -_RUN_SPREAD / 2 else None
    floor = _scaled(model, 0.0)
    if floor.step_ms > unprofiled_ms * (1 + _RUN_SPREAD):
        return None
    is_device_bound = floor.step_ms >= unprofiled_ms * (1 - _RUN_SPREAD)
    goal = floor.step_ms * (1 + _TOLERANCE) if is_device_bound else unprofiled_ms
    low, high, best = 0.0, 1.0, floor
    for _ in range(_MAX_REPLAYS):
        tried = _scaled(model, (low + high) / 2)
        if tried.step_ms > goal:
            high = tried.scale
            continue
        low, best = tried.scale, tried
        if high - low < _TOLERANCE or (not is_device_bound and best.step_ms >= goal * (1 - _TOLERANCE)):
            break
    return _scaled(model, best.scale * (1 - _RUN_SPREAD)) if is_device_bound else best


def _scaled(model: ReplayModel, scale: float) -> Calibration:
    scenario = model.base.scaled_host(_SCALED_COLUMNS, scale)
    return Calibration(scale, scenario, model.step_ms(scenario))


MIN_NEXT_GAIN = 0.02
"""Smallest gain of a second fix, as a share of the step, that makes its cause the next bottleneck."""

MAX_RANKS_REPLAYED = 64
"""Largest number of ranks for which the slowdown of each rank is replayed."""

_SAME = 0.001
"""Relative difference up to which two steps are equal."""

_Change = tuple[Cause, str]


def predict_fixes(
    model: ReplayModel, *, unprofiled_ms: float | None = None, causes: Collection[Cause] = (), by_rank: bool = True
) -> WhatIfReport:
    """Replay the job unchanged, ideal, and with each fix (or those for `causes`).

    Args:
        unprofiled_ms: its step without the profiler, ms.
        causes: fixes to replay; all if empty.
        by_rank: whether to replay the slowdown of each rank and each stage.

    Raises:
        DataError: the measured, replayed or ideal step takes no time.
    """
    measured = model.measured_ms()
    replayed = model.step_ms(model.base)
    ideal_scenario = ideal_job(model, model.base)
    ideal_ms = model.step_ms(ideal_scenario)
    if min(measured, replayed, ideal_ms) <= 0:
        raise DataError(
            "these traces cannot be replayed: nothing in their steps takes time", what_next="profile whole steps"
        )
    calibration = calibrate_host_time(model, replayed, unprofiled_ms) if unprofiled_ms else None
    changes = [change for change in FIXES if not causes or change[0] in causes]
    fixes = [fix for change in changes if (fix := _fix(model, change, replayed, calibration)) is not None]
    numbers, ranks = model.step_numbers, list(model.graph.layout.parts)
    # the ranks to keep as measured in each replay of a slowdown
    members_of_rank = {rank: {rank} for rank in ranks} if by_rank and 1 < len(ranks) <= MAX_RANKS_REPLAYED else {}
    stages = sorted(set(model.role.values())) if by_rank else []
    members_of_stage = {stage: {rank for rank, own in model.role.items() if own == stage} for stage in stages}

    def slowdowns(members: Mapping[int, set[int]]) -> dict[str, float]:
        return {str(name): model.step_ms(_only(model, ideal_scenario, own)) / ideal_ms for name, own in members.items()}

    return WhatIfReport(
        measured_step_ms=measured,
        replayed_step_ms=replayed,
        replay_error=replayed / measured - 1.0,
        ideal_step_ms=ideal_ms,
        slowdown=measured / ideal_ms,
        fixes=sorted(fixes, key=lambda fix: fix.step_ms),
        by_rank=slowdowns(members_of_rank),
        by_stage=slowdowns(members_of_stage) if len(stages) > 1 else {},
        warnings=_warnings(model, measured, replayed, ideal_ms, unprofiled_ms, calibration),
        unprofiled_step_ms=unprofiled_ms,
        host_scale=None if calibration is None else calibration.scale,
        calibrated_replay_ms=None if calibration is None else calibration.step_ms,
        steps=[numbers[place] for place in model.kept],
        skipped_steps=[numbers[place] for place in model.skipped],
        device_kind="gpu" if model.on_device else "cpu",
    )


def _apply(model: ReplayModel, change: _Change, base: Scenario) -> tuple[Scenario, float] | None:
    """The changed scenario and its step, ms; None if the change does not apply or leaves no step."""
    scenario = FIXES[change](model, base)
    if scenario is None:
        return None
    step_ms = model.step_ms(scenario)
    return (scenario, step_ms) if step_ms > 0 else None


def _fix(
    model: ReplayModel,
    change: _Change,
    replayed: float,
    calibration: Calibration | None,
    *,
    next_below: float = math.inf,
) -> Fix | None:
    """Prediction of one change; None if it does not apply.

    The next bottleneck is looked for, with a replay of each other fix, if the gain is below `next_below`.
    """
    applied = _apply(model, change, model.base)
    if applied is None:
        return None
    scenario, step_ms = applied
    gain = 1.0 - step_ms / replayed
    fix = Fix(
        fix=change[0],
        change=change[1],
        step_ms=step_ms,
        speedup=replayed / step_ms,
        ranks=_affected_ranks(model, scenario),
        binds_next=next_bottleneck(model, change[0], scenario, step_ms) if gain < next_below else None,
    )
    calibrated = None if calibration is None else _apply(model, change, calibration.scenario)
    if calibration is None or calibrated is None:
        return fix
    return replace(fix, calibrated_step_ms=calibrated[1], calibrated_speedup=calibration.step_ms / calibrated[1])


def next_bottleneck(model: ReplayModel, fixed: Cause, scenario: Scenario, step_ms: float) -> Cause | None:
    """Cause whose removal gains most in a replayed scenario in which `fixed` is removed already."""
    best: tuple[float, Cause] | None = None
    for (cause, _), apply in FIXES.items():
        if cause is fixed:
            continue
        second = apply(model, scenario)
        if second is None:
            continue
        gain = 1.0 - model.step_ms(second) / step_ms
        if gain >= MIN_NEXT_GAIN and (best is None or gain > best[0]):
            best = gain, cause
    return None if best is None else best[1]


def _affected_ranks(model: ReplayModel, scenario: Scenario) -> list[int]:
    """Ranks whose own time the change reduces, most first."""
    base = model.base
    reduced: dict[int, int] = {}
    for rank, part in model.graph.layout.parts.items():
        pairs = (
            (base.host_ns[part.calls], scenario.host_ns[part.calls]),
            (base.duration_ns[part.activities], scenario.duration_ns[part.activities]),
            (base.transfer_ns[part.communications], scenario.transfer_ns[part.communications]),
        )
        reduced[rank] = sum(int(np.maximum(before - after, 0).sum()) for before, after in pairs)
    return ranks_to_name(reduced)


def _only(model: ReplayModel, ideal_scenario: Scenario, ranks: set[int]) -> Scenario:
    """These ranks as measured, all others ideal."""
    base = model.base
    host, duration = ideal_scenario.host_ns.copy(), ideal_scenario.duration_ns.copy()
    transfer, blocks = ideal_scenario.transfer_ns.copy(), ideal_scenario.blocks.copy()
    for rank in ranks:
        part = model.graph.layout.parts[rank]
        calls, activities, transfers = part.calls, part.activities, part.communications
        host[calls], duration[activities] = base.host_ns[calls], base.duration_ns[activities]
        transfer[transfers], blocks[calls] = base.transfer_ns[transfers], base.blocks[calls]
    return replace(ideal_scenario, host_ns=host, duration_ns=duration, transfer_ns=transfer, blocks=blocks)


def _warnings(
    model: ReplayModel,
    measured: float,
    replayed: float,
    ideal_ms: float,
    unprofiled_ms: float | None,
    calibration: Calibration | None,
) -> list[Notice]:
    notices = pipeline_schedule.model_error_notices(replayed / measured - 1.0)
    if model.graph.num_unmatched:
        unmatched = (
            f"{counted(model.graph.num_unmatched, 'communication has', 'communications have')} no "
            "partner in these traces: such waits count as transfer"
        )
        notices.append(Notice("communication_alone", unmatched))
    if len(model.skipped):
        numbers = ", ".join(str(model.step_numbers[place]) for place in model.skipped)
        notices.append(Notice("skipped_steps", f"step {numbers} left out: what it waited for began before the traces"))
    if len(set(model.role.values())) > 1:
        others = "more micro-batches are other kernels, which no replay of these can tell"
        notices.append(Notice("no_pipeline_fix", f"no fix for the pipeline bubble: {others}"))
    if unprofiled_ms and calibration is None:
        cannot = (
            f"not calibrated: no host speed makes the replay ({replayed:,.1f} ms) meet the unprofiled step "
            f"({unprofiled_ms:,.1f} ms)"
        )
        notices.append(Notice("not_calibrated", cannot))
    if ideal_ms > measured * (1 + _SAME):
        slower = (
            f"the ideal step ({ideal_ms:,.1f} ms) is longer than the measured one: it takes each operation's mean over "
            "ranks and steps, and what varied did so where nobody waited for it; there is no slowdown to explain"
        )
        notices.append(Notice("ideal_is_slower", slower))
    return notices


REPLAY_THRESHOLD = 0.05
"""Smallest share of a cause that is replayed; the verdict names second causes from here."""

MAX_CAUSES = 3

MAX_SLOTS = 10_000_000
"""Largest graph that `analyze` replays, at about 0.02 us a slot in C; larger ones are left to `stepscope whatif`. It is
that of about 1,200 ranks with a short capture each."""

MAX_SLOTS_IN_PYTHON = 2_000_000
"""The same without the accelerator, at about 0.2 us a slot."""


def max_slots() -> int:
    """What-if: the largest graph that `analyze` replays."""
    return MAX_SLOTS if is_accelerated() else MAX_SLOTS_IN_PYTHON


_WEAK_GAIN = 0.5
"""Part of a cause's share below which a gain means that something else is the next bottleneck."""

_ANSWERING_GAIN = 0.5
"""Part of the largest gain of a cause's changes that a change must reach to answer the cause's reason."""


def _too_large(num_events: int) -> Notice:
    text = f"what-if left out: {counted(num_events, 'event')} to replay; run: stepscope whatif"
    return Notice("what_if_too_large", text)


def replay_causes(
    build: Callable[[], ReplayModel | None],
    causes: Sequence[RootCause],
    unprofiled_ms: float | None,
    *,
    num_events: int = 0,
) -> tuple[list[WhatIf], list[Notice]]:
    """What-if predictions for the largest causes that can be fixed, and notices of what was left out.

    `build` makes the model of about `num_events` and is only called if there is something to replay that is not too
    large; `causes` come largest first.
    """
    fixable = {cause for cause, _ in FIXES}
    chosen = [row for row in causes if row.cause in fixable and row.fraction >= REPLAY_THRESHOLD][:MAX_CAUSES]
    if chosen and num_events > max_slots():
        return [], [_too_large(num_events)]
    model = build() if chosen else None
    if model is None:
        return [], []
    if model.graph.num_slots > max_slots():
        return [], [_too_large(model.graph.num_slots)]
    replayed, measured = model.step_ms(model.base), model.measured_ms()
    if min(replayed, measured) <= 0:
        return [], []
    calibration = calibrate_host_time(model, replayed, unprofiled_ms) if unprofiled_ms else None
    skipped = [model.step_numbers[place] for place in model.skipped]
    predictions = []
    for row in chosen:
        next_below = _WEAK_GAIN * row.fraction if row is chosen[0] else -math.inf
        changes = [change for change in FIXES if change[0] is row.cause]
        fixes = [_fix(model, change, replayed, calibration, next_below=next_below) for change in changes]
        error = replayed / measured - 1.0
        gains = [_what_if(fix, error, measured, skipped) for fix in fixes if fix is not None]
        predictions += _answer_first(row, gains)
    if not predictions or not skipped:
        return predictions, []
    text = (
        f"what-if leaves out {form(len(skipped), 'step')} {listed(skipped)}, whose waits "
        "began before the traces: compare its figures with the "
        f"{measured:,.1f} ms of the replayed steps"
    )
    return predictions, [Notice("what_if_steps", text)]


def _answer_first(row: RootCause, gains: list[WhatIf]) -> list[WhatIf]:
    """A cause's changes, first the one that answers its first reason, which the verdict quotes.

    Transfers of tensor parallelism may be what is not overlapped: then reductions hold little of what free ones gain.
    """
    wanted = FIX_OF_REASON.get(row.reasons[0]) if row.reasons else None
    least = _ANSWERING_GAIN * max((gain.gain for gain in gains), default=0.0)
    return sorted(gains, key=lambda gain: (gain.fix, gain.change) != wanted or gain.gain < least)


def replay_pipeline_causes(
    schedules: Sequence[pipeline_schedule.PipelineSchedule], causes: Sequence[RootCause]
) -> list[WhatIf]:
    """What-if predictions from the schedules of all pipelines, for the causes that a schedule replay can remove."""
    chosen = [
        row.cause
        for row in causes
        if row.cause in pipeline_schedule.PIPELINE_CAUSES and row.fraction >= REPLAY_THRESHOLD
    ]
    if not chosen or not schedules:
        return []
    report = pipeline_schedule.replay_schedules(schedules, chosen)
    # the nearest setting first: the verdict quotes it
    return [_what_if(fix, report.replay_error, report.measured_step_ms, []) for fix in reversed(report.fixes)]


def _what_if(fix: Fix, replay_error: float, measured_ms: float, skipped: list[int]) -> WhatIf:
    predicted = {field.name: getattr(fix, field.name) for field in fields(PredictedStep)}
    return WhatIf(**predicted, replay_error=replay_error, measured_step_ms=measured_ms, skipped_steps=skipped)


def add_gain_to_verdict(verdict: Verdict, what_if: Sequence[WhatIf]) -> Verdict:
    """Verdict with the predicted step without its cause, where the replay's model error allows a prediction."""
    own = next((w for w in what_if if w.fix is verdict.cause), None)
    if own is None or abs(own.replay_error) > pipeline_schedule.MAX_MODEL_ERROR:
        return verdict
    of_others = "" if not own.skipped_steps else f" instead of {own.measured_step_ms:,.1f} ms in the steps replayed"
    figures = f"{own.speedup:.2f}x, model error {abs(own.replay_error):.1%}"
    gain = f"; {own.change}: {own.step_ms:,.1f} ms a step{of_others} ({figures})"
    if own.calibrated_step_ms is not None:
        gain += f", {own.calibrated_step_ms:,.1f} ms without the profiler"
    if own.binds_next is not None:
        gain += f", next bottleneck: {cause_phrase(own.binds_next)}"
    evidence = [*verdict.evidence, Evidence("what_if_step", own.step_ms, "ms")]
    return replace(verdict, summary=verdict.summary + gain, evidence=evidence)
