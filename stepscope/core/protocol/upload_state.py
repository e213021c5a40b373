"""Progress of the upload beside training: a small file in the node's folder of the run, which training reads."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

STATE_FILE = ".upload-state"
OVER_FILE = ".upload-over"
"""Says which process of training has written its last, where the upload may not have seen it write."""


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
        time_ns: when this was written, ns since the epoch.
    """

    stage: UploadStage
    files: int = 0
    bytes: int = 0
    problem: str | None = None
    time_ns: int = 0

    def write(self, folder: Path) -> None:
        """Keep it in the node's folder; raises OSError."""
        temporary = folder / f"{STATE_FILE}.{os.getpid()}.part"
        document = asdict(self) | {"time_ns": time.time_ns()}
        temporary.write_text(json.dumps(document), encoding="utf-8")
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
    (folder / OVER_FILE).write_text(str(os.getpid()), encoding="utf-8")


def is_training_over(folder: Path, process: int) -> bool:
    """Whether a process of training has said that it writes nothing more."""
    try:
        return (folder / OVER_FILE).read_text(encoding="utf-8") == str(process)
    except (OSError, ValueError):
        return False
