"""Predicted step times with causes removed: the typed form of `stepscope.whatif/1`.

Times are milliseconds of one step unless the name says otherwise; None means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.documents.evidence import Notice
from stepscope.core.vocabulary.causes import Cause

WHAT_IF_SCHEMA = "stepscope.whatif/1"


class WhatIfInput(StrEnum):
    """What was replayed."""

    TRACES = "traces"
    SCHEDULE = "schedule"
    """a pipeline's schedule alone (CPU): what `--fix pipeline_bubble` asks for"""
    OPERATION_TABLE = "operation_table"


@dataclass(frozen=True, slots=True)
class Fix:
    """The step with one cause removed.

    Attributes:
        fix: the cause.
        change: what exactly is changed, in words.
        step_ms: as captured.
        speedup: replayed step / this step.
        ranks: the ranks whose own work or host the change touches, largest share first; empty where that is unknown.
        calibrated_step_ms: the same for the job that runs without the profiler; None where its step is not known or
            cannot be reached by scaling host time.
        calibrated_speedup: calibrated replay / calibrated step.
        binds_next: what a second fix would have to be about; None when nothing else would gain much.
    """

    fix: Cause
    change: str
    step_ms: float
    speedup: float
    ranks: list[int] = field(default_factory=list)
    calibrated_step_ms: float | None = None
    calibrated_speedup: float | None = None
    binds_next: Cause | None = None


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """The whole answer.

    Attributes:
        measured_step_ms: whole steps, boundary to boundary, median over ranks.
        replayed_step_ms: the same of the replay with nothing changed.
        replay_error: replayed / measured - 1.
        unprofiled_step_ms: the step without the profiler, where known.
        host_scale: what host time was multiplied by so that the replay meets the unprofiled step; None without one.
        calibrated_replay_ms: the replay then.
        ideal_step_ms: every rank computes the mean, every transfer takes its median, the host is never late.
        slowdown: measured / ideal (S); of an operation table replayed / ideal, as the paper that defines S has it.
        steps: numbers of the steps it stands on.
        skipped_steps: whole steps that are left out: what they waited for began before the traces.
        fixes: largest gain first.
        by_rank: how many times the ideal the step would take if only this rank were as it is (S_w).
        by_stage: the same for a pipeline's stages.
        by_replica, by_operation: the same for data-parallel replicas and kinds of operations (operation tables).
        worst_workers_share: what of the slowdown goes when the slowest 3 % of the workers alone are evened out (M_W).
        last_stage_share: the same for the last stage (M_S); operation tables have both, None elsewhere.
    """

    measured_step_ms: float
    replayed_step_ms: float
    replay_error: float
    ideal_step_ms: float
    slowdown: float
    fixes: list[Fix]
    by_rank: dict[str, float]
    by_stage: dict[str, float]
    warnings: list[Notice]
    unprofiled_step_ms: float | None = None
    host_scale: float | None = None
    calibrated_replay_ms: float | None = None
    steps: list[int] = field(default_factory=list)
    skipped_steps: list[int] = field(default_factory=list)
    by_replica: dict[str, float] = field(default_factory=dict)
    by_operation: dict[str, float] = field(default_factory=dict)
    worst_workers_share: float | None = None
    last_stage_share: float | None = None
    input: WhatIfInput = WhatIfInput.TRACES
    schema: str = WHAT_IF_SCHEMA
