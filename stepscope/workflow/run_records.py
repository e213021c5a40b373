"""Reports on what a run recorded beside its traces: hangs and steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from stepscope.analyzer.hang import explain_hang
from stepscope.analyzer.hang.live import device_waits
from stepscope.analyzer.step_telemetry import gradient_outliers, log_report, step_report
from stepscope.collectors.flight_recorder import find_flight_dumps, read_flight_dumps
from stepscope.collectors.torchtitan_logs import read_torchtitan_steps
from stepscope.collectors.training_logs.reading import read_training_log
from stepscope.core.documents.hang import HangReport
from stepscope.core.documents.run_directory import (
    FLIGHT_FOLDER,
    LIVE_FOLDER,
    StepReport,
    TrainingLog,
)
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted, listed
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import find_manifest
from stepscope.store.step_records import read_run_steps
from stepscope.workflow.inputs.paths import MAX_LISTED_RUNS, check_readable, part_of_run, refuse_many_runs
from stepscope.workflow.live_hang import read_rank_states


def read_hang(paths: Sequence[str]) -> HangReport:
    """Workflow of `hang`: report from files, folders of dumps, or run directories with a folder flight/.

    Raises:
        DataError: a path does not exist, or no dump can be read.
    """
    places = [_dumps_of(path) for path in paths]
    files, left_out = find_flight_dumps(places)
    if not files:
        refuse_many_runs(paths)
        _refuse_dumps_below(places)
        raise DataError(
            "holds no flight recorder dump",
            where=", ".join(paths),
            what_next="set TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE before the job starts",
        )
    dumps, unusable = read_flight_dumps(files)
    report = explain_hang(dumps, world_size=_world_size_of(places), device_waits=_device_waits_of(places))
    return replace(report, warnings=[*left_out, *unusable])


def _refuse_dumps_below(places: Sequence[Path]) -> None:
    """Refuse a folder whose dumps are one level down; to be called where nothing else was found.

    Raises:
        DataError: a path is such a folder; names the folders with dumps.
    """
    for place in places:
        folders = sorted(child for child in place.iterdir() if child.is_dir()) if place.is_dir() else []
        with_dumps = [
            folder for folder in folders if os.access(folder, os.R_OK | os.X_OK) and find_flight_dumps([folder])[0]
        ]
        if with_dumps:
            holders = listed((folder.name for folder in with_dumps), MAX_LISTED_RUNS)
            what = f"no flight recorder dump here; these folders in it hold some: {holders}"
            raise DataError(what, where=str(place), what_next=f"run: stepscope hang {with_dumps[0]}")


def _device_waits_of(places: Sequence[Path]) -> dict[int, str]:
    """Waits for the device of the ranks whose dumps these are, as the ranks left them beside the dumps."""
    folders = [place if place.is_dir() else place.parent for place in places]
    live = [folder if folder.name == LIVE_FOLDER else folder / LIVE_FOLDER for folder in folders]
    return device_waits([state for folder in dict.fromkeys(live) for state in read_rank_states(folder)])


def _world_size_of(places: Sequence[Path]) -> int:
    """World size of the run that contains the dumps; 0 if no run does."""
    for place in places:
        folder = place if place.is_dir() else place.parent
        folder = folder.parent if folder.name == LIVE_FOLDER else folder
        if folder.name == FLIGHT_FOLDER and (manifest := find_manifest(folder.parent)):
            return manifest.world_size
    return 0


def _dumps_of(path: str) -> Path:
    """Where the dumps of a path are: of a run directory in flight/, or else in flight/live/ while a step hangs."""
    flight = part_of_run(path, FLIGHT_FOLDER)
    if flight == Path(path):
        return flight
    live = flight / LIVE_FOLDER
    return live if live.is_dir() and not find_flight_dumps([flight])[0] else flight


FRAMEWORKS = "Megatron-LM, Megatron-DeepSpeed, torchtitan, Primus or the Hugging Face Trainer"
_LOG_SUFFIXES = (".log", ".out", ".txt", ".err", ".stdout", ".stderr", ".output")
_PACKED_SUFFIXES = ("", ".gz", ".bz2", ".xz")
_MAX_LOGS, _MAX_ENTRIES = 256, 50_000


def read_steps(path: str) -> StepReport:
    """Step report of a run directory, a folder of torchtitan's structured logs, or a training job's console log.

    Raises:
        DataError: there are no steps in it.
    """
    check_readable(path)
    folder = Path(path)
    if not folder.is_dir():
        return _steps_of_log(folder)
    try:
        ranks, notices = read_run_steps(folder)
        source = "stepscope"
        if not ranks:
            ranks, notices = read_torchtitan_steps(folder)
            source = "torchtitan"
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=path) from error
    if not any(rank.steps for rank in ranks):
        refuse_many_runs([path])
        return _steps_of_folder(folder)
    outliers = gradient_outliers(ranks, are_alike=_is_pure_data_parallel(folder))
    return replace(step_report(ranks, source), warnings=[*notices, *outliers])


def _steps_of_log(file: Path) -> StepReport:
    log = read_training_log(file)
    if log is None or not log.steps:
        why = log.notices[0].message if log is not None and log.notices else f"holds no steps of {FRAMEWORKS}"
        raise DataError(why, where=str(file), what_next="give a run directory, or the whole output of a training job")
    return log_report(log)


def _steps_of_folder(folder: Path) -> StepReport:
    """Report on the one log in a folder, or on the same steps in the logs of several ranks or starts."""
    names = [suffix + packed for suffix in _LOG_SUFFIXES for packed in _PACKED_SUFFIXES]
    entries = sorted(islice(folder.rglob("*"), _MAX_ENTRIES))
    files = [entry for entry in entries if entry.name.endswith(tuple(names)) and entry.is_file()]
    logs: dict[Path, TrainingLog] = {}
    notices = []
    for file in files[:_MAX_LOGS]:
        try:
            log = read_training_log(file)
        except DataError as error:
            notices.append(Notice("unusable_file", str(error)))
            continue
        if log is not None and log.steps:
            logs[file] = log
    if not logs:
        records = "steps/rank<r>.jsonl nor torchtitan's structured_logs"
        what = f"holds no steps: neither {records}, nor a log of {FRAMEWORKS}"
        raise DataError(what, where=str(folder), what_next="give the directory of a run that finished a step, or a log")
    if len(files) > _MAX_LOGS:
        notices.append(
            Notice("unread_files", f"{len(files) - _MAX_LOGS} of {len(files)} logs in {folder} are not read")
        )
    first, *others = logs
    if any(not _is_same_training(logs[first], logs[file]) for file in others):
        named = listed([str(file.relative_to(folder)) for file in logs])
        what = f"holds {counted(len(logs), 'log')} that do not have the same steps: {named}"
        raise DataError(what, where=str(folder), what_next=f"give one of them, such as {first}")
    report = log_report(_joined_logs(logs.values()))
    return replace(report, warnings=[*report.warnings, *notices])


def _joined_logs(logs: Iterable[TrainingLog]) -> TrainingLog:
    """The fullest of logs that have the same steps, with the steps before and after that only others have."""
    fullest = max(logs, key=lambda log: len(log.steps))
    first, last = fullest.steps[0].index, fullest.steps[-1].index
    by_index = {logged.index: logged for log in logs for logged in log.steps}
    beside = [by_index[index] for index in sorted(by_index)]
    before = [replace(logged, attempt=1) for logged in beside if logged.index < first]
    after = [replace(logged, attempt=fullest.steps[-1].attempt) for logged in beside if logged.index > last]
    return TrainingLog(fullest.source, [*before, *fullest.steps, *after], fullest.notices)


_SAME_DURATION_SHARE = 0.05


def _is_same_training(one: TrainingLog, other: TrainingLog) -> bool:
    """Whether most steps that both have took equally long, as on two ranks of a job."""
    ms = {(logged.attempt, logged.index): logged.ms for logged in one.steps}
    pairs = [(logged.ms, ms[key]) for logged in other.steps if (key := (logged.attempt, logged.index)) in ms]
    alike = sum(abs(a - b) <= _SAME_DURATION_SHARE * max(a, b) for a, b in pairs)
    return one.source == other.source and 2 * alike > len(pairs)


def _is_pure_data_parallel(folder: Path) -> bool:
    """Whether the run's mesh is data-parallel only; without a mesh, ranks may hold different parts of the model."""
    manifest = find_manifest(folder)
    mesh = manifest.mesh if manifest else {}
    return "dp" in mesh and all(size == 1 for name, size in mesh.items() if name != "dp")
