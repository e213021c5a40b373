"""State of a stored run: whether something may still write it, and what that is known from."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.documents.stored_runs import RunState
from stepscope.core.documents.upload import NodeUpload, UploadState
from stepscope.core.text.numbers import listed
from stepscope.workflow.stored_runs.sizes import RunSizes

QUIET_SECONDS = 600.0
"""A run that ended is written no more once its files are older: other ranks and nodes end minutes later at most."""
SILENT_SECONDS = 86_400.0
"""A run without an end may be in a long step, hang, or be written by another host; after a day it counts as killed."""
UPLOAD_SECONDS = 7 * 86_400.0
"""An upload that has not ended may go on when its node is back."""


def state_of(
    sizes: RunSizes, manifest: RunManifest | None, uploads: Sequence[NodeUpload], locked: str | None, now_ns: int
) -> tuple[RunState, str]:
    """State of a run, and one phrase with what it is known from.

    Args:
        locked: file of the run that a process of this machine has open for writing; None without one.
    """
    if locked is not None:
        return RunState.RUNNING, f"a process writes {locked}"
    if sizes.written_ns is None or not sizes.is_timed:
        return RunState.RUNNING, "the store does not tell when its files were written"
    quiet_seconds = max((now_ns - sizes.written_ns) / 1e9, 0.0)
    waiting = [each.node for each in uploads if _may_go_on(each, now_ns)]
    if waiting:
        return RunState.UPLOADING, f"the upload of {listed(sorted(waiting), 3)} has not finished"
    if quiet_seconds < QUIET_SECONDS:
        return RunState.RUNNING, f"written {age_words(quiet_seconds)} ago"
    attempt = manifest.attempts[-1] if manifest is not None and manifest.attempts else None
    has_ended = attempt is not None and attempt.end_ns is not None
    if not has_ended and quiet_seconds < SILENT_SECONDS:
        return RunState.RUNNING, f"no end is recorded, and it was written {age_words(quiet_seconds)} ago"
    if attempt is None:
        return RunState.UNRECORDED, f"last written {age_words(quiet_seconds)} ago"
    if attempt.end_ns is None:
        return RunState.KILLED, f"no end is recorded; last written {age_words(quiet_seconds)} ago"
    return RunState.ENDED, attempt.ended or "ended"


def _may_go_on(upload: NodeUpload, now_ns: int) -> bool:
    return upload.state is not UploadState.FINISHED and now_ns - upload.updated_ns < UPLOAD_SECONDS * 1e9


_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))


def age_words(seconds: float) -> str:
    """A span of time as text: '40 s', '12 min', '3 h', '41 d'."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
