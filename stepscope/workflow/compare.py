"""Comparison of two runs or two sets of runs: finds the runs of each side, loads or makes their analyses, compares."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.gates import parse_gate_conditions
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.comparison import Comparison
from stepscope.core.documents.run_directory import ANALYSIS_FILE
from stepscope.core.errors import DataError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.store.documents import decode_analysis
from stepscope.store.files import read_whole
from stepscope.store.runs import (
    capture_folders,
    find_manifest,
    has_current_analysis,
    is_run,
    is_saved_analysis,
    load_analysis,
)
from stepscope.store.step_records import StepTelemetry, read_step_telemetry
from stepscope.workflow.analyze import analyze
from stepscope.workflow.fan_out.engine import HERE, FanOut, Progress
from stepscope.workflow.inputs.paths import check_readable
from stepscope.workflow.inputs.remote_runs import open_remote_run
from stepscope.workflow.inputs.trace_files import find_trace_files


def compare(
    a: str,
    b: str,
    *,
    fail_on: Sequence[str] = (),
    assumed_spread: float | None = None,
    fan_out: FanOut = HERE,
    on_progress: Progress | None = None,
) -> Comparison:
    """Compare two runs or sets of runs, given as on the command line.

    Args:
        a, b: a run directory, a folder or file of traces, a saved analysis.json or a URL; or several of these,
            separated by commas, as a directory or as a glob.
        fail_on: gates, see analyzer.compare.gates.
        assumed_spread: relative standard deviation of the step time between runs of the same code, used with fewer
            than 4 runs; None: that of jobs with a GPU, or without.
        on_progress: called before each run.

    Raises:
        UsageError: a gate is malformed.
        DataError: no run of a side can be used.
        UnreachableError: a URL's store does not answer.
    """
    conditions = [condition for text in fail_on for condition in parse_gate_conditions(text)]
    paths = [find_runs(side) for side in (a, b)]
    total = sum(map(len, paths))
    notices: list[Notice] = []
    sides: list[list[RunRecord]] = []
    done = 0
    for side, found in zip((a, b), paths, strict=True):
        records, errors = [], []
        for path in found:
            if on_progress is not None:
                on_progress(done, total, path)
            done += 1
            try:
                records.append(read_run_record(path, notices, fan_out))
            except DataError as error:
                errors.append(error)
        if not records:
            raise none_usable(errors, "runs", where=side, what_next="check the path")
        notices += [Notice("unusable_run", str(error)) for error in errors]
        sides.append(records)
    return compare_runs(
        sides[0], sides[1], names=(a, b), conditions=conditions, assumed_spread=assumed_spread, notices=notices
    )


def find_runs(text: str) -> list[str]:
    """Workflow of `compare`: the runs of one of its two sides.

    Raises:
        DataError: there is no run.
    """
    if "://" in text:
        return [text]
    if text and Path(text).exists():
        check_readable(text)
        return _in_directory(Path(text)) if Path(text).is_dir() else [text]
    pieces = [piece for piece in text.split(",") if piece]
    if len(pieces) > 1:
        return list(dict.fromkeys(run for piece in pieces for run in find_runs(piece)))
    matches = sorted(glob.glob(text)) if glob.has_magic(text) else []
    if not matches:
        raise DataError("does not exist", where=text or "an empty path", what_next="check the path")
    return list(dict.fromkeys(run for match in matches for run in find_runs(match)))


def read_run_record(path: str, notices: list[Notice], fan_out: FanOut = HERE) -> RunRecord:
    """Read one run to compare, with its saved analysis if up to date, else analysed now.

    Raises:
        DataError: it cannot be used, or has neither traces nor unprofiled steps.
        UnreachableError: its store does not answer.
    """
    record = _read_record(path, notices, fan_out)
    if not record.analysis.ranks and not record.unprofiled_ms:
        raise DataError("has no steps to compare", where=path, what_next="profile more steps of the run")
    return record


def _read_record(path: str, notices: list[Notice], fan_out: FanOut) -> RunRecord:
    place = Path(path)
    name = path if "://" in path else place.resolve().name or path
    if "://" in path:
        remote = open_remote_run(path, [])  # the analysis has its notices
        return _record(name, _analyse(path, notices, fan_out), None if remote is None else remote.folder)
    if place.is_file():
        if not is_saved_analysis(place):
            return RunRecord(name, _analyse(path, notices, fan_out))
        run = place.parent if place.name == ANALYSIS_FILE else None
        analysis = decode_analysis(read_whole(place), where=path)
        return _record(run.resolve().name if run else name, analysis, run)
    analysis = _saved_analysis(place, notices) or _analyse(path, notices, fan_out)
    return _record(name, analysis, place)


def _record(name: str, analysis: Analysis, run: Path | None) -> RunRecord:
    telemetry = read_step_telemetry(run) if run else StepTelemetry()
    return RunRecord(
        name=name,
        analysis=analysis,
        manifest=find_manifest(run) if run else None,
        unprofiled_ms=telemetry.step_ms,
        parts_ms=telemetry.parts_ms,
        tokens=telemetry.tokens,
        memory_bytes=telemetry.memory_bytes,
    )


def _in_directory(directory: Path) -> list[str]:
    """The directory itself if it is one job, else each job in it."""
    if is_run(directory) or _holds_traces(directory):
        return [str(directory)]
    inside = sorted(child for child in directory.iterdir() if child.is_dir() and not child.name.startswith("."))
    runs = [str(child) for child in inside if is_run(child) or _holds_traces(child)]
    if not runs:
        raise DataError("holds no runs and no traces", where=str(directory), what_next="check the path")
    return runs


def _holds_traces(directory: Path) -> bool:
    try:
        return bool(find_trace_files([str(directory)]).paths)
    except DataError:
        return False


def _saved_analysis(run: Path, notices: list[Notice]) -> Analysis | None:
    """The analysis saved in a run, unless it is older than a capture, or damaged and can be made again."""
    if not has_current_analysis(run):
        return None
    try:
        return load_analysis(run)
    except DataError as error:
        if not capture_folders(run):
            raise
        notices.append(Notice("analysed_again", f"{error}: analysed again"))
        return None


def _analyse(path: str, notices: list[Notice], fan_out: FanOut) -> Analysis:
    analysis = analyze([path], keep=False, fan_out=fan_out).analysis
    notices += [n for n in analysis.warnings if n.code in ("unusable_file", "older_captures") and n not in notices]
    return analysis
