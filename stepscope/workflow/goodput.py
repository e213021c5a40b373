"""Workflow of `goodput`: the runs below the given paths, joined to jobs, and what their GPU-time went to."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.goodput.attempts import AttemptRecord, attempt_records
from stepscope.analyzer.goodput.job import cluster_goodput, job_goodput, overlapping
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.core.documents.goodput import GoodputReport, JobGoodput
from stepscope.core.documents.run_directory import (
    CHECKPOINT_BYTES,
    CHECKPOINT_FOLDER,
    RUN_FILE,
    STEPS_FOLDER,
    RankSteps,
)
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import listed
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import find_manifest, is_recorded_run, load_manifest
from stepscope.store.step_records import MAX_RANKS_READ, read_attempts_steps
from stepscope.workflow.inputs.paths import check_readable

JOB_LABEL = "job"
"""Label of runs that are one job: `profile(labels={"job": ...})`."""


class _Run(NamedTuple):
    path: str
    job: str
    records: list[AttemptRecord]
    on_device: bool
    checkpoint_bytes: int | None
    notices: list[Notice]


def read_goodput(paths: Sequence[str]) -> GoodputReport:
    """Goodput of the jobs in run directories, or in folders of them.

    Runs with the same label `job`, without it of the same name, are one job, unless they were at work at the same time.

    Raises:
        DataError: a path cannot be read, or no run in it has a record of its time.
    """
    runs, warnings = [], []
    for path in dict.fromkeys(run for text in paths for run in _runs_below(text)):
        try:
            run = _read_run(Path(path))
        except DataError as error:
            warnings.append(Notice("unusable_run", str(error)))
            continue
        runs.append(run)
        warnings += run.notices
    jobs: list[JobGoodput] = []
    by_job: dict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    for name, own in by_job.items():
        groups = [own]
        if overlapping([record for run in own for record in run.records]):
            text = f"{name}: its runs were at work at the same time, so each counts as a job of its own"
            warnings.append(Notice("overlapping_runs", text))
            groups = [[run] for run in own]
        for group in groups:
            job, notices = _job(name, group)
            if job.rank_seconds > 0:
                jobs.append(job)
                warnings += notices
            else:
                text = f"{listed(job.runs)}: no step and no end is recorded; left out"
                warnings.append(Notice("unusable_run", text))
    if not jobs:
        raise DataError(
            warnings[0].message if warnings else "holds no run",
            where="" if warnings else ", ".join(paths),
            what_next="give the directory of a run that finished a step, or a folder of such runs",
        )
    jobs.sort(key=lambda job: -job.rank_seconds)
    return GoodputReport(jobs, cluster_goodput(jobs), warnings)


def _runs_below(text: str) -> list[str]:
    """The run directory itself, or all run directories in a folder.

    Raises:
        DataError: it cannot be read.
    """
    check_readable(text)
    if _is_run(text):
        return [text]
    if not os.path.isdir(text):
        raise DataError("is not a directory", where=text, what_next="give a run directory or a folder of them")
    names = sorted(name for name in os.listdir(text) if not name.startswith("."))
    return [path for name in names if _is_run(path := os.path.join(text, name))]


def _is_run(path: str) -> bool:
    return is_recorded_run(Path(path)) or os.path.isdir(os.path.join(path, STEPS_FOLDER))


def _read_run(run: Path) -> _Run:
    """What a run directory records of its time.

    Raises:
        DataError: run.json is damaged and there is no step.
    """
    notices = []
    manifest = find_manifest(run)
    ranks, of_steps = read_attempts_steps(run, MAX_RANKS_READ)
    steps = job_steps(ranks)
    if manifest is None and steps is None:
        load_manifest(run)
    if manifest is None and (run / RUN_FILE).exists():
        notices.append(Notice("unusable_file", f"{run / RUN_FILE} is damaged; attempts are by the steps alone"))
    attempts = [] if manifest is None else manifest.attempts
    training = None if steps is None else training_time(steps, attempts)
    labels = {} if manifest is None else manifest.labels
    is_whole = manifest is not None and len(ranks) == manifest.world_size
    return _Run(
        path=str(run),
        job=labels.get(JOB_LABEL) or run.resolve().name,
        records=attempt_records(str(run), steps, training, attempts),
        on_device=steps is not None and steps.on_device,
        checkpoint_bytes=_checkpoint_bytes(run, ranks if is_whole else []),
        notices=[*notices, *of_steps, *([] if steps is None else steps.notices)],
    )


def _job(name: str, runs: Sequence[_Run]) -> tuple[JobGoodput, list[Notice]]:
    sizes = [run.checkpoint_bytes for run in runs if run.checkpoint_bytes is not None]
    return job_goodput(
        name,
        [record for run in runs for record in run.records],
        on_device=any(run.on_device for run in runs),
        checkpoint_bytes=round(float(np.median(sizes))) if sizes else None,
    )


def _checkpoint_bytes(run: Path, ranks: Iterable[RankSteps]) -> int | None:
    """Bytes of a checkpoint, all ranks together: as steps recorded them, else as the run directory holds them."""
    by_step: dict[tuple[int, int], float] = defaultdict(float)
    for rank in ranks:
        for step in rank.steps:
            if (written := step.figures.get(CHECKPOINT_BYTES)) is not None:
                by_step[step.attempt, step.index] += written
    if by_step:
        return round(float(np.median(list(by_step.values()))))
    folder = run / CHECKPOINT_FOLDER
    sizes = [_size(checkpoint) for checkpoint in folder.glob("step*")] if folder.is_dir() else []
    return round(float(np.median(sizes))) if sizes else None


def _size(folder: Path) -> int:
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
