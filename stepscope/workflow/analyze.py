"""The main job: traces in, verdict out, kept beside the run. Read -> per-rank half -> cross-rank half -> store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.summaries import timeline
from stepscope.core.analysis import Analysis, Notice
from stepscope.core.errors import DataError
from stepscope.core.timeline import RankTimeline
from stepscope.store.runs import save_analysis, save_timelines
from stepscope.workflow.fan_out import HERE, FanOut
from stepscope.workflow.job_input import read_job
from stepscope.workflow.progress import Progress


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """An analysis.

    Attributes:
        kept_in: the run directory it was kept in; None when it was not kept.
        timelines: the ranks' time lines; empty unless asked for.
    """

    analysis: Analysis
    kept_in: Path | None
    timelines: list[RankTimeline] = field(default_factory=list)


def analyze(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    keep: bool = True,
    with_timelines: bool = False,
    network_bytes_per_second: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> AnalysisResult:
    """Analyse the traces of one job.

    Args:
        paths: files, folders, one run directory, or fsspec URLs.
        whole_file: book first to last device activity of each file instead of the profiled steps.
        keep: write analysis.json and timeline.json when a run directory was given.
        with_timelines: return the time lines as well.
        network_bytes_per_second: of each GPU's network card in one direction; tells what collectives between hosts
            should reach.
        fan_out: where the files are read.
        on_progress: told before each file.

    Raises:
        DataError: no file can be used, or two claim the same rank.
        UsageError: no cluster is named, or its workers have another version.
        UnreachableError: a URL's store or the cluster does not answer.
    """
    job = read_job(paths, whole_file=whole_file, fan_out=fan_out, on_progress=on_progress)
    context = replace(job.context, network_bytes_per_second=network_bytes_per_second)
    analysis, final_views = analyse_job(job.views, context)
    is_kept = keep and job.run_directory is not None and not whole_file
    timelines = [timeline(view) for view in final_views] if is_kept or with_timelines else []
    if not is_kept or job.run_directory is None:
        return AnalysisResult(analysis, None, timelines)
    try:
        save_timelines(job.run_directory, timelines)
        save_analysis(job.run_directory, analysis)
    except DataError as error:  # somebody else's run, a full disk: the verdict is worth having all the same
        notice = Notice("not_kept", str(error))
        return AnalysisResult(replace(analysis, warnings=[*analysis.warnings, notice]), None, timelines)
    return AnalysisResult(analysis, job.run_directory, timelines)
