"""Runner of the suite: one run after another, each kept as soon as it is known, none able to stop the rest."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from stepscope.core.documents import run_directory as run_files
from stepscope.core.documents.analysis import Analysis, WhatIf
from stepscope.core.documents.what_if import Fix
from stepscope.core.errors import StepscopeError
from stepscope.core.text.numbers import counted, form
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.injections.faults import inject_faults
from stepscope.reference_workloads.launch import run_workload
from stepscope.reference_workloads.placement import device_type_of, refuse_launcher
from stepscope.reference_workloads.suite.cases import SuiteCase, SuiteRun
from stepscope.reference_workloads.suite.fixtures import write_fixture
from stepscope.reference_workloads.suite.provenance import provenance
from stepscope.reference_workloads.suite.results import PredictedFix, SuiteFolder, SuiteRunResult, why_run_failed
from stepscope.workflow.analyze import analyze
from stepscope.workflow.what_if import FIXABLE, what_if

if TYPE_CHECKING:
    from stepscope.reference_workloads.launch import WorkloadResult

_LOG = logging.getLogger(__name__)

KEEP_TRACES = ("whole", "trimmed", "none")
"""What stays of each run's traces: all; a small fixture a case, and all where none came out; nothing."""

_FIRST_GUESS_SECONDS = 40.0
"""How long a run is expected to take while none has been seen."""

_ARTEFACT_FOLDERS = (run_files.FLIGHT_FOLDER, run_files.MEMORY_FOLDER, run_files.STEPS_FOLDER, run_files.TRACES_FOLDER)

Tell = Callable[[str], None]
"""Called with one line on what happens."""


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of a suite: time budget, kept traces, repeats of failed runs.

    Attributes:
        budget_seconds: no run is begun that would probably end later, but for the first one; None for no limit.
        keep_traces: one of KEEP_TRACES.
        again: whether runs that failed are run again; one that its fault ended as it should has not.
    """

    budget_seconds: float | None = None
    keep_traces: str = "whole"
    again: bool = False


@dataclass(frozen=True, slots=True)
class SuiteRuns:
    """Results of a suite's runs when it stops.

    Attributes:
        refused: why a case's fault means nothing here, by the case's name.
    """

    by_name: Mapping[str, SuiteRunResult]
    refused: Mapping[str, str]
    is_complete: bool


def run_suite(
    cases: Sequence[SuiteCase],
    folder: SuiteFolder,
    options: SuiteOptions,
    tell: Tell,
    on_progress: Callable[[int, int, str], None] = lambda _done, _total, _name: None,
) -> SuiteRuns:
    """Train and analyse all runs of a suite that have no result yet: each case after its control.

    Args:
        tell: of each run that has ended, and of an end before the last one.
        on_progress: number of known runs and of all, and the run that begins.

    Raises:
        UsageError: the runs' devices are not here, a launcher has started this process, or another suite runs in the
            folder.
        DataError: the folder cannot be written.
    """
    refuse_launcher("a suite")
    refused = {case.name: why for case in cases if (why := _refusal(case)) is not None}
    cases = [case for case in cases if case.name not in refused]
    runs = _runs(cases)
    for run in runs:
        device_type_of(run.job.device_type, run.job.plan, 0.0, is_rank=False)
    with folder.held():
        known = known_results(cases, folder)
        results = {
            run.name: known[run.name]
            for run in runs
            if run.name in known and not (options.again and why_run_failed(run, known[run.name]) is not None)
        }
        if results:
            tell(f"{len(results)} of {counted(len(runs), 'run')} {form(len(results), 'is', 'are')} known already")
        is_complete = _make_missing(runs, cases, results, folder, options, tell, on_progress)
    return SuiteRuns(results, refused, is_complete)


def known_results(cases: Sequence[SuiteCase], folder: SuiteFolder) -> dict[str, SuiteRunResult]:
    """Results that the suite's folder has of these cases, by run; none of other jobs, code or devices."""
    found = {run.name: folder.load(run.name, _fingerprint(run)) for run in _runs(cases)}
    return {name: result for name, result in found.items() if result is not None}


