"""Upload of this node's part of a run to a URL, `profile(out=URL)`: the folder on the node, and the process beside it.

The ranks of a node write into one folder of the node, as into any run directory. One of them starts
`stepscope.workflow.transfer.upload_process`, which uploads it. Training never waits for it, only the interpreter's end
does, for a bounded time: what runs on after a job's end is killed by Slurm and Kubernetes.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.run_directory import STEPS_FOLDER
from stepscope.core.file_locks import is_locked_by_another
from stepscope.core.protocol.upload_state import (
    UploadProgress,
    UploadStage,
    is_uploading,
    note_training_over,
    read_upload_progress,
)
from stepscope.core.text.numbers import counted, plain_size
from stepscope.training.run.side_process import SideProcess

logger = logging.getLogger(__name__)

SPOOL_VARIABLE = "STEPSCOPE_SPOOL"
KEEP_VARIABLE = "STEPSCOPE_SPOOL_KEEP"
WAIT_VARIABLE = "STEPSCOPE_UPLOAD_WAIT"
DEFAULT_WAIT_SECONDS = 120.0
_WAIT_AFTER_SIGNAL_SECONDS = 5.0
"""Slurm and Kubernetes kill 30 s after SIGTERM, and the user's own clean-up comes first."""
_FIRST_AGAIN_SECONDS, _LAST_AGAIN_SECONDS = 10.0, 600.0
_LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.1
_TELLS_AFTER_SECONDS, _TELLS_EVERY_SECONDS = 1.0, 15.0
_UNUSABLE, _IN_USE = 3, 75
_STEP_FILE = re.compile(r"rank(\d{1,9})\.jsonl")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_USER = re.compile(r"(?<=://)[^/@]*@")
_YES = frozenset({"1", "on", "true", "yes"})


def is_url(out: str | os.PathLike[str]) -> bool:
    """Whether the folder of all runs is one in an object store."""
    return _URL.match(os.fspath(out)) is not None


