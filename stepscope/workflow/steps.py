"""Report on all steps of a run, profiled or not: from the records of its ranks, or from what a framework logged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from stepscope.analyzer.step_telemetry import gradient_outliers, log_report, step_report
from stepscope.collectors.torchtitan_logs import read_torchtitan_steps
from stepscope.collectors.training_logs.reading import read_training_log
from stepscope.core.documents.steps import StepReport, TrainingLog
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted, listed
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import find_manifest
from stepscope.store.step_records import read_run_steps
from stepscope.workflow.inputs.paths import check_readable, refuse_many_runs

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
        return _of_log(folder)
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
        return _of_folder(folder)
    outliers = gradient_outliers(ranks, are_alike=_is_pure_data_parallel(folder))
    return replace(step_report(ranks, source), warnings=[*notices, *outliers])


def _of_log(file: Path) -> StepReport:
    log = read_training_log(file)
    if log is None or not log.steps:
        why = log.notices[0].message if log is not None and log.notices else f"holds no steps of {FRAMEWORKS}"
        raise DataError(why, where=str(file), what_next="give a run directory, or the whole output of a training job")
    return log_report(log)


def _of_folder(folder: Path) -> StepReport:
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
        what = (
            f"holds no steps: neither steps/rank<r>.jsonl nor torchtitan's structured_logs, nor a log of {FRAMEWORKS}"
        )
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
    report = log_report(_joined(logs.values()))
    return replace(report, warnings=[*report.warnings, *notices])


def _joined(logs: Iterable[TrainingLog]) -> TrainingLog:
    """The fullest of logs that have the same steps, with the steps before and after that only others have."""
    fullest = max(logs, key=lambda log: len(log.steps))
    first, last = fullest.steps[0].index, fullest.steps[-1].index
    by_index = {logged.index: logged for log in logs for logged in log.steps}
    beside = [by_index[index] for index in sorted(by_index)]
    before = [replace(logged, attempt=1) for logged in beside if logged.index < first]
    after = [replace(logged, attempt=fullest.steps[-1].attempt) for logged in beside if logged.index > last]
    return TrainingLog(fullest.source, [*before, *fullest.steps, *after], fullest.notices)


_SAME_SHARE = 0.05


def _is_same_training(one: TrainingLog, other: TrainingLog) -> bool:
    """Whether most steps that both have took equally long, as on two ranks of a job."""
    ms = {(logged.attempt, logged.index): logged.ms for logged in one.steps}
    pairs = [(logged.ms, ms[key]) for logged in other.steps if (key := (logged.attempt, logged.index)) in ms]
    alike = sum(abs(a - b) <= _SAME_SHARE * max(a, b) for a, b in pairs)
    return one.source == other.source and 2 * alike > len(pairs)


def _is_pure_data_parallel(folder: Path) -> bool:
    """Whether the run's mesh is data-parallel only; without a mesh, ranks may hold different parts of the model."""
    manifest = find_manifest(folder)
    mesh = manifest.mesh if manifest else {}
    return "dp" in mesh and all(size == 1 for name, size in mesh.items() if name != "dp")
