"""Is there an analysis already, and does it still stand for its traces?"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.run_layout import ANALYSIS_FILE, TRACES_FOLDER

_SAVED_ANALYSIS = re.compile(rb'"schema"\s*:\s*"stepscope\.analysis/')
_HEAD_BYTES = 65_536


def is_saved_analysis(path: Path) -> bool:
    """Whether a file looks like the output of `analyze --json`."""
    with path.open("rb") as file:
        return _SAVED_ANALYSIS.search(file.read(_HEAD_BYTES)) is not None


def captures(run: Path) -> list[Path]:
    """The folders of captured traces of a run directory."""
    return list((run / TRACES_FOLDER).glob("step*"))


def is_outdated(run: Path) -> bool:
    """Whether a capture is newer than the run's kept analysis."""
    kept_ns = (run / ANALYSIS_FILE).stat().st_mtime_ns
    return any(capture.stat().st_mtime_ns > kept_ns for capture in captures(run))
