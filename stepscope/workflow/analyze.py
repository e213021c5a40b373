"""The main job: traces in, verdict out, kept beside the run. Read -> per-rank half -> cross-rank half -> store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.summaries import timeline
from stepscope.core.analysis import Analysis, Notice
from stepscope.core.errors import DataError
from stepscope.store.runs import save_analysis, save_timelines
from stepscope.workflow.job_input import read_job
from stepscope.workflow.rank_views import Progress


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
    job = read_job(paths, whole_file=whole_file, on_progress=on_progress)
    analysis, final_views = analyse_job(job.views, job.context)
    if not keep or job.run_directory is None or whole_file:
        return AnalysisResult(analysis, None)
    try:
        save_timelines(job.run_directory, [timeline(view) for view in final_views])
        save_analysis(job.run_directory, analysis)
    except DataError as error:  # somebody else's run, a full disk: the verdict is worth having all the same
        notice = Notice("not_kept", str(error))
        return AnalysisResult(replace(analysis, warnings=[*analysis.warnings, notice]), None)
    return AnalysisResult(analysis, job.run_directory)
