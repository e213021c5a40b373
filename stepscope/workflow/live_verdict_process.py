"""Process beside rank 0 that keeps the live verdict of its run, at the lowest priority.

`profile(live_verdict=...)` starts it, so that training's own process loads nothing.

    python -m stepscope.workflow.live_verdict_process RUN_DIRECTORY SECONDS PARENT_PID
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.process import end_after_parent, give_way


def main(arguments: Sequence[str]) -> int:
    """Work out verdicts until the parent process is gone; returns the exit code."""
    run_directory, seconds, parent = Path(arguments[0]), float(arguments[1]), int(arguments[2])
    give_way()
    end_after_parent(parent)
    from stepscope.workflow.live_verdict import LiveVerdictLoop  # loading takes long: only once it gives way

    loop = LiveVerdictLoop(run_directory, seconds)
    while True:
        time.sleep(loop.turn())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
