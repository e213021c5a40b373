"""The profiler slows the host: what would the job take without it?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyzer.what_if.model import ReplayModel
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.analyzer.what_if.replay import Scenario
from stepscope.core.causes import Cause

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
