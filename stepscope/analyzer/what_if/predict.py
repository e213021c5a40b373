"""What would each fix buy? Replays with one cause removed, beside the replay with nothing changed and its error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from stepscope.analyzer.culprits import culprits
from stepscope.analyzer.what_if.calibrate import Calibration, calibrate
from stepscope.analyzer.what_if.fixes import FIXES, ideal
from stepscope.analyzer.what_if.model import ReplayModel
from stepscope.analyzer.what_if.replay import Scenario
from stepscope.core.analysis import Notice
from stepscope.core.causes import Cause
from stepscope.core.counting import counted
from stepscope.core.errors import DataError
from stepscope.core.what_if import Fix, WhatIfReport

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
    return culprits(taken)


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
