"""Analysis of one job: reads its traces, finds the verdict, saves both in the run directory.

Without a trace the records of the job's steps are analysed, and dumps that show how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.analyzer.job import analyse_job, capture_of
from stepscope.analyzer.job_time.calibrated_steps import CalibratedSteps
from stepscope.analyzer.job_time.captured_steps import CapturedSteps
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import timeline_document
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.core.documents.analysis import Analysis, CaptureAnalyses, CaptureAnalysis
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.documents.run_directory import Attempt, RankSteps, RankTimeline, Step
from stepscope.core.errors import DataError, none_usable
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Notice
from stepscope.store.counter_records import read_counters
from stepscope.store.history.questions import MetricHistory
from stepscope.store.runs import find_manifest, save_analysis, save_timelines
from stepscope.store.step_records import ranks_without_steps, read_attempts_steps
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress, map_of_engine, task_paths
from stepscope.workflow.history.run_counters import counters_of_history
from stepscope.workflow.inputs.trace_files import NoCaptureError, find_trace_files
from stepscope.workflow.job_input import JobInput, read_job, read_untraced_job
from stepscope.workflow.light_steps import light_steps
from stepscope.workflow.rank_views import view_files

if TYPE_CHECKING:
    from stepscope.analyzer.dumps.joined import RunDumps


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


class RecentSteps(NamedTuple):
    """The steps by which a job is judged while it runs: the latest, and those that were profiled.

    Attributes:
        seconds: before the newest step; also what came before, until there are `least` of each rank.
        most_bytes: of all step files together, the newest lines of each.
    """

    seconds: float
    least: int = 20
    most_bytes: int = 8 << 20

    def of(self, ranks: Sequence[RankSteps]) -> list[RankSteps]:
        """Those of these."""
        newest_ns = max((rank.steps[-1].end_ns for rank in ranks if rank.steps), default=0)
        since_ns = newest_ns - int(self.seconds * 1e9)
        return [RankSteps(rank.rank, self._of_rank(rank.steps, since_ns)) for rank in ranks]

    def _of_rank(self, steps: list[Step], since_ns: int) -> list[Step]:
        first = len(steps) - self.least
        return [
            step
            for place, step in enumerate(steps)
            if step.attempt == steps[-1].attempt and (place >= first or step.end_ns > since_ns or step.state != "wait")
        ]


def analyze(
    paths: Sequence[str],
    *,
    whole_file: bool = False,
    capture: int | None = None,
    keep: bool = True,
    with_timelines: bool = False,
    network_bytes_per_second: float | None = None,
    recent: RecentSteps | None = None,
    history: MetricHistory | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> AnalysisResult:
    """Analyse the traces of one job; without any the step records of its run directory.

    Args:
        paths: files, archives, folders, one run directory, or fsspec URLs.
        whole_file: analyse the whole of each file instead of the profiled steps.
        capture: which one, where the files are several captures of the same processes; None for the latest.
        keep: whether to save analysis.json and timeline.json if a run directory was given; not of an older capture,
            and not in a store.
        with_timelines: whether to return the timelines.
        network_bytes_per_second: bandwidth of each GPU's network card in one direction, which sets the expected
            bandwidth of collectives between hosts.
        recent: judge a run by these steps alone; None for all.
        history: has counters of a run that kept none itself.

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
        analysis = _analyse_untraced(error, recent, history)
        is_kept = keep and error.url is None
        return _kept(AnalysisResult(analysis, None), error.run) if is_kept else AnalysisResult(analysis, None)
    records = None if whole_file or job.run_directory is None else _read_records(job.run_directory, recent, history)
    others = [] if records is None or not records.ranks else _other_captures(job, fan_out)
    analysis, final_views = _analyse(job, records, others, network_bytes_per_second)
    is_latest = capture in (None, job.num_captures)
    is_kept = keep and job.run_directory is not None and job.files.url is None and not whole_file and is_latest
    timelines = [timeline_document(view) for view in final_views] if is_kept or with_timelines else []
    result = AnalysisResult(analysis, None, timelines, job.num_captures)
    return _kept(result, job.run_directory) if is_kept and job.run_directory is not None else result


