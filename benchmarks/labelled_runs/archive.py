"""Tar files of a lane of labelled runs: whole at any time, each small enough to be carried."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.labelled_runs.keep import trimmed

MOST_TAR_BYTES = 14 * 2**20


class ArchiveFullError(Exception):
    """A run does not fit into the tar files that are allowed."""


def pack(
    name: str, folder: Path, out: Path, lane: str, most_files: int | None = None, more: Sequence[Path] = ()
) -> int:
    """Add what a job left to a tar file of the lane that has room, traces trimmed as they are kept; returns its bytes.

    Args:
        folder: holds the run directory and `truth.json`.
        most_files: tar files of the lane; None: as many as it takes.
        more: files of `folder` that are kept beside the run, as NAME.FILE.

    Raises:
        ArchiveFullError: another file would be one too many, or the run alone is larger than a file may be.
    """
    for trace in folder.glob(f"{name}/*/step*/*.json.gz"):
        with suppress(ValueError, KeyError, EOFError, OSError, zlib.error):  # an incomplete trace stays as it is
            trace.write_bytes(trimmed(trace.read_bytes()))
    kept = [folder / "truth.json", *more, *sorted((folder / name).rglob("*"))]
    num_bytes = sum(path.stat().st_size for path in kept if path.is_file())
    if most_files is not None and num_bytes > MOST_TAR_BYTES:
        raise ArchiveFullError(f"{name} has {num_bytes} bytes, a tar file at most {MOST_TAR_BYTES}")
    path = next((path for path in _files(out, lane) if _room(path) >= num_bytes), None)
    if path is None:
        number = len(_files(out, lane)) + 1
        if most_files is not None and number > most_files:
            raise ArchiveFullError(f"{name} needs another tar file than the {most_files} of lane {lane}")
        path = out / f"{lane}-{number}.tar"
    with tarfile.open(path, "a") as tar:
        tar.add(folder / "truth.json", f"{lane}/{name}.truth.json")
        for file in more:
            tar.add(file, f"{lane}/{name}.{file.name}")
        tar.add(folder / name, f"{lane}/{name}")
    return num_bytes


def num_runs_that_fit(out: Path, lane: str, most_files: int, num_bytes: int) -> int:
    """Number of runs of this size that the tar files of a lane still have room for."""
    num_bytes = max(num_bytes, 1)
    rooms = [_room(path) for path in _files(out, lane)]
    rooms += [MOST_TAR_BYTES] * (most_files - len(rooms))
    return sum(room // num_bytes for room in rooms)


def _files(out: Path, lane: str) -> list[Path]:
    return sorted(out.glob(f"{lane}-*.tar"))


def _room(path: Path) -> int:
    """Bytes that can be added to a tar file; none where a kill left it incomplete."""
    left = MOST_TAR_BYTES - path.stat().st_size
    return left if left > 0 and _is_whole(path) else 0


def _is_whole(path: Path) -> bool:
    try:
        with tarfile.open(path) as tar:
            tar.getmembers()
    except tarfile.ReadError:
        return False
    return True
