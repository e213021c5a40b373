"""Process beside a node's training that uploads the node's folder of the run, at the lowest priority.

`profile(out=URL)` starts one a node, so that training's own process loads nothing and waits for nothing. It goes on
until all that training wrote has arrived, and keeps how far it is in a file for training to read.

    python -m stepscope.workflow.transfer.upload_process FOLDER URL PARENT_PID [keep] [reduces]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.core.process import give_way
from stepscope.core.protocol.upload_state import UploadProgress, UploadStage

IN_USE, UNUSABLE = 75, 3
"""Exit codes: another process uploads the folder; the store cannot be used from here."""


def main(arguments: Sequence[str]) -> int:
    """Upload until training has ended and all has arrived; returns the exit code."""
    folder, url, parent, flags = Path(arguments[0]), arguments[1], int(arguments[2]), set(arguments[3:])
    options = {"keep": "keep" in flags, "reduces": "reduces" in flags}
    give_way()
    try:
        from stepscope.workflow.transfer.beside_training import UploadBesideTraining  # loading takes long
        from stepscope.workflow.transfer.upload_runs import UploadInUseError
    except ImportError as error:
        _give_up(folder, f'{error.name} is not installed; run: pip install "stepscope[analyze]"')
        return UNUSABLE
    try:
        return 0 if UploadBesideTraining(folder, url, parent, **options).run() else UNUSABLE
    except UploadInUseError:
        return IN_USE
    except Exception as error:
        _give_up(folder, str(error) or type(error).__name__)
        return UNUSABLE


def _give_up(folder: Path, problem: str) -> None:
    with suppress(OSError):
        UploadProgress(UploadStage.FAILED, problem=problem, time_ns=time.time_ns()).write(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
