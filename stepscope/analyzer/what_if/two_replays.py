"""A pipeline can be replayed call by call or by its schedule: which of the two tells what?

The calls and kernels hold everything that was measured; only the schedule can be continued with more micro-batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.analyzer.what_if.pipeline_schedule import PipelineSchedule, replay_schedules
from stepscope.core.analysis import Notice
from stepscope.core.causes import Cause
from stepscope.core.what_if import WhatIfReport


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
