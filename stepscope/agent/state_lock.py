"""Is the state directory this agent's alone? A lock on a file in it, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from stepscope.core.errors import UsageError

_log = logging.getLogger(__name__)

LOCK_FILE = "lock"
_ENDING_SECONDS = 6.0
"""An agent that was told to end takes some seconds."""
_LOOK_SECONDS = 0.2
_LONGEST = 200


class StateLock:
    """Held while it is open; a context manager. The file stays: to remove it would let two agents lock two files.

    Args:
        directory: which it is about; made where it is not there.
        seconds: how long another agent is waited for.
    """

    def __init__(self, directory: Path, *, seconds: float = _ENDING_SECONDS) -> None:
        self._directory = directory
        self._seconds = seconds
        self._file = -1

    def __enter__(self) -> StateLock:
        """
        Raises:
            UsageError: another agent holds it.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = "is no folder" if isinstance(error, FileExistsError) else error.strerror
            _log.warning("nothing outlives this agent: %s: %s", self._directory, why)
            return self
        try:
            self._file = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
        except BlockingIOError:
            holder = self._holder()
            self.__exit__()
            raise UsageError(
                f"another agent{holder} keeps its state there",
                where=str(self._directory),
                what_next="end it, or give this one a state.directory of its own",
            ) from None
        except OSError as error:  # a file system without locks, or where nothing can be made
            _log.warning("whether another agent uses %s cannot be told: %s", self._directory, error.strerror or error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        until = time.monotonic() + self._seconds
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
            time.sleep(_LOOK_SECONDS)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def _holder(self) -> str:
        """Which, as it has written itself: on a shared file system it may be another machine's."""
        told = os.pread(self._file, _LONGEST, 0).decode(errors="replace")
        return f" ({told})" if told else ""
