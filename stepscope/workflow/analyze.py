"""The main job: traces in, verdict out, kept beside the run. Read -> per-rank half -> cross-rank half -> store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.summaries import JobContext, timeline
from stepscope.core.analysis import Analysis, MeshSizes, Notice
from stepscope.core.errors import DataError
from stepscope.core.run_layout import RUN_FILE, RunManifest
from stepscope.store.runs import load_manifest, save_analysis, save_timelines
from stepscope.workflow.rank_views import Progress, view_files
from stepscope.workflow.trace_files import TraceFiles, find_trace_files


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """An analysis, and the run directory it was kept in (None when it was not kept)."""

    analysis: Analysis
    kept_in: Path | None


def analyze(
    paths: Sequence[str], *, whole_file: bool = False, keep: bool = True, on_progress: Progress | None = None
) -> AnalysisResult:
    """Analyse the traces of one job.

    Args:
        paths: files, folders, one run directory, or fsspec URLs.
        whole_file: book first to last device activity of each file instead of the profiled steps.
        keep: write analysis.json and timeline.json when a run directory was given.
        on_progress: told before each file.

    Raises:
        DataError: no file can be used, or two claim the same rank.
        UnreachableError: a URL's store does not answer.
    """
    files = find_trace_files(paths)
    notices = list(files.notices)
    manifest = _manifest(files, notices)
    since_ns = manifest.attempts[-1].start_ns if manifest is not None and manifest.attempts else None
    found = view_files(files.paths, whole_file=whole_file, since_ns=since_ns, on_progress=on_progress)
    context = _context(manifest, [*notices, *found.notices], found.num_truncated)
    analysis, final_views = analyse_job(list(found.views.values()), context)
    if not keep or files.run_directory is None or whole_file:
        return AnalysisResult(analysis, None)
    try:
        save_timelines(files.run_directory, [timeline(view) for view in final_views])
        save_analysis(files.run_directory, analysis)
    except DataError as error:  # somebody else's run, a full disk: the verdict is worth having all the same
        notice = Notice("not_kept", str(error))
        return AnalysisResult(replace(analysis, warnings=[*analysis.warnings, notice]), None)
    return AnalysisResult(analysis, files.run_directory)


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
