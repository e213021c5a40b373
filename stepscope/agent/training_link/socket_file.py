"""Where does the agent's socket lie, who may connect, and what if there is one already?"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress

from stepscope.core.errors import UsageError

DEFAULT_MODE = 0o666
"""Training runs under any user, and connecting takes the right to write."""
_LONGEST = 107
"""Bytes of sockaddr_un's path, less the zero at its end."""
_QUEUE = 128


class SocketFile:
    """A listening Unix socket that is this process's alone; a context manager that leaves nothing behind.

    A lock beside it tells an agent that runs from a file that a killed one has left. An abstract socket (@name) has
    neither file nor mode.

    Attributes:
        listening: never waits; there while it is open.
    """

    listening: socket.socket

    def __init__(self, path: str, *, mode: int = DEFAULT_MODE) -> None:
        self.path = path
        self._mode = mode
        self._lock = -1

    def __enter__(self) -> SocketFile:
        """
        Raises:
            UsageError: another agent listens there, or no socket can lie there.
            OSError: this user cannot make one there, or the folder's own folder is not there.
        """
        try:
            self.listening = self._abstract() if self.path.startswith("@") else self._in_folder()
        except BaseException:
            self._unlock()
            raise
        self.listening.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.path.startswith("@"):
            with suppress(OSError):
                os.unlink(self.path)
        self.listening.close()
        self._unlock()

    def _abstract(self) -> socket.socket:
        return self._bound("\0" + self.path[1:])

    def _in_folder(self) -> socket.socket:
        if len(os.fsencode(self.path)) > _LONGEST:  # before anything is made there
            raise OSError(errno.ENAMETOOLONG, f"too long for a socket, which has at most {_LONGEST} bytes", self.path)
        folder = os.path.dirname(self.path)
        if folder and not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, 0o755)  # whatever the umask: training of other users is to pass
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken() from None
        self._remove_stale()
        listening = self._bound(self.path)
        os.chmod(self.path, self._mode)  # until now nobody else could connect
        return listening

    def _remove_stale(self) -> None:
        try:
            is_socket = stat.S_ISSOCK(os.lstat(self.path).st_mode)
        except FileNotFoundError:
            return
        if not is_socket:
            raise UsageError("is there and no socket", where=self.path, what_next="choose another with --socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                os.unlink(self.path)
                return
            except BlockingIOError:
                pass  # somebody listens, and has much to do
        raise self._taken()

    def _bound(self, address: str) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(address)
            listening.listen(_QUEUE)
        except OSError:
            listening.close()
            if address.startswith("\0"):
                raise self._taken() from None
            raise
        return listening

    def _taken(self) -> UsageError:
        return UsageError(
            "another agent listens at this socket",
            where=self.path,
            what_next="stop it, or choose another with --socket ('' for none)",
        )

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)  # the file stays: to remove it would let two agents lock two files
