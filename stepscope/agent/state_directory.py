"""State directory of the agent: where it is, the lock that keeps other agents out, and the token in it."""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import UsageError, from_os_error

TOKEN_FILE = "token"
_ROOT_DIRECTORY = "/var/lib/stepscope"


def state_directory(configured: str = "", environment: Mapping[str, str] | None = None) -> Path:
    """Agent: path of its state directory on this machine; it is not created.

    Args:
        configured: by a setting; empty: systemd's STATE_DIRECTORY, else /var/lib/stepscope for root, else the user's.
    """
    environment = os.environ if environment is None else environment
    if configured:
        return Path(configured)
    if environment.get("STATE_DIRECTORY"):
        return Path(environment["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path(_ROOT_DIRECTORY)
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "stepscope")


_log = logging.getLogger(__name__)

LOCK_FILE = "lock"
_WAIT_SECONDS = 6.0
"""An agent that is stopping takes some seconds."""
_RETRY_SECONDS = 0.2
_MAX_HOLDER_BYTES = 200


class StateLock:
    """Lock of the agent's state directory. Its file is never removed: two agents could lock two files.

    Args:
        directory: created where it does not exist.
        seconds: how long to wait for another agent to end.

    Attributes:
        is_held: no other agent uses the directory; False also where that cannot be found out.
    """

    def __init__(self, directory: Path, *, seconds: float = _WAIT_SECONDS) -> None:
        self._directory = directory
        self._seconds = seconds
        self._file = -1
        self.is_held = False

    def __enter__(self) -> StateLock:
        """Raises `UsageError` where another agent holds it."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = "is not a folder" if isinstance(error, FileExistsError) else error.strerror
            _log.warning("the agent's state is not kept: %s: %s", self._directory, why)
            return self
        try:
            self._file = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
            self.is_held = True
        except BlockingIOError:
            # The holder as it wrote itself into the file; on a shared file system it may be on another machine.
            text = os.pread(self._file, _MAX_HOLDER_BYTES, 0).decode(errors="replace")
            holder = f" ({text})" if text else ""
            self.__exit__()
            raise UsageError(
                f"another agent{holder} uses this state directory",
                where=str(self._directory),
                what_next="stop it, or give this agent another state.directory",
            ) from None
        except OSError as error:  # a file system without locks, or read-only
            _log.warning("cannot find out if another agent uses %s: %s", self._directory, error.strerror or error)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_held = False
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
            time.sleep(_RETRY_SECONDS)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


_MIN_LENGTH, _MAX_LENGTH = 16, 512


def read_agent_token(file: Path, *, create: bool = False) -> str:
    """Agent: its token, read from a file that holds nothing else.

    Args:
        create: create the file with a random token where it does not exist, readable only for the agent's user.

    Raises:
        UsageError: it cannot be read or created, or is not a token.
    """
    if create:
        try:
            _create_token(file)
        except OSError as error:
            raise from_os_error(error, "the token cannot be created", where=str(file), kind=UsageError) from None
    try:
        if file.exists() and not file.is_file():  # reading a pipe would wait for ever
            raise UsageError("is not a file", where=str(file))
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(_MAX_LENGTH + 2).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise from_os_error(error, "the token cannot be read", where=str(file), kind=UsageError) from None
    if not _MIN_LENGTH <= len(text) <= _MAX_LENGTH or not text.isprintable() or not text.isascii() or " " in text:
        raise UsageError(
            f"is not a token: one line of {_MIN_LENGTH} to {_MAX_LENGTH} letters and digits", where=str(file)
        )
    if create and mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("other users can read the agent's token; chmod 600 %s", file)
    return text


def agent_token(directory: Path, file: Path | None = None) -> str | None:
    """Agent: its token, created in its state directory or `file` if missing. None where it cannot be had: logged.

    Args:
        directory: the state directory, which holds it where no file is given.

    Raises:
        UsageError: the given file cannot be used.
    """
    try:
        return read_agent_token(file or directory / TOKEN_FILE, create=True)
    except UsageError as error:
        if file is not None:
            raise
        _log.warning("captures cannot be requested: %s", error)
        return None


def _create_token(file: Path) -> None:
    """Create the file complete or not at all: a token cut short by a full disk would stay invalid for ever."""
    if file.exists():
        return
    beside = file.with_name(f".{file.name}.{os.urandom(8).hex()}")  # tempfile would load 0.8 MB
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as opened:
            opened.write(base64.urlsafe_b64encode(os.urandom(33)).decode() + "\n")
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
