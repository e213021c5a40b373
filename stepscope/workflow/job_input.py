"""What does a job's analysis start from? Its ranks' views, and what the run directory knows beside the traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.core.analysis import MeshSizes, Notice
from stepscope.core.errors import DataError
from stepscope.core.run_layout import RUN_FILE, STEPS_FOLDER, RunManifest
from stepscope.core.words import ranks_words
from stepscope.store.runs import load_manifest
from stepscope.workflow.fan_out import HERE, FanOut, map_for, task_paths
from stepscope.workflow.progress import Progress
from stepscope.workflow.rank_views import view_files
from stepscope.workflow.step_telemetry import ranks_without_steps, read_pace
from stepscope.workflow.stuck_steps import stuck_steps
from stepscope.workflow.trace_files import TraceFiles, find_trace_files


@dataclass(frozen=True, slots=True)
class JobInput:
    """Views, one a rank; what else is known; and the run directory, if one was given."""

    views: list[RankView]
    context: JobContext
    run_directory: Path | None


def read_job(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> JobInput:
    """Read the traces of one job, one view a rank.

    Args:
        paths: files, folders, one run directory, or fsspec URLs.
        whole_file: as in view_rank.
        fan_out: where they are read.
        on_progress: told before each file.

    Raises:
        DataError: no file can be used, or two claim the same rank.
        UsageError, UnreachableError: as in map_for's engines; a URL's store does not answer.
    """
    files = find_trace_files(paths)
    notices = [*files.notices, *_silent_ranks(files.run_directory)]
    manifest = _manifest(files, notices)
    notices += [] if files.run_directory is None else stuck_steps(files.run_directory, manifest)
    since_ns = manifest.attempts[-1].start_ns if manifest is not None and manifest.attempts else None
    found = view_files(
        task_paths(files.paths, fan_out),
        whole_file=whole_file,
        since_ns=since_ns,
        on_progress=on_progress,
        map_files=map_for(files.paths, fan_out),
    )
    context = _context(manifest, [*notices, *found.notices], found.num_truncated)
    if files.run_directory is not None:
        pace = read_pace(files.run_directory, files.capture)
        unprofiled_ms = (pace.unprofiled_step_ms or context.unprofiled_step_ms) if pace.is_even else None
        context = replace(context, data_waits_ns=pace.data_waits_ns, unprofiled_step_ms=unprofiled_ms)
    return JobInput(list(found.views.values()), context, files.run_directory)


def _silent_ranks(run_directory: Path | None) -> list[Notice]:
    silent = [] if run_directory is None else ranks_without_steps(run_directory)
    if not silent:
        return []
    told = f"{ranks_words(silent)} left no step in {STEPS_FOLDER}/, though others did: killed, or only just begun"
    return [Notice("silent_ranks", told)]


def _manifest(files: TraceFiles, notices: list[Notice]) -> RunManifest | None:
    if files.run_directory is None or not (files.run_directory / RUN_FILE).is_file():
        return None
    try:
        return load_manifest(files.run_directory)
    except DataError as error:
        notices.append(Notice("unusable_file", str(error)))
        return None


def _context(manifest: RunManifest | None, notices: list[Notice], num_truncated: int) -> JobContext:
    if manifest is None:
        return JobContext(truncated_files=num_truncated, notices=tuple(notices))
    known = {name: size for name, size in manifest.mesh.items() if name in MeshSizes.__dataclass_fields__}
    return JobContext(
        unprofiled_step_ms=manifest.unprofiled_step_ms,
        mesh=MeshSizes(**known),
        num_cpus=manifest.num_cpus,
        simulated_compute=manifest.simulated_compute,
        truncated_files=num_truncated,
        notices=tuple(notices),
    )
