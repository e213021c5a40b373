"""Reports on GPU memory from snapshots of torch's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.memory import NamedSnapshot, compare_memory, explain_memory
from stepscope.collectors.memory_snapshot import read_memory_snapshot, read_out_of_memory_note
from stepscope.core.documents.memory import MemoryComparison, MemoryReport
from stepscope.core.documents.run_directory import MEMORY_FOLDER
from stepscope.core.errors import DataError, none_usable
from stepscope.core.text.numbers import listed
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.paths import part_of_run, refuse_many_runs

SNAPSHOT_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_MAX_NAMED_SNAPSHOTS = 8


def read_memory(paths: Sequence[str]) -> list[tuple[str, MemoryReport]]:
    """Workflow of `memory`: reports by file name for snapshot files, folders or run directories.

    Out-of-memory ones come first.

    Raises:
        DataError: a path does not exist, contains no snapshot, or no snapshot can be read.
    """
    files = _snapshots_of(paths)
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


def read_memory_comparison(first: str, second: str) -> MemoryComparison:
    """Comparison of two memory snapshots, each a file or a folder that holds one.

    Raises:
        DataError: a path does not exist, is not of one snapshot, or cannot be read.
    """
    return compare_memory(_only_snapshot(first), _only_snapshot(second))


def _only_snapshot(path: str) -> NamedSnapshot:
    files = _snapshots_of([path])
    if len(files) > 1:
        names = listed([str(file.relative_to(path)) for file in files], _MAX_NAMED_SNAPSHOTS)
        what_next = f"give one of them, such as {files[0]}"
        raise DataError(f"holds {len(files)} memory snapshots: {names}", where=path, what_next=what_next)
    return NamedSnapshot(str(files[0]), read_memory_snapshot(files[0]), read_out_of_memory_note(files[0]))


def _snapshots_of(paths: Sequence[str]) -> list[Path]:
    """Snapshot files that the paths mean, of each path those of out-of-memory errors first; at least one."""
    files: list[Path] = []
    for path in paths:
        place = part_of_run(path, MEMORY_FOLDER)
        if place.is_dir():
            found = [file for file in place.rglob("*") if file.is_file() and file.name.endswith(SNAPSHOT_SUFFIXES)]
            files += sorted(found, key=lambda file: ("oom" not in file.name, file))
        else:
            files.append(place)
    if not files:
        refuse_many_runs(paths)
        what_next = "take one with torch.cuda.memory._dump_snapshot(), or profile(memory=...)"
        raise DataError("holds no memory snapshot", where=", ".join(paths), what_next=what_next)
    return files
