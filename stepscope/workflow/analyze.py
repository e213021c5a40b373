"""The main job: traces in, verdict out, kept beside the run. Read -> per-rank half -> cross-rank half -> store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext, timeline
from stepscope.core.analysis import Analysis, MeshSizes, Notice
from stepscope.core.errors import DataError
from stepscope.core.run_layout import RUN_FILE, RunManifest
from stepscope.store.runs import load_manifest, save_analysis, save_timelines
from stepscope.trace.columns import TraceColumns
from stepscope.workflow.trace_files import TraceFiles, find_trace_files, open_trace

Progress = Callable[[int, int, str], None]
"""Called as (files done, files in all, the file being read)."""


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
    views = _view_all(files.paths, notices, whole_file=whole_file, on_progress=on_progress)
    manifest = _manifest(files, notices)
    analysis, final_views = analyse_job(views, _context(manifest, notices))
    kept_in = None
    if keep and files.run_directory is not None and not whole_file:
        save_timelines(files.run_directory, [timeline(view) for view in final_views])
        save_analysis(files.run_directory, analysis)
        kept_in = files.run_directory
    return AnalysisResult(analysis, kept_in)


def _view_all(
    paths: list[str], notices: list[Notice], *, whole_file: bool, on_progress: Progress | None
) -> list[RankView]:
    """The per-rank half over all files, one at a time; a file that cannot be used becomes a notice.

    Files that do not tell their rank come last (and are read again), so that they take only ranks nobody claims.
    """
    views: dict[int, RankView] = {}
    errors: list[DataError] = []
    nameless: list[str] = []
    queue = list(paths)
    for done, path in enumerate(queue):
        if on_progress is not None:
            on_progress(done - len(nameless), len(paths), path)
        try:
            trace = open_trace(path)
            if trace.header.rank is None and len(paths) > 1 and done < len(paths):
                nameless.append(path)
                queue.append(path)
                continue
            rank = _rank(trace, views, notices)
            if rank in views:
                raise _TwoClaimError(rank, views[rank].header.path, path)
            views[rank] = view_rank(trace, rank, whole_file=whole_file)
        except _TwoClaimError:
            raise
        except DataError as error:
            errors.append(error)
            notices.append(Notice("unusable_file", str(error)))
    if views:
        return list(views.values())
    if len(errors) == 1:
        raise errors[0]
    first = errors[0] if errors else None
    raise DataError(
        f"none of {len(paths)} files can be used; the first: {first}", what_next="give the traces of torch.profiler"
    )


class _TwoClaimError(DataError):
    """Two files say they are the same rank."""

    def __init__(self, rank: int, first: str, second: str) -> None:
        super().__init__(
            f"says it is rank {rank}, and so does {first}",
            where=second,
            what_next="give the files of one job, one a rank",
        )


def _rank(trace: TraceColumns, views: dict[int, RankView], notices: list[Notice]) -> int:
    """The rank the trace tells, else the lowest that is free."""
    if trace.header.rank is not None:
        return trace.header.rank
    rank = next(number for number in range(len(views) + 1) if number not in views)
    if views or rank:
        notices.append(
            Notice("rank_assumed", f"{trace.header.path}: does not tell its rank; taken as rank {rank} by order")
        )
    return rank


def _manifest(files: TraceFiles, notices: list[Notice]) -> RunManifest | None:
    if files.run_directory is None or not (files.run_directory / RUN_FILE).is_file():
        return None
    try:
        return load_manifest(files.run_directory)
    except DataError as error:
        notices.append(Notice("unusable_file", str(error)))
        return None


def _context(manifest: RunManifest | None, notices: list[Notice]) -> JobContext:
    if manifest is None:
        return JobContext(notices=tuple(notices))
    known = {name: size for name, size in manifest.mesh.items() if name in MeshSizes.__dataclass_fields__}
    return JobContext(
        unprofiled_step_ms=manifest.unprofiled_step_ms,
        mesh=MeshSizes(**known),
        num_cpus=manifest.num_cpus,
        simulated_compute=manifest.simulated_compute,
        notices=tuple(notices),
    )
