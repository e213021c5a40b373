"""Progress of the upload beside training: a small file in the node's folder of the run, which training reads."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

STATE_FILE = ".upload-state"
OVER_FILE = ".upload-over"
"""Names the processes of training that have written their last, one a line."""
LOCK_FILE = ".upload-lock"
"""Locked by the process that uploads the folder."""


class UploadStage(StrEnum):
    """How far the upload of a node's folder is."""

    WAITING = "waiting"
    """files wait, or may still come"""
    FINISHED = "finished"
    """training has ended, and all has arrived"""
    FAILED = "failed"
    """it was given up"""


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """Progress of an upload.

    Attributes:
        files, bytes: that wait.
        problem: why they wait; None where nothing failed.
        time_ns: as of when; what was written to the folder later is not told of. ns since the epoch.
    """

    stage: UploadStage
    files: int = 0
    bytes: int = 0
    problem: str | None = None
    time_ns: int = 0

    def write(self, folder: Path) -> None:
        """Keep it in the node's folder; raises OSError."""
        temporary = folder / f"{STATE_FILE}.{os.getpid()}.part"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(folder / STATE_FILE)


def read_upload_progress(folder: Path) -> UploadProgress | None:
    """What the upload of a folder has kept; None where there is nothing that can be read."""
    try:
        document = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        return UploadProgress(
            UploadStage(document["stage"]),
            int(document["files"]),
            int(document["bytes"]),
            None if document["problem"] is None else str(document["problem"]),
            int(document["time_ns"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_training_over(folder: Path) -> None:
    """Tell the upload that this process writes nothing more; raises OSError."""
    with (folder / OVER_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


def is_training_over(folder: Path, process: int) -> bool:
    """Whether a process of training has said that it writes nothing more."""
    try:
        return str(process) in (folder / OVER_FILE).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False


def training_over_ns(folder: Path) -> int:
    """When the latest process of training said so, ns since the epoch; 0 where none has."""
    try:
        return (folder / OVER_FILE).stat().st_mtime_ns
    except OSError:
        return 0


def is_uploading(folder: Path) -> bool:
    """Whether a process uploads the folder now."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
