"""What would the step take without one of its causes? Traces or an operation table in, one prediction a fix out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.analyzer.job import what_if_job
from stepscope.analyzer.what_if.fixes import FIXES
from stepscope.analyzer.what_if.pipeline_schedule import FIXED_CAUSES
from stepscope.core.causes import Cause
from stepscope.core.what_if import WhatIfReport
from stepscope.workflow.fan_out import HERE, FanOut
from stepscope.workflow.job_input import read_job
from stepscope.workflow.operation_tables import find_operation_table, what_if_of_table
from stepscope.workflow.progress import Progress

FIXABLE = frozenset(cause for cause, _ in FIXES) | FIXED_CAUSES
"""Causes that a replay can remove."""


def what_if(
    paths: Sequence[str],
    *,
    causes: Collection[Cause] = (),
    unprofiled_step_ms: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> WhatIfReport:
    """Replay one job with one cause removed at a time.

    Args:
        paths: traces (files, folders, one run directory, or fsspec URLs), or one operation table.
        causes: the fixes; all that apply when empty.
        unprofiled_step_ms: the step without the profiler, where the run directory does not tell.
        fan_out: where the traces are read.
        on_progress: told before each file.

    Raises:
        DataError: no file can be used, or the traces do not allow a replay.
        UnreachableError: a URL's store does not answer.
    """
    table = find_operation_table(paths)
    if table is not None:
        return what_if_of_table(table, causes)
    job = read_job(paths, fan_out=fan_out, on_progress=on_progress)
    context = job.context
    if unprofiled_step_ms is not None:
        context = replace(context, unprofiled_step_ms=unprofiled_step_ms)
    return what_if_job(job.views, context, causes=causes)
