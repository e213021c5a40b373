"""Predicted step times with causes removed: the typed form of `stepscope.whatif/1`.

Times are milliseconds of one step unless the name says otherwise; None means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.vocabulary import Cause, Notice

WHAT_IF_SCHEMA = "stepscope.whatif/1"


class WhatIfInput(StrEnum):
    """What-if document: what was replayed."""

    TRACES = "traces"
    SCHEDULE = "schedule"
    """the pipeline's schedule alone (on a CPU run), for `--fix pipeline_bubble`"""
    OPERATION_TABLE = "operation_table"


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """What-if document: predicted step of a job with one cause removed.

    Attributes:
        fix: the cause that is removed.
        step_ms: with the profiler's overhead, as the traces have it.
        speedup: replayed step / this step.
        change: what exactly is changed, in words.
        calibrated_step_ms: the same without the profiler; None where the job's step without it is not known or cannot
            be reached by scaling host time.
        binds_next: the next bottleneck; None where removing another cause would not gain much.
    """

    fix: Cause
    step_ms: float
    speedup: float
    change: str = ""
    calibrated_step_ms: float | None = None
    binds_next: Cause | None = None


@dataclass(frozen=True, slots=True)
class Fix(PredictedStep):
    """What-if document: a prediction of `whatif`.

    Attributes:
        ranks: whose own work or host the change affects, largest share first; empty where that is unknown.
        calibrated_speedup: calibrated replay / calibrated step.
    """

    ranks: list[int] = field(default_factory=list)
    calibrated_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """The document `stepscope.whatif/1`: predictions, and what ranks and stages cost against an ideal step.

    Attributes:
        measured_step_ms: duration of a whole step, boundary to boundary, median over ranks.
        replayed_step_ms: the same in the replay with nothing changed.
        replay_error: replayed / measured - 1.
        unprofiled_step_ms: the step without the profiler, where known.
        host_scale: factor of host time with which the replay takes the unprofiled step; None without one.
        calibrated_replay_ms: the replay with that factor.
        ideal_step_ms: the step if every rank computed the mean, every transfer took its median and the CPU launched
            without delay.
        slowdown: measured / ideal (S); of an operation table replayed / ideal, as in the paper that defines S.
        steps: numbers of the replayed steps.
        skipped_steps: whole steps that are left out, as what they waited for began before the traces.
        fixes: largest gain first.
        by_rank: step / ideal step if only this rank were as measured (S_w).
        by_stage: the same for the stages of a pipeline.
        by_replica, by_operation: the same for data-parallel replicas and kinds of operations (operation tables).
        worst_workers_share: share of the slowdown that evening out the slowest 3% of the workers removes (M_W).
        last_stage_share: the same for the last stage (M_S). Operation tables have both; else None.
        device_kind: "gpu" or "cpu"; None of operation tables.
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
    device_kind: str | None = None
    input: WhatIfInput = WhatIfInput.TRACES
    schema: str = WHAT_IF_SCHEMA
