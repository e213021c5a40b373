"""The profiler slows the host: what would the job take without it?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyzer.what_if.model import ReplayModel
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN
from stepscope.analyzer.what_if.replay import Scenario
from stepscope.core.causes import Cause

CLOSE_ENOUGH = 0.005
"""The calibrated replay meets the unprofiled step this closely."""

SAME_STEP = 0.02
"""A captured step that is no longer than this needs no calibration."""

FASTER_BY_CHANCE = 0.05
"""Capturing speeds no job up: captured steps shorter than the unprofiled one by no more than this are the same."""

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

    None where no scale does: the captured steps are shorter than the unprofiled one (they are other steps), or the
    host is not what makes them longer.
    """
    slower = captured_ms / unprofiled_ms - 1.0
    if slower <= SAME_STEP:
        return Calibration(1.0, model.base, captured_ms) if slower >= -FASTER_BY_CHANCE else None
    low, high = 0.0, 1.0
    best: Calibration | None = None
    for _ in range(_MOST_REPLAYS):
        scale = (low + high) / 2
        scenario = model.base.scaled_host(_COLUMNS, scale)
        best = Calibration(scale, scenario, model.step_ms(scenario))
        if abs(best.step_ms / unprofiled_ms - 1.0) <= CLOSE_ENOUGH:
            return best
        low, high = (scale, high) if best.step_ms < unprofiled_ms else (low, scale)
    return best if best is not None and abs(best.step_ms / unprofiled_ms - 1.0) <= SAME_STEP else None