def _runs(cases: Sequence[SuiteCase]) -> list[SuiteRun]:
    """Each once, a control before what is measured against it."""
    return list({run.name: run for case in cases for run in (case.control, case.run)}.values())


def _make_missing(
    runs: Sequence[SuiteRun],
    cases: Sequence[SuiteCase],
    results: dict[str, SuiteRunResult],
    folder: SuiteFolder,
    options: SuiteOptions,
    tell: Tell,
    on_progress: Callable[[int, int, str], None],
) -> bool:
    """Add what the results lack; returns whether there was time for all of it."""
    by_run = {case.run.name: case for case in cases}
    began = time.monotonic()
    took = [result.seconds for result in results.values()]
    num_known = len(results)
    for run in runs:
        if run.name in results:
            continue
        expected = median(took) if took else _FIRST_GUESS_SECONDS
        is_late = options.budget_seconds is not None and time.monotonic() - began + expected > options.budget_seconds
        if is_late and len(results) > num_known:  # one at least, so that the same command gets on
            tell(
                f"the time is up after {len(results)} of {counted(len(runs), 'run')}; "
                "the same command goes on from here"
            )
            return False
        on_progress(len(results), len(runs), run.name)
        result = _make(run, folder, _fingerprint(run))
        stays = _traces_stay(by_run.get(run.name), result, results, folder, options, tell)
        tidy_up(folder.runs / run.name, keeps_traces=stays)
        result = replace(result, artefacts=_artefacts(folder.runs / run.name, result))
        folder.save(result)
        results[run.name] = result
        took.append(result.seconds)
        tell(f"{len(results):3d}/{len(runs)}  {run.name}: {_line(result)}  ({result.seconds:.0f} s)")
    on_progress(len(runs), len(runs), "")
    return True


def _traces_stay(
    case: SuiteCase | None,
    result: SuiteRunResult,
    results: Mapping[str, SuiteRunResult],
    folder: SuiteFolder,
    options: SuiteOptions,
    tell: Tell,
) -> bool:
    """Trimming, they go only once their fixture is written. A control that is no case of its own needs none."""
    if options.keep_traces != "trimmed":
        return options.keep_traces == "whole"
    if result.cause is None:
        return True  # it failed: they are all there is to tell why
    if case is None:
        return False
    try:
        write_fixture(case, result, results.get(case.control.name, result), folder)
    except (StepscopeError, OSError, ValueError) as error:
        tell(f"no fixture of {case.name}, whose traces stay: {error}")
        return True
    return False


def tidy_up(run_directory: Path, *, keeps_traces: bool) -> None:
    """Delete what an analysed suite run no longer needs: checkpoints, and traces unless kept."""
    for name in (
        run_files.CHECKPOINT_FOLDER,
        *(() if keeps_traces else (run_files.TRACES_FOLDER, run_files.VIEWS_FOLDER)),
    ):
        shutil.rmtree(run_directory / name, ignore_errors=True)


def _refusal(case: SuiteCase) -> str | None:
    try:
        inject_faults(case.run.job)
    except StepscopeError as error:
        return str(error)
    return None


