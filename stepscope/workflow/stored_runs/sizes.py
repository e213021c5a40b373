"""Sizes of a stored run by kind of file, and the newest time of a file that training writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.stored_runs import RunBytes

PRUNED_MARK = ".stepscope-pruned"
"""Begins the name of what is being deleted: in a folder a renamed run or part of one, in a store an object in it."""

_KIND_OF_FOLDER = {
    layout.TRACES_FOLDER: "traces",
    layout.LIGHT_FOLDER: "traces",
    layout.VIEWS_FOLDER: "views",
    layout.STEPS_FOLDER: "telemetry",
    layout.METRICS_FOLDER: "telemetry",
    layout.RANKS_FOLDER: "telemetry",
    layout.TRUTH_FOLDER: "telemetry",
    layout.UPLOADS_FOLDER: "telemetry",
    layout.FLIGHT_FOLDER: "dumps",
    layout.MEMORY_FOLDER: "dumps",
    layout.NCCL_FOLDER: "dumps",
    layout.CHECKPOINT_FOLDER: "checkpoints",
}
_KIND_OF_FILE = {
    layout.RUN_FILE: "telemetry",
    layout.LIVE_VERDICT_FILE: "telemetry",
    layout.ANALYSIS_FILE: "views",
    layout.TIMELINE_FILE: "views",
}
TRACE_FOLDERS = (layout.TRACES_FOLDER, layout.LIGHT_FOLDER)
_HALF_WRITTEN = re.compile(r"\..+\.(?:part|partial)")
_MAX_NAMED = 5


def kind_of_file(path: str) -> str:
    """Kind of a file by its path in the run, a field of `RunBytes`."""
    folder, separator, name = path.partition("/")
    if separator:
        return _KIND_OF_FOLDER.get(folder, "other")
    return _KIND_OF_FILE.get(folder, "telemetry" if _HALF_WRITTEN.fullmatch(name or folder) else "other")


@dataclass(slots=True)
class RunSizes:
    """Sizes of one run, from its files.

    Attributes:
        written_ns: newest time of a file that training writes, ns since the epoch; None without one.
        is_timed: whether each of those files has a time.
        other_files: some that are not part of a run, checkpoints among them.
    """

    bytes: RunBytes = field(default_factory=RunBytes)
    num_files: int = 0
    written_ns: int | None = None
    is_timed: bool = True
    other_files: list[str] = field(default_factory=list)

    def add(self, path: str, num_bytes: int, modified_ns: int | None) -> None:
        """Count a file; `path` is the one in the run, with slashes."""
        kind = kind_of_file(path)
        self.num_files += 1
        self.bytes += RunBytes(**{kind: num_bytes})
        if kind in ("other", "checkpoints") and len(self.other_files) < _MAX_NAMED:
            self.other_files.append(path)
        if kind == "views":  # made whenever someone looks at the run
            return
        if modified_ns is None:
            self.is_timed = False
        else:
            self.written_ns = max(modified_ns, self.written_ns or 0)
