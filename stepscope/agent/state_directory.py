"""State directory of the agent: where it is, the lock that keeps other agents out, and the token in it."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import UsageError, from_os_error

TOKEN_FILE = "token"
_OF_ROOT = "/var/lib/stepscope"


def state_directory(told: str = "", environment: Mapping[str, str] | None = None) -> Path:
    """The directory; nothing is made.

    Args:
        told: by a setting; empty: what systemd gives the service, else /var/lib/stepscope for root, else the user's.
        environment: the process's own unless given.
    """
    environment = os.environ if environment is None else environment
    if told:
        return Path(told)
    if environment.get("STATE_DIRECTORY"):
        return Path(environment["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path(_OF_ROOT)
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "stepscope")


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


_LEAST, _MOST = 16, 512


def token_in(file: Path, *, is_made: bool = False) -> str:
    """The token.

    Args:
        file: which holds it, and nothing else.
        is_made: make one where there is no file, for the agent's user alone to read.

    Raises:
        UsageError: it cannot be read or made, or is none.
    """
    if is_made:
        try:
            _make(file)
        except OSError as error:
            raise from_os_error(error, "the token cannot be made", where=str(file), kind=UsageError) from None
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(_MOST + 2).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise from_os_error(error, "the token cannot be read", where=str(file), kind=UsageError) from None
    if not _LEAST <= len(text) <= _MOST or not text.isprintable() or not text.isascii() or " " in text:
        raise UsageError(f"is no token: one line of {_LEAST} to {_MOST} letters and digits", where=str(file))
    if is_made and mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("others than the agent's user can read its token; chmod 600 %s", file)
    return text


def agent_token(directory: Path, file: Path | None = None) -> str | None:
    """Token of the agent; made where there is none. None where it cannot be had, which is logged.

    Args:
        directory: the state directory, which holds it where no file is given.
        file: given by a setting.

    Raises:
        UsageError: the given file cannot be used.
    """
    try:
        return token_in(file or directory / TOKEN_FILE, is_made=True)
    except UsageError as error:
        if file is not None:
            raise
        _log.warning("captures cannot be requested: %s", error)
        return None


def _make(file: Path) -> None:
    """Whole or not at all: a token cut short by a full disk would be nobody's for ever."""
    if file.exists():
        return
    descriptor, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # its user alone can read it
    try:
        with open(descriptor, "w") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(beside, file)
        except FileExistsError:
            pass  # another agent was first
        except OSError:  # a file system without links
            if not file.exists():
                os.replace(beside, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)
