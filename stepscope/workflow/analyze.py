"""Analysis of one job: reads its traces, finds the verdict, saves both in the run directory.

`read_job` reads each trace once, by a map over files (`fan_out`), into one view per rank, and adds what the run
directory records beside the traces; what does not fit together is left out with a notice. `what_if` uses the same
views.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyzer.job import analyse_job, capture_of
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext, timeline
from stepscope.core.documents.analysis import Analysis, MeshSizes
from stepscope.core.documents.run_directory import RUN_FILE, STEPS_FOLDER, RankTimeline, RunManifest
from stepscope.core.errors import DataError, TruncatedTraceError, none_usable
from stepscope.core.text.numbers import ranks_words
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import load_manifest, save_analysis, save_timelines
from stepscope.store.step_records import ranks_without_steps, read_attempts_steps, read_pace, stuck_steps
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress, in_this_process, map_for, task_paths
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews, view_file
from stepscope.workflow.inputs.trace_files import TraceFiles, find_trace_files


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """An analysis and where it was saved.

    Attributes:
        kept_in: run directory in which it was saved; None if it was not.
        timelines: timelines of the ranks; empty unless requested.
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
        whole_file: analyse first to last device activity of each file instead of the profiled steps.
        keep: whether to save analysis.json and timeline.json if a run directory was given.
        with_timelines: whether to return the timelines.
        network_bytes_per_second: bandwidth of each GPU's network card in one direction, which sets the expected
            bandwidth of collectives between hosts.

    Raises:
        DataError: no file can be used, or two are of the same rank.
        UsageError: no cluster is named, or its workers have another version.
        UnreachableError: a URL's store or the cluster does not answer.
    """
    job = read_job(paths, whole_file=whole_file, fan_out=fan_out, on_progress=on_progress)
    run = None if whole_file else _run_facts(job, fan_out)
    context = replace(job.context, network_bytes_per_second=network_bytes_per_second, run=run)
    analysis, final_views = analyse_job(job.views, context)
    is_kept = keep and job.run_directory is not None and not whole_file
    timelines = [timeline(view) for view in final_views] if is_kept or with_timelines else []
    if not is_kept or job.run_directory is None:
        return AnalysisResult(analysis, None, timelines)
    try:
        save_timelines(job.run_directory, timelines)
        save_analysis(job.run_directory, analysis)
    except DataError as error:  # another user's run or a full disk: still return the verdict
        notice = Notice("not_kept", str(error))
        return AnalysisResult(replace(analysis, warnings=[*analysis.warnings, notice]), None, timelines)
    return AnalysisResult(analysis, job.run_directory, timelines)


@dataclass(frozen=True, slots=True)
class JobInput:
    """Views, one per rank; the job's context; and what it was read from, with the manifest of a run."""

    views: list[RankView]
    context: JobContext
    files: TraceFiles
    manifest: RunManifest | None

    @property
    def run_directory(self) -> Path | None:
        """The run directory, if one was given."""
        return self.files.run_directory


