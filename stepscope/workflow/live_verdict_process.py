"""Process beside rank 0 that keeps the live verdict of its run, at the lowest priority.

`profile(live_verdict=...)` starts it, so that training's own process loads nothing.

    python -m stepscope.workflow.live_verdict_process RUN_DIRECTORY SECONDS PARENT_PID
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Work out verdicts until the parent process is gone; returns the exit code."""
    run_directory, seconds, parent = Path(arguments[0]), float(arguments[1]), int(arguments[2])
    _give_way()
    threading.Thread(target=_end_with, args=(parent,), name="stepscope-parent", daemon=True).start()
    from stepscope.workflow.live_verdict import LiveVerdictLoop  # loading takes long: only once it gives way

    loop = LiveVerdictLoop(run_directory, seconds)
    while True:
        time.sleep(loop.turn())


_LOOK_SECONDS = 1.0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


def _give_way() -> None:
    """Run only while nothing else wants the processor or the disk, and be the first to go when memory runs out."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")  # else a session of its own is an equal of training's
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
