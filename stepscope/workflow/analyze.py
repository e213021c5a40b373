"""Analysis of one job: reads its traces, finds the verdict, saves both in the run directory.

`read_job` reads each trace once, by a map over files (`fan_out`), into one view per rank, and adds what the run
directory records beside the traces; what does not fit together is left out with a notice. `what_if` uses the same
views.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyzer.job import analyse_job, capture_of
from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps, calibrated_steps
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext, timeline_document
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.core.documents.analysis import Analysis, CaptureAnalyses, CaptureAnalysis, MeshSizes
from stepscope.core.documents.run_directory import RUN_FILE, STEPS_FOLDER, RankSteps, RankTimeline, RunManifest
from stepscope.core.errors import DataError, none_usable
from stepscope.core.text.numbers import ranks_words
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import load_manifest, save_analysis, save_timelines
from stepscope.store.step_records import ranks_without_steps, read_attempts_steps, read_pace, stuck_steps
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress, map_of_engine, task_paths
from stepscope.workflow.inputs.trace_files import (
    NoCaptureError,
    TraceFiles,
    find_trace_files,
    light_captures,
    open_ranks,
)
from stepscope.workflow.rank_views import RankViews, view_files


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """An analysis of a job, and where it was saved.

    Attributes:
        kept_in: run directory in which it was saved; None if it was not.
        timelines: timelines of the ranks; empty unless requested.
        num_captures: captures of the same processes among the files; one of them is analysed.
    """

    analysis: Analysis
    kept_in: Path | None
    timelines: list[RankTimeline] = field(default_factory=list)
    num_captures: int = 1


def analyze(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    capture: int | None = None,
    keep: bool = True,
    with_timelines: bool = False,
    network_bytes_per_second: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> AnalysisResult:
    """Analyse the traces of one job; without any the step records of its run directory.

    Args:
        paths: files, archives, folders, one run directory, or fsspec URLs.
        whole_file: analyse the whole of each file instead of the profiled steps.
        capture: which one, where the files are several captures of the same processes; None for the latest.
        keep: whether to save analysis.json and timeline.json if a run directory was given; not of an older capture.
        with_timelines: whether to return the timelines.
        network_bytes_per_second: bandwidth of each GPU's network card in one direction, which sets the expected
            bandwidth of collectives between hosts.

    Raises:
        DataError: no file can be used, or two are of the same rank; a run has neither traces nor steps.
        UsageError: there is no such capture, no cluster is named, or its workers have another version.
        UnreachableError: a URL's store or the cluster does not answer.
    """
    try:
        job = read_job(paths, whole_file=whole_file, capture=capture, fan_out=fan_out, on_progress=on_progress)
    except NoCaptureError as error:
        if whole_file or capture is not None or len(paths) > 1:
            raise
        analysis = _analyse_untraced(error)
        return _kept(AnalysisResult(analysis, None), error.run) if keep else AnalysisResult(analysis, None)
    run, notices = (None, []) if whole_file else _run_facts(job, fan_out)
    context = replace(
        job.context,
        network_bytes_per_second=network_bytes_per_second,
        run=run,
        notices=(*job.context.notices, *notices),
    )
    analysis, final_views = analyse_job(job.views, context)
    is_latest = capture in (None, job.num_captures)
    is_kept = keep and job.run_directory is not None and not whole_file and is_latest
    timelines = [timeline_document(view) for view in final_views] if is_kept or with_timelines else []
    result = AnalysisResult(analysis, None, timelines, job.num_captures)
    return _kept(result, job.run_directory) if is_kept and job.run_directory is not None else result


def _kept(result: AnalysisResult, run_directory: Path) -> AnalysisResult:
    """The result after it was saved, or with a notice why it could not be."""
    try:
        save_timelines(run_directory, result.timelines)
        save_analysis(run_directory, result.analysis)
    except DataError as error:  # another user's run or a full disk: still return the verdict
        notice = Notice("not_kept", str(error))
        return replace(result, analysis=replace(result.analysis, warnings=[*result.analysis.warnings, notice]))
    return replace(result, kept_in=run_directory)


def _analyse_untraced(error: NoCaptureError) -> Analysis:
    """Analyse a run without traces by its step records.

    Raises:
        NoCaptureError: it has no steps either.
    """
    ranks, notices = read_attempts_steps(error.run)
    steps = job_steps(ranks)
    if steps is None:
        raise error
    manifest = _manifest(error.run, notices)
    world_size = max(0 if manifest is None else manifest.world_size, ranks[-1].rank + 1)
    notices += [*_silent_ranks(error.run, world_size), *stuck_steps(error.run, manifest)]
    context = _context(manifest, notices, RankViews())
    facts = RunFacts(steps, [] if manifest is None else manifest.attempts, context.num_cpus)
    missing = ranks_without_steps(error.run, world_size)
    return analyse_untraced_job(facts, context, world_size=world_size, missing_ranks=missing)


def analyze_captures(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    network_bytes_per_second: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> CaptureAnalyses:
    """Analyse each capture of the same processes by itself; arguments as for `analyze`. Nothing is saved.

    Raises:
        DataError: no capture can be analysed.
        UsageError, UnreachableError: as `analyze`.
    """
    analyses: list[CaptureAnalysis] = []
    errors: list[DataError] = []
    number, count = 1, find_trace_files(paths, capture="all").num_captures
    while number <= count:
        try:
            result = analyze(
                paths,
                whole_file=whole_file,
                capture=number,
                keep=False,
                network_bytes_per_second=network_bytes_per_second,
                fan_out=fan_out,
                on_progress=on_progress,
            )
            analyses.append(CaptureAnalysis(number, result.analysis))
            count = result.num_captures
        except DataError as error:
            errors.append(error)
        number += 1
    if not analyses:
        raise none_usable(errors, "captures", what_next="give the traces of torch.profiler")
    return CaptureAnalyses(analyses, [Notice("unusable_capture", str(error)) for error in errors])


@dataclass(frozen=True, slots=True)
class JobInput:
    """Views, one per rank; the job's context; and what it was read from, with the manifest of a run."""

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
    notices = list(files.notices)
    manifest = None if files.run_directory is None else _manifest(files.run_directory, notices)
    notices += _silent_ranks(files.run_directory, 0 if manifest is None else manifest.world_size)
    notices += [] if files.run_directory is None else stuck_steps(files.run_directory, manifest)
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