def _fingerprint(run: SuiteRun) -> str:
    text = f"{run.fingerprint} by {provenance(run.job.device_type)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make(run: SuiteRun, folder: SuiteFolder, fingerprint: str) -> SuiteRunResult:
    """Train and analyse; whatever goes wrong becomes the result's error."""
    directory = folder.runs / run.name
    shutil.rmtree(directory, ignore_errors=True)  # of a call that was killed, or of another definition
    began = time.monotonic()
    result = SuiteRunResult(run.name, fingerprint, 0.0)
    try:
        result = _trained(result, _train(run, folder))
        analysis = analyze([str(directory)]).analysis
        fixes = _quoted_changes(analysis.what_if)
        further, no_fix = _further_fixes(directory, analysis)
        errors = [prediction.replay_error for prediction in analysis.what_if]
        result = replace(
            result,
            device=analysis.job.gpu or analysis.job.device_kind,
            captured_step_ms=analysis.job.step_ms,
            cause=analysis.verdict.cause,
            reasons=list(analysis.verdict.reasons),
            confidence=analysis.verdict.confidence,
            summary=analysis.verdict.summary,
            distortion=analysis.trace_quality.profiler_distortion,
            mfu=analysis.job.mfu,
            fixes=fixes | further,
            no_fix=no_fix,
            replay_error=errors[0] if errors else None,
        )
    except StepscopeError as error:
        result = replace(result, error=str(error))
    except Exception as error:  # the one place that keeps a failing case from stopping the rest
        _LOG.exception("run %s failed", run.name)
        result = replace(result, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return replace(result, seconds=time.monotonic() - began)


def _train(run: SuiteRun, folder: SuiteFolder) -> WorkloadResult:
    job = run.job
    return run_workload(
        job.plan,
        out=folder.runs,
        run=run.name,
        preset=job.preset,
        recipe=job.recipe,
        injections=job.injections,
        num_steps=job.num_steps,
        simulate_compute_ms=job.simulate_ms,
        schedule=job.schedule,
        seed=job.seed,
        device=job.device_type,
    )


def _trained(result: SuiteRunResult, training: WorkloadResult) -> SuiteRunResult:
    peaks = [outcome.peak_allocated_bytes for outcome in training.outcomes]
    known = [peak for peak in peaks if peak is not None]
    # The mean: a fault that strikes every third step leaves the median as it is.
    return replace(
        result,
        trained=True,
        step_ms=fmean(training.settled_step_seconds) * 1e3,
        peak_allocated_bytes=max(known, default=None),
    )


def _further_fixes(directory: Path, analysis: Analysis) -> tuple[dict[Cause, PredictedFix], str | None]:
    """An analysis names only fixes that gain something; ask for the verdict's own cause all the same.

    Returns what was predicted, and why there is nothing where there should be.
    """
    cause = analysis.verdict.cause
    if cause not in FIXABLE or any(prediction.fix is cause for prediction in analysis.what_if):
        return {}, None
    try:
        report = what_if([str(directory)], causes=[cause])
    except StepscopeError as error:
        return {}, str(error)
    found = smallest_changes(report.fixes)
    return found, None if cause in found else "there is no what-if prediction"


def _quoted_changes(fixes: Iterable[WhatIf | Fix]) -> dict[Cause, PredictedFix]:
    """By cause. Of a cause's changes the first: the one that answers its reason, which a verdict quotes."""
    return {fix.fix: PredictedFix(fix.step_ms, fix.calibrated_step_ms) for fix in reversed(list(fixes))}


def smallest_changes(fixes: Iterable[Fix]) -> dict[Cause, PredictedFix]:
    """Smallest predicted change of each cause of a suite's run: a control has 2x the micro-batches, not 4x."""
    return _quoted_changes(sorted(fixes, key=lambda fix: -fix.step_ms))


def _artefacts(directory: Path, result: SuiteRunResult) -> list[str]:
    """What a run that failed has left once it is tidied up; a rank's empty list of steps is no result."""
    if result.error is None:
        return []
    return sorted(
        path.relative_to(directory).as_posix()
        for name in _ARTEFACT_FOLDERS
        for path in (directory / name).rglob("*")
        if path.is_file() and path.stat().st_size
    )


def _line(result: SuiteRunResult) -> str:
    if result.error is not None:
        return f"ended: {result.error[:160]}"
    step = "" if result.step_ms is None else f"step {result.step_ms:,.1f} ms, "
    reasons = f" ({', '.join(result.reasons)})" if result.reasons else ""
    return f"{step}{result.cause}{reasons}"
