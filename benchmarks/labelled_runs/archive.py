"""Tar files of a lane of labelled runs: whole at any time, each small enough to be carried."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Sequence
from pathlib import Path

MOST_TAR_BYTES = 14 * 2**20


class ArchiveFullError(Exception):
    """A run does not fit into the tar files that are allowed."""


def pack(
    name: str, folder: Path, out: Path, lane: str, most_files: int | None = None, more: Sequence[Path] = ()
) -> int:
    """Add what a job left to the newest tar file of the lane that has room; returns its bytes.

    Args:
        folder: holds the run directory and `truth.json`.
        most_files: tar files of the lane; None: as many as it takes.
        more: files of `folder` that are kept beside the run, as NAME.FILE.

    Raises:
        ArchiveFullError: another file would be one too many, or the run alone is larger than a file may be.
    """
    for trace in folder.glob(f"{name}/*/step*/*.json.gz"):
        trace.write_bytes(gzip.compress(gzip.decompress(trace.read_bytes()), 9, mtime=0))
    kept = [folder / "truth.json", *more, *sorted((folder / name).rglob("*"))]
    num_bytes = sum(path.stat().st_size for path in kept if path.is_file())
    if most_files is not None and num_bytes > MOST_TAR_BYTES:
        raise ArchiveFullError(f"{name} has {num_bytes} bytes, a tar file at most {MOST_TAR_BYTES}")
    number = len(list(out.glob(f"{lane}-*.tar"))) or 1
    if not _has_room(path := out / f"{lane}-{number}.tar", num_bytes):
        if most_files is not None and number >= most_files:
            raise ArchiveFullError(f"{name} needs another tar file than the {most_files} of lane {lane}")
        path = out / f"{lane}-{number + 1}.tar"
    with tarfile.open(path, "a") as tar:
        tar.add(folder / "truth.json", f"{lane}/{name}.truth.json")
        for file in more:
            tar.add(file, f"{lane}/{name}.{file.name}")
        tar.add(folder / name, f"{lane}/{name}")
    return num_bytes


def _has_room(path: Path, num_bytes: int) -> bool:
    """Whether a tar file can be added to; one that a kill left incomplete cannot."""
    if not path.exists():
        return True
    return path.stat().st_size + num_bytes <= MOST_TAR_BYTES and _is_whole(path)


def _is_whole(path: Path) -> bool:
    try:
        with tarfile.open(path) as tar:
            tar.getmembers()
    except tarfile.ReadError:
        return False
    return True
