"""Does another agent keep its things in this directory? A lock on a file there, which ends with its process."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from stepscope.core.errors import UsageError

_log = logging.getLogger(__name__)

LOCK_FILE = "lock"


class StateLock:
    """Held while it is open; a context manager. The file stays: to remove it would let two agents lock two files.

    Args:
        directory: which it is about; there must be one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1

    def __enter__(self) -> StateLock:
        """
        Raises:
            UsageError: another agent holds it.
        """
        try:
            self._file = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise UsageError(
                "another agent keeps its captures there",
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