def _analyse(
    job: JobInput,
    records: _StepRecords | None,
    other_captures: Sequence[CapturedSteps],
    network_bytes_per_second: float | None,
) -> tuple[Analysis, list[RankView]]:
    context = replace(
        job.context,
        network_bytes_per_second=network_bytes_per_second,
        run=None if records is None else _run_facts(job, records, other_captures),
        notices=(*job.context.notices, *([] if records is None else records.notices)),
    )
    analysis, final_views = analyse_job(job.views, context)
    return analysis if records is None else _with_dumps(analysis, job, records), final_views


def _with_dumps(analysis: Analysis, job: JobInput, records: _StepRecords) -> Analysis:
    """The analysis joined with the dumps of its run."""
    from stepscope.analyzer.dumps.joined import with_dumps
    from stepscope.analyzer.dumps.records import JobRecords

    manifest = job.manifest
    hosts = {} if manifest is None else {0: manifest.host}
    hosts |= {view.rank: view.header.host_name for view in job.views if view.header.host_name}
    attempts = [] if manifest is None else manifest.attempts
    steps = {rank.rank: [step for step in rank.steps if step.attempt >= len(attempts)] for rank in records.ranks}
    world_size = analysis.job.world_size if manifest is None else manifest.world_size
    return with_dumps(analysis, records.dumps, JobRecords(world_size, attempts, steps, hosts))


def _kept(result: AnalysisResult, run_directory: Path) -> AnalysisResult:
    """The result after it was saved, or with a notice why it could not be."""
    try:
        save_timelines(run_directory, result.timelines)
        save_analysis(run_directory, result.analysis)
    except DataError as error:  # another user's run or a full disk: still return the verdict
        notice = Notice("not_kept", str(error))
        return replace(result, analysis=replace(result.analysis, warnings=[*result.analysis.warnings, notice]))
    return replace(result, kept_in=run_directory)


def _analyse_untraced(error: NoCaptureError, recent: RecentSteps | None, history: MetricHistory | None) -> Analysis:
    """Analyse a run without traces by its step records and dumps.

    Raises:
        NoCaptureError: it has no steps either, and its dumps do not show how it ended.
    """
    job, records = read_untraced_job(error.run), _read_records(error.run, recent, history)
    facts = _run_facts(job, records, [])
    context = replace(job.context, notices=(*records.notices, *job.context.notices))
    most_ranks = records.ranks[-1].rank + 1 if records.ranks else 0
    world_size = max(0 if job.manifest is None else job.manifest.world_size, most_ranks)
    missing = ranks_without_steps(error.run, world_size) if records.ranks else range(world_size)
    analysis = analyse_untraced_job(facts or RunFacts([]), context, world_size=world_size, missing_ranks=missing)
    analysis = _with_dumps(analysis, job, records)
    if facts is None and analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE:
        raise error
    return analysis


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
    jobs: dict[int, JobInput] = {}
    errors: list[DataError] = []
    number, count = 1, find_trace_files(paths, capture="all").num_captures
    while number <= count:
        try:
            job = read_job(paths, whole_file=whole_file, capture=number, fan_out=fan_out, on_progress=on_progress)
            jobs[number], count = job, job.num_captures
        except DataError as error:
            errors.append(error)
        number += 1
    run = next((job.run_directory for job in jobs.values()), None)
    records = None if whole_file or run is None else _read_records(run)
    has_steps = records is not None and bool(records.ranks)
    steps = {number: capture_of(job.views, job.context.mesh) for number, job in jobs.items() if has_steps}
    analyses: list[CaptureAnalysis] = []
    for number, job in jobs.items():
        others = [capture for other, capture in steps.items() if other != number]
        try:
            analysis, _ = _analyse(job, records, others, network_bytes_per_second)
            analyses.append(CaptureAnalysis(number, analysis))
        except DataError as error:
            errors.append(error)
    if not analyses:
        raise none_usable(errors, "captures", what_next="give the traces of torch.profiler")
    return CaptureAnalyses(analyses, [Notice("unusable_capture", str(error)) for error in errors])


