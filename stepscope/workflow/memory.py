"""GPU memory reports from snapshots of PyTorch's caching allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.memory import explain_memory
from stepscope.collectors.memory_snapshot import read_memory_snapshot, read_out_of_memory_note
from stepscope.core.documents.memory import MemoryReport
from stepscope.core.documents.run_directory import MEMORY_FOLDER
from stepscope.core.errors import DataError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.paths import part_of_run, refuse_many_runs

_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")


def read_memory(paths: Sequence[str]) -> list[tuple[str, MemoryReport]]:
    """Reports by file name for snapshot files, folders or run directories, out-of-memory snapshots first.

    Raises:
        DataError: a path does not exist, contains no snapshot, or no snapshot can be read.
    """
    files = [file for path in paths for file in _snapshots_of(path)]
    if not files:
        refuse_many_runs(paths)
        raise DataError(
            "holds no memory snapshot",
            where=", ".join(paths),
            what_next="take one with torch.cuda.memory._dump_snapshot(), or profile(memory=...)",
        )
    reports, errors = [], []
    for file in files:
        try:
            reports.append((str(file), explain_memory(read_memory_snapshot(file), read_out_of_memory_note(file))))
        except DataError as error:
            errors.append(error)
    if not reports:
        raise none_usable(errors, "memory snapshots", what_next="give files of torch.cuda.memory._dump_snapshot()")
    name, first = reports[0]
    notices = [Notice("unusable_file", str(error)) for error in errors]
    return [(name, replace(first, warnings=[*first.warnings, *notices])), *reports[1:]]


def _snapshots_of(path: str) -> list[Path]:
    place = part_of_run(path, MEMORY_FOLDER)
    if not place.is_dir():
        return [place]
    files = [file for file in place.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES)]
    return sorted(files, key=lambda file: ("oom" not in file.name, file))