def read_job(
    paths: Sequence[str], *, whole_file: bool = False, fan_out: FanOut = HERE, on_progress: Progress | None = None
) -> JobInput:
    """Read the traces of one job, one view per rank; arguments as for `analyze`.

    Raises:
        DataError: no file can be used, or two are of the same rank.
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
    return JobInput(list(found.views.values()), context, files, manifest)


def _run_facts(job: JobInput, fan_out: FanOut) -> RunFacts | None:
    """What the run directory tells of the job beside the analysed capture; None without step records."""
    steps = None if job.run_directory is None else job_steps(read_attempts_steps(job.run_directory))
    if steps is None:
        return None
    earlier = []
    for paths in job.files.earlier_captures:
        with suppress(DataError):  # an older capture that cannot be read is no evidence
            tasks, mapping = task_paths(paths, fan_out), map_for(paths, fan_out)
            views = view_files(tasks, whole_file=False, map_files=mapping).views
            earlier.append(capture_of(list(views.values()), job.context.mesh))
    attempts = [] if job.manifest is None else job.manifest.attempts
    return RunFacts(steps, attempts, job.context.num_cpus, earlier)


def _silent_ranks(run_directory: Path | None) -> list[Notice]:
    silent = [] if run_directory is None else ranks_without_steps(run_directory)
    if not silent:
        return []
    text = f"{ranks_words(silent)} left no step in {STEPS_FOLDER}/, though others did: killed, or only just begun"
    return [Notice("silent_ranks", text)]


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


@dataclass(slots=True)
class RankViews:
    """Views by rank, notices of what was left out or assumed, and the number of truncated files."""

    views: dict[int, RankView] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    num_truncated: int = 0


def view_files(
    paths: list[str],
    *,
    whole_file: bool,
    since_ns: int | None = None,
    on_progress: Progress | None = None,
    map_files: FileMap = in_this_process,
) -> RankViews:
    """Read the files of one job and make the views of their ranks.

    Files that do not name their rank come last and get the lowest free ranks, in order. Traces from before `since_ns`,
    the start of the job's last attempt, belong to an earlier attempt.

    Raises:
        DataError: no file can be used, or the files are of several jobs.
        UnreachableError: a URL's store does not answer.
    """
    found = RankViews()
    errors: list[DataError] = []
    tasks = [FileTask(path, 0 if len(paths) == 1 else None, whole_file, since_ns) for path in paths]
    waiting: list[FileTask] = []
    for result in _results(map_files, tasks, on_progress, len(paths)):
        if result.tells_rank or result.task.rank is not None:
            _add_result(found, result, errors)
        else:
            waiting.append(result.task)
    waiting = [
        replace(task, rank=rank) for task, rank in zip(waiting, _free_ranks(found.views, len(waiting)), strict=True)
    ]
    for result in _results(map_files, waiting, on_progress, len(paths)):
        if result.views and (found.views or result.task.rank):
            assumed = f"{result.task.path}: contains no rank; taken as rank {result.task.rank} by order"
            found.notices.append(Notice("rank_assumed", assumed))
        _add_result(found, result, errors)
    if not found.views:
        raise none_usable(errors, "files", what_next="give the traces of torch.profiler")
    _drop_ranks_without_device(found)
    _drop_other_times(found, [task.path for task in waiting])
    return found


def _results(
    map_files: FileMap, tasks: Sequence[FileTask], on_progress: Progress | None, num_files: int
) -> Iterator[FileViews]:
    """Results of the tasks, in their order. The last tasks are the last of all files.

    Before each result, in the order of arrival, the progress is called with the first file that is still being read.
    """
    results = iter(map_files(view_file, tasks)) if tasks else iter(())
    arrived: dict[FileTask, FileViews] = {}
    num_given = num_waiting = 0
    for num_arrived in range(len(tasks)):
        if on_progress is not None:
            on_progress(num_files - len(tasks) + num_arrived - num_waiting, num_files, tasks[num_given].path)
        result = next(results)
        num_waiting += not result.tells_rank and result.task.rank is None
        arrived[result.task] = result
        while num_given < len(tasks) and tasks[num_given] in arrived:
            yield arrived.pop(tasks[num_given])
            num_given += 1


def _free_ranks(taken: Collection[int], count: int) -> list[int]:
    return [rank for rank in range(len(taken) + count) if rank not in taken][:count]


class _MixedJobsError(DataError):
    """The files are of several jobs."""


def _add_result(found: RankViews, result: FileViews, errors: list[DataError]) -> None:
    """Add the views of a file, or a notice why it cannot be used.

    Raises:
        DataError: another file is of the same rank.
        UnreachableError: its store did not answer.
    """
    found.notices += result.notices
    try:
        for view in result.views:
            _add_view(found, view)
        if result.error is not None:
            raise result.error
    except _MixedJobsError:
        raise
    except DataError as error:
        errors.append(error)
        found.num_truncated += isinstance(error, TruncatedTraceError)
        found.notices.append(Notice("unusable_file", str(error)))


def _add_view(found: RankViews, view: RankView) -> None:
    """Add a view.

    Raises:
        DataError: it is a copy of another view, or another file is of the same rank.
    """
    known = found.views.setdefault(view.rank, view)
    if known is view:
        return
    if (known.window.start_ns, known.window.end_ns) == (view.window.start_ns, view.window.end_ns):
        raise DataError(f"is a copy of {known.header.path}", where=view.header.path)
    raise _MixedJobsError(
        f"says it is rank {view.rank}, and so does {known.header.path}",
        where=view.header.path,
        what_next="give the files of one job, one a rank",
    )


def _drop_ranks_without_device(found: RankViews) -> None:
    """Drop ranks recorded without CUDA beside ranks with device activities; their time breakdown is of another kind."""
    if len({view.on_device for view in found.views.values()}) == 1:
        return
    for rank, view in list(found.views.items()):
        if not view.on_device:
            del found.views[rank]
            lacks = f"{view.header.path}: holds no device activities, the other ranks do; left out"
            found.notices.append(Notice("unusable_file", lacks))


def _drop_other_times(found: RankViews, nameless: list[str]) -> None:
    """Drop ranks that were not recorded at the same time; not judged across hosts, whose clocks may differ.

    Raises:
        DataError: files without a rank do not overlap in time.
    """
    views = found.views
    if len({view.header.host_name for view in views.values()}) > 1:
        return
    latest = max(views.values(), key=lambda view: view.window.end_ns)
    others = {rank: view for rank, view in views.items() if not _overlap(view, latest)}
    for rank, view in others.items():
        if view.header.path in nameless or latest.header.path in nameless:
            raise _MixedJobsError(
                f"does not overlap in time with {latest.header.path}",
                where=view.header.path,
                what_next="give the files of one job, one a rank",
            )
        del views[rank]
        apart = f"{view.header.path}: does not overlap in time with {latest.header.path}; left out"
        found.notices.append(Notice("other_time", apart))


def _overlap(a: RankView, b: RankView) -> bool:
    return a.window.start_ns < b.window.end_ns and b.window.start_ns < a.window.end_ns