class _StepRecords(NamedTuple):
    """What the step records of a run tell, whichever of its captures is analysed."""

    ranks: list[RankSteps]
    light: CalibratedSteps | None
    notices: list[Notice]
    counters: list[RankCounters]
    dumps: RunDumps


def _read_records(
    run_directory: Path, recent: RecentSteps | None = None, history: MetricHistory | None = None
) -> _StepRecords:
    ranks, notices = read_attempts_steps(run_directory, most_bytes=None if recent is None else recent.most_bytes)
    counters, unread = read_counters(run_directory)
    manifest = find_manifest(run_directory)
    if history is not None and not counters and manifest is not None:
        counters, unread = counters_of_history(history, run_directory, manifest, ranks)
    notices += [] if manifest is None else _still_running(ranks, manifest.attempts)
    ranks = ranks if recent is None else recent.of(ranks)
    world_size = len(ranks) if manifest is None else manifest.world_size
    is_whole = [rank.rank for rank in ranks] == list(range(world_size))
    light = light_steps(run_directory, ranks) if is_whole else None
    from stepscope.workflow.dumps import read_dumps  # which plain traces do not need: 0.06 s of a second analysis

    dumps = read_dumps(run_directory, world_size, manifest)
    return _StepRecords(ranks, light, [*notices, *unread], counters, dumps)


_SILENT_SECONDS, _SILENT_STEPS = 120.0, 5
"""A run without an end whose newest step is older than both was killed, or hangs."""


def _still_running(ranks: Sequence[RankSteps], attempts: Sequence[Attempt]) -> list[Notice]:
    """A notice where the latest attempt has no end and its newest step is recent, by the clocks of both hosts."""
    last = max((rank.steps[-1] for rank in ranks if rank.steps), key=lambda step: step.end_ns, default=None)
    if last is None or not attempts or attempts[-1].end_ns is not None or last.end_ns < attempts[-1].start_ns:
        return []
    age_seconds = (time.time_ns() - last.end_ns) / 1e9
    if age_seconds > max(_SILENT_SECONDS, _SILENT_STEPS * (last.end_ns - last.start_ns) / 1e9):
        return []
    steps = counted(len({(step.attempt, step.index) for rank in ranks for step in rank.steps}), "step")
    text = f"the job still runs: {steps} so far, the newest {max(age_seconds, 0.0):.0f} s ago; the verdict may change"
    return [Notice("still_running", text)]


def _run_facts(job: JobInput, records: _StepRecords, other_captures: Sequence[CapturedSteps]) -> RunFacts | None:
    """What the run directory tells of the job beside the analysed capture: nothing without step records."""
    hosts = {view.rank: view.header.host_name for view in job.views if view.header.host_name}
    if not any(rank.steps for rank in records.ranks):
        return None
    attempts = [] if job.manifest is None else job.manifest.attempts
    num_cpus, counters = job.context.num_cpus, records.counters
    return RunFacts(records.ranks, attempts, num_cpus, other_captures, records.light, hosts, counters)


_MOST_READ_HERE = 4
"""Traces of a capture in a store, where their sizes are not known: processes for each capture would take seconds."""


def _other_captures(job: JobInput, fan_out: FanOut) -> list[CapturedSteps]:
    """The run's captures besides the analysed one; one that cannot be read is no evidence."""
    captures = []
    for paths in job.files.other_captures:
        is_small = job.files.url is not None and len(paths) <= _MOST_READ_HERE and fan_out == HERE
        engine = FanOut(num_workers=1) if is_small else fan_out
        with suppress(DataError):
            tasks, mapping = task_paths(paths, engine), map_of_engine(paths, engine)
            views = view_files(tasks, whole_file=False, map_files=mapping).views
            captures.append(capture_of(list(views.values()), job.context.mesh))
    return captures
