"""Input of a job's analysis: its traces, read once into one view per rank, and what its run directory records beside.

Traces are read by a map over files (`fan_out`); what does not fit together is left out with a notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.slow_settings import slow_settings
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import MeshSizes
from stepscope.core.documents.run_directory import RUN_FILE, STEPS_FOLDER, RunManifest
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import ranks_words
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import load_manifest
from stepscope.store.step_records import ranks_without_steps, read_pace, stuck_steps
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress, map_of_engine, task_paths
from stepscope.workflow.inputs.trace_files import TraceFiles, find_trace_files
from stepscope.workflow.rank_views import RankViews, view_files


class JobInput(NamedTuple):
    """Views, one per rank (none without a trace); the job's context; what it was read from; the manifest of a run."""

    views: list[RankView]
    context: JobContext
    files: TraceFiles
    manifest: RunManifest | None
    num_captures: int = 1

    @property
    def run_directory(self) -> Path | None:
        """The run directory, if one was given."""
        return self.files.run_directory


def read_job(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    capture: int | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> JobInput:
    """Read the traces of one job, one view per rank; arguments as for `analyze`.

    Raises:
        DataError: no file can be used, or two are of the same rank.
        UsageError, UnreachableError: as in map_of_engine's engines; there is no such capture; a URL's store does not
            answer.
    """
    files = find_trace_files(paths, capture=capture)
    manifest, notices = (None, []) if files.run_directory is None else _read_manifest(files.run_directory)
    notices = [*files.notices, *notices]
    since_ns = manifest.attempts[-1].start_ns if manifest is not None and manifest.attempts else None
    found = view_files(
        task_paths(files.paths, fan_out),
        whole_file=whole_file,
        since_ns=since_ns if capture is None else None,
        capture=capture if files.num_captures == 1 else None,
        on_progress=on_progress,
        map_files=map_of_engine(files.paths, fan_out),
    )
    context = _context(manifest, [*notices, *found.notices], found)
    if files.run_directory is not None:
        pace = read_pace(files.run_directory, files.capture)
        unprofiled_ms = (pace.unprofiled_step_ms or context.unprofiled_step_ms) if pace.is_even else None
        context = replace(context, data_waits_ns=pace.data_waits_ns, unprofiled_step_ms=unprofiled_ms)
    num_captures = max(files.num_captures, found.num_captures)
    return JobInput(list(found.views.values()), context, files, manifest, num_captures)


def read_untraced_job(run_directory: Path) -> JobInput:
    """Read what a run directory without traces records of its job beside the steps."""
    manifest, notices = _read_manifest(run_directory)
    return JobInput([], _context(manifest, notices, RankViews()), TraceFiles([], run_directory, []), manifest)


def _read_manifest(run_directory: Path) -> tuple[RunManifest | None, list[Notice]]:
    """The manifest of a run, and notices of what it and the ranks' files lack."""
    manifest, notices = None, []
    if (run_directory / RUN_FILE).is_file():
        try:
            manifest = load_manifest(run_directory)
        except DataError as error:
            notices.append(Notice("unusable_file", str(error)))
    silent = ranks_without_steps(run_directory, 0 if manifest is None else manifest.world_size)
    if silent:
        text = f"{ranks_words(silent)} left no step in {STEPS_FOLDER}/, though others did: killed, or only just begun"
        notices.append(Notice("silent_ranks", text))
    return manifest, [*notices, *stuck_steps(run_directory, manifest)]


def _context(manifest: RunManifest | None, notices: list[Notice], found: RankViews) -> JobContext:
    context = JobContext(truncated_files=found.num_truncated, notices=tuple(notices), unrecorded=found.unrecorded)
    if manifest is None:
        return context
    known = {name: size for name, size in manifest.mesh.items() if name in MeshSizes.__dataclass_fields__}
    return replace(
        context,
        unprofiled_step_ms=manifest.unprofiled_step_ms,
        mesh=MeshSizes(**known),
        num_cpus=manifest.num_cpus,
        simulated_compute=manifest.simulated_compute,
        settings=manifest.settings,
        slow_settings=slow_settings(manifest.settings, manifest.environment),
        cpu_affinity=manifest.cpu_affinity,
    )
