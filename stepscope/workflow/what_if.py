"""What-if predictions: the step time with one cause removed, from traces or from an operation table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.what_if.fixes import FIXES
from stepscope.analyzer.what_if.operation_slowdown import OperationReplay, RemovalGain, Slowdown, find_slowdown
from stepscope.analyzer.what_if.operations import OperationGrid, arrange_operations, find_dependencies
from stepscope.analyzer.what_if.pipeline_schedule import MAX_MODEL_ERROR, PIPELINE_CAUSES
from stepscope.analyzer.what_if.whole_job import what_if_job
from stepscope.core.documents.what_if import Fix, WhatIfInput, WhatIfReport
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import Cause, Notice
from stepscope.trace.formats.operation_table import meta_path
from stepscope.trace.reading import has_operations_name, read_operations
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress
from stepscope.workflow.job_input import read_job

FIXABLE = frozenset(cause for cause, _ in FIXES) | PIPELINE_CAUSES
"""Causes that a replay can remove."""


def what_if(
    paths: Sequence[str],
    *,
    causes: Collection[Cause] = (),
    capture: int | None = None,
    unprofiled_step_ms: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> WhatIfReport:
    """Predict a job's step time by replaying its traces with one cause removed at a time.

    Args:
        paths: traces (files, folders, one run directory, or fsspec URLs), or one operation table.
        causes: fixes to replay; all that apply if empty.
        capture: which one, where the files are several captures of the same processes; None for the latest.
        unprofiled_step_ms: the step without the profiler, ms, if the run directory does not contain it.

    Raises:
        DataError: no file can be used, or the traces do not allow a replay.
        UnreachableError: a URL's store does not answer.
    """
    table = find_operation_table(paths)
    if table is not None:
        return what_if_of_table(table, causes)
    job = read_job(paths, capture=capture, fan_out=fan_out, on_progress=on_progress)
    context = job.context
    if unprofiled_step_ms is not None:
        context = replace(context, unprofiled_step_ms=unprofiled_step_ms)
    return what_if_job(job.views, context, causes=causes)


def find_operation_table(paths: Sequence[str]) -> Path | None:
    """Workflow of `whatif`: the operation table among the paths; None without a table.

    A `.parquet` file, or a folder that contains one.

    Raises:
        DataError: there is a table beside other paths, or there are several.
    """
    tables = [path for text in paths if "://" not in text for path in _tables_at(Path(text))]
    if not tables:
        return None
    if len(tables) > 1 or len(paths) > 1:
        names = ", ".join(path.name for path in tables[:4])
        raise DataError("an operation table is a whole job", where=names, what_next="give one table at a time")
    return tables[0]


def _tables_at(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(inner for inner in path.iterdir() if has_operations_name(inner.name))
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from error
    return [path] if path.suffix == ".parquet" else []


def what_if_of_table(path: Path, causes: Collection[Cause] = ()) -> WhatIfReport:
    """Workflow of `whatif`: read an operation table and replay it as measured and evened out, to predict step time.

    Args:
        path: `trace-*.parquet`; its `meta-*.yaml` is read if it is beside it.
        causes: fixes to replay (straggler, imbalance, communication); all if empty.

    Raises:
        DataError: the table cannot be used.
    """
    table = read_operations(path)
    if not table.duration_seconds.any():
        raise _no_time(path)
    grid = arrange_operations(table)
    dependencies = find_dependencies(grid, data_parallel=len(grid.replicas) * table.shards_per_replica > 1)
    found = find_slowdown(grid, OperationReplay(grid, dependencies))
    if not found.measured_seconds > 0.0:
        raise _no_time(path)
    replay_error = found.replayed_seconds / found.measured_seconds - 1.0
    fixes = [fix for fix in _fixes(grid, found) if not causes or fix.fix in causes]
    return WhatIfReport(
        measured_step_ms=found.measured_seconds * 1e3,
        replayed_step_ms=found.replayed_seconds * 1e3,
        replay_error=replay_error,
        ideal_step_ms=found.ideal_seconds * 1e3,
        slowdown=found.slowdown,
        fixes=sorted(fixes, key=lambda fix: fix.step_ms),
        by_rank={str(rank): slowdown for rank, slowdown in found.by_rank.items()},
        by_stage={str(stage): slowdown for stage, slowdown in found.by_stage.items()},
        by_replica={str(replica): slowdown for replica, slowdown in found.by_replica.items()},
        by_operation=found.by_kind,
        worst_workers_share=found.worst_workers.share,
        last_stage_share=None if found.last_stage is None else found.last_stage.share,
        warnings=_warnings(path, grid, replay_error, {fix.fix for fix in fixes}, causes),
        steps=grid.steps,
        input=WhatIfInput.OPERATION_TABLE,
    )


def _no_time(path: Path) -> DataError:
    return DataError("its operations take no time", where=str(path), what_next="give a table of a run that took some")


def _fixes(grid: OperationGrid, found: Slowdown) -> list[Fix]:
    last = grid.num_stages - 1

    def fix(cause: Cause, change: str, removal: RemovalGain, ranks: list[int]) -> Fix:
        step_ms = removal.step_seconds * 1e3
        return Fix(cause, step_ms, found.replayed_seconds / removal.step_seconds, change, ranks=ranks)

    fixes = [
        fix(Cause.STRAGGLER, "the slowest workers as the others", found.worst_workers, found.worst_ranks),
        fix(Cause.COMMUNICATION, "every transfer takes its kind's median", found.communication, []),
    ]
    if found.last_stage is not None:
        ranks = grid.rank[last].tolist()
        fixes.append(fix(Cause.IMBALANCE, "the last stage as the others", found.last_stage, ranks))
    return fixes


def _warnings(
    path: Path, grid: OperationGrid, replay_error: float, predicted: Collection[Cause], requested: Collection[Cause]
) -> list[Notice]:
    notices = []
    if not meta_path(path).is_file():
        what = f"no {meta_path(path).name} beside the table: its replicas are taken as not sharded"
        notices.append(Notice("no_description", what))
    if grid.num_left_out:
        lacking = counted(grid.num_left_out, "step lacks operations and is", "steps lack operations and are")
        notices.append(Notice("incomplete_steps", f"{lacking} left out"))
    if abs(replay_error) > MAX_MODEL_ERROR:
        notices.append(Notice("replay_error", f"the replay misses the measured step by {replay_error:+.1%}"))
    for cause in requested:
        if cause not in predicted:
            what = f"an operation table does not tell what the step would take without {cause_phrase(cause)}"
            notices.append(Notice("fix_not_known", what))
    return notices