def _run_facts(job: JobInput, fan_out: FanOut) -> tuple[RunFacts | None, list[Notice]]:
    """What the run directory tells of the job beside the analysed capture, and notices on its step records.

    Without step records it tells nothing: None.
    """
    ranks, notices = ([], []) if job.run_directory is None else read_attempts_steps(job.run_directory)
    hosts = {view.rank: view.header.host_name for view in job.views if view.header.host_name}
    steps = job_steps(ranks, hosts)
    if steps is None:
        return None, notices
    others = []
    for paths in job.files.other_captures:
        with suppress(DataError):  # another capture that cannot be read is no evidence
            tasks, mapping = task_paths(paths, fan_out), map_of_engine(paths, fan_out)
            views = view_files(tasks, whole_file=False, map_files=mapping).views
            others.append(capture_of(list(views.values()), job.context.mesh))
    attempts = [] if job.manifest is None else job.manifest.attempts
    light = _light_steps(job.run_directory, ranks) if len(ranks) == 1 and job.run_directory is not None else None
    return RunFacts(steps, attempts, job.context.num_cpus, others, light), notices


def _light_steps(run: Path, ranks: Sequence[RankSteps]) -> CalibratedSteps | None:
    """The latest light capture of a job of one rank, calibrated; None without one that can be read."""
    (rank,) = ranks
    captures = light_captures(run, rank.rank)
    if not captures:
        return None
    (attempt, first_step), path = captures[-1]
    with suppress(DataError):
        (trace, *_) = open_ranks(str(path))
        return calibrated_steps(trace, [step for step in rank.steps if step.attempt == attempt], first_step)
    return None


def _silent_ranks(run_directory: Path | None, world_size: int) -> list[Notice]:
    silent = [] if run_directory is None else ranks_without_steps(run_directory, world_size)
    if not silent:
        return []
    text = f"{ranks_words(silent)} left no step in {STEPS_FOLDER}/, though others did: killed, or only just begun"
    return [Notice("silent_ranks", text)]


def _manifest(run_directory: Path, notices: list[Notice]) -> RunManifest | None:
    if not (run_directory / RUN_FILE).is_file():
        return None
    try:
        return load_manifest(run_directory)
    except DataError as error:
        notices.append(Notice("unusable_file", str(error)))
        return None


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
    )