def spool_folder(url: str, spool: str | os.PathLike[str] | None) -> Path:
    """The folder on this node for runs that go to a URL.

    Args:
        spool: for all URLs; None for STEPSCOPE_SPOOL, else a folder of the user in the node's temporary directory.

    Raises:
        OSError: it cannot be made, or others may write it.
    """
    given = spool or os.environ.get(SPOOL_VARIABLE)
    root = Path(given).expanduser().absolute() if given else Path(tempfile.gettempdir(), f"stepscope-{os.geteuid()}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = root.lstat()
    is_own = state.st_uid == os.geteuid() and stat.S_ISDIR(state.st_mode) and not state.st_mode & 0o022
    if not given and not is_own:  # in a directory that everyone may write
        raise PermissionError(f"{root} is not this user's alone; set {SPOOL_VARIABLE} to a folder of this node")
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", url.partition("://")[2]).strip("-.")[-60:]
    return root / f"{place}-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:8]}"


class NodeUpload:
    """Background task of each rank of a run that goes to a URL; the lowest rank on the node starts the process.

    Args:
        folder: the run's on this node.
        url: of all runs.
        reduces: traces are reduced to views beside training.
    """

    def __init__(self, folder: Path, url: str, rank: int, *, reduces: bool) -> None:
        self._reduces = reduces
        self._folder = folder
        self._url = url
        self._rank = rank
        self._process: SideProcess | None = None
        self._start_at = self._look_at = 0.0
        self._again_seconds = _FIRST_AGAIN_SECONDS
        self._reported: str | None = None
        self._pid = os.getpid()
        self._ended_ns = 0
        self._has_arrived = False
        atexit.register(self._at_exit)

    @property
    def run_url(self) -> str:
        """URL of the run, without a user's name and password."""
        return f"{self._shown_url}/{self._folder.name}"

    @property
    def _shown_url(self) -> str:
        return _USER.sub("", self._url).rstrip("/")

    def run_task(self) -> None:
        """About once a second, in the background."""
        now = time.monotonic()
        if self._process is not None:
            exit_code = self._process.exit_code
            if exit_code is not None:
                self._ended(exit_code, now)
            elif now >= self._look_at:
                self._look_at = now + _LOOK_SECONDS
                self._report(read_upload_progress(self._folder))
        elif now >= self._start_at and self._is_lowest_here():
            self._start(now)

    def close(self, *, is_signal: bool) -> None:
        """Nothing is written any more; after a signal the process may end without the interpreter's end."""
        self._ended_ns = time.time_ns()
        with suppress(OSError):
            note_training_over(self._folder)
        if is_signal:
            self._wait(_WAIT_AFTER_SIGNAL_SECONDS)

    def _start(self, now: float) -> None:
        flags = ["keep"] if os.environ.get(KEEP_VARIABLE, "").lower() in _YES else []
        flags += ["reduces"] if self._reduces else []
        arguments = (str(self._folder), self._url, str(os.getpid()), *flags)
        try:
            self._process = SideProcess("stepscope.workflow.transfer.upload_process", *arguments)
        except (OSError, RuntimeError) as error:
            self._start_at = now + _LAST_AGAIN_SECONDS
            logger.warning("no process can be started that uploads %s: %s", self._folder, error)

    def _ended(self, exit_code: int, now: float) -> None:
        self._process = None
        if exit_code == _UNUSABLE:
            self._report(read_upload_progress(self._folder))
            self._start_at = float("inf")
            return
        self._start_at = now + self._again_seconds
        self._again_seconds = min(self._again_seconds * 2, _LAST_AGAIN_SECONDS)

    def _report(self, progress: UploadProgress | None) -> None:
        """Log once why files wait."""
        if progress is None or progress.problem is None or progress.problem == self._reported:
            return
        if self._reported is None or progress.stage is UploadStage.FAILED:
            what = "is not uploaded" if progress.stage is UploadStage.FAILED else "waits for its upload, tried again"
            later = f"; later: stepscope runs upload {self._folder} {self._shown_url}"
            later = later if progress.stage is UploadStage.FAILED else ""
            logger.warning("the run %s, %s: %s%s", self._folder, what, progress.problem, later)
        self._reported = progress.problem

    def _is_lowest_here(self) -> bool:
        """Whether no lower rank of the run trains on this node, by the locks of their files."""
        with suppress(OSError):
            for entry in os.scandir(self._folder / STEPS_FOLDER):
                match = _STEP_FILE.fullmatch(entry.name)
                if match and int(match[1]) < self._rank and is_locked_by_another(entry.path):
                    return False
        return True

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:  # not in a process that was forked
            self._wait(_wait_seconds())
            if self._process is not None:
                self._process.leave()

    def _wait(self, seconds: float) -> None:
        """Until all has arrived, or so long; whoever waits is told on stderr."""
        self._ended_ns = self._ended_ns or time.time_ns()
        if self._has_arrived or self._start_at == float("inf"):
            return
        if self._process is None:  # of another rank here, or of a training of less than a second
            progress = read_upload_progress(self._folder)
            if is_uploading(self._folder) or self._stage_of(progress) is UploadStage.FINISHED:
                return
            self._start(time.monotonic())
        progress = self._poll(seconds)
        is_of_another = self._process is None or self._process.exit_code == _IN_USE
        if is_of_another or self._stage_of(progress) is UploadStage.FINISHED:
            self._has_arrived = not is_of_another
            return
        why = f" ({progress.problem})" if progress is not None and progress.problem else ""
        _tell(
            f"not all of the run has arrived at {self.run_url}{why}; a process goes on where the job lets it, "
            f"else: stepscope runs upload {self._folder} {self._shown_url}"
        )

    def _poll(self, seconds: float) -> UploadProgress | None:
        """Look until all has arrived, the process has ended, or so long; returns the last progress."""
        until = time.monotonic() + seconds
        tell_at = time.monotonic() + _TELLS_AFTER_SECONDS
        while True:
            progress = read_upload_progress(self._folder)
            has_ended = self._process is None or self._process.exit_code is not None
            now = time.monotonic()
            if self._stage_of(progress) is not UploadStage.WAITING or has_ended or now >= until:
                return progress
            if now >= tell_at:
                tell_at = now + _TELLS_EVERY_SECONDS
                _tell(f"uploads the run to {self.run_url}: {_waiting(progress)}; waits {until - now:.0f} s at most")
            time.sleep(_POLL_SECONDS)

    def _stage_of(self, progress: UploadProgress | None) -> UploadStage:
        """How far this process's training is, not an earlier one in the same folder."""
        if progress is None or progress.time_ns < self._ended_ns:
            return UploadStage.WAITING
        return progress.stage


def _waiting(progress: UploadProgress | None) -> str:
    if progress is None or not progress.files:
        return "the last files are looked at"
    why = f" ({progress.problem})" if progress.problem else ""
    return f"{counted(progress.files, 'file')} ({plain_size(progress.bytes)}) wait{why}"


def _tell(line: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed
        sys.stderr.write(f"stepscope: {line}\n")


def _wait_seconds() -> float:
    try:
        return max(float(os.environ.get(WAIT_VARIABLE, "")), 0.0)
    except ValueError:
        return DEFAULT_WAIT_SECONDS
