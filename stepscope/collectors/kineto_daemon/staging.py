"""Where does a process write its trace, so that nobody else can, and how is it taken from there?

A folder of its own for each capture, below /tmp or the process's KINETO_ONDEMAND_TRACE_DIR (libkineto since June 2026
refuses other places), in the process's own file system: a container has another /tmp than ours. Names are walked one by
one and links refused, as whoever runs the process could have put some there; what is read is a plain file of its user.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from stepscope.collectors.kineto_daemon.registry import Peer

DEFAULT_FOLDER = "/tmp"
_NAME = "stepscope-kineto-"
_LEFT_BEHIND_SECONDS = 3600.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Staging:
    """The folder of one capture of one process.

    Attributes:
        path: as the process sees it.
    """

    def __init__(self, peer: Peer, base: str | None) -> None:
        """Make it.

        Args:
            peer: the process.
            base: its KINETO_ONDEMAND_TRACE_DIR, None without.

        Raises:
            OSError: it cannot be made.
            ValueError: the base leads elsewhere.
        """
        if base is not None and (not base.startswith("/") or ".." in base.split("/")):
            raise ValueError(f"its KINETO_ONDEMAND_TRACE_DIR is no plain folder: {base}")
        self._peer = peer
        self._is_local = base is None
        self._root = "/" if _shares_our_files(peer.pid) else f"/proc/{peer.pid}/root"
        name = _NAME + secrets.token_hex(8)
        self.path = PurePosixPath(base or DEFAULT_FOLDER) / name
        with _opened(self._root, self.path.parent) as parent:
            os.mkdir(name, 0o700, dir_fd=parent)
            self._give_to_process(parent)

    def has(self, path: PurePosixPath) -> bool:
        """Whether the trace is there, under the name that it gets once it is whole."""
        try:
            with _opened(self._root, self.path) as folder:
                return stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def witness(self, path: PurePosixPath) -> str | None:
        """Our name of the trace, where looking for it cannot hang: None where the process chose the folder."""
        return os.path.join(self._root, *path.relative_to("/").parts) if self._is_local else None

    def open(self, path: PurePosixPath) -> int:
        """A descriptor of the trace, for reading; the caller closes it.

        Raises:
            OSError: it is not there, or is no plain file of the process's user.
        """
        with _opened(self._root, self.path) as folder:
            file = os.open(path.name, _FILE, dir_fd=folder)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != self._peer.uid or found.st_nlink != 1:
            os.close(file)
            raise PermissionError(f"{path} is no plain file of user {self._peer.uid}")
        return file

    def remove(self) -> None:
        """Remove the folder and the files in it. A process that is to write there afterwards says so and goes on."""
        with suppress(OSError), _opened(self._root, self.path.parent) as parent:
            _remove(parent, self.path.name)

    def _give_to_process(self, parent: int) -> None:
        if os.geteuid() == self._peer.uid:
            return
        with _opened_in(parent, self.path.name) as folder:
            if os.geteuid() == 0:
                os.fchown(folder, self._peer.uid, self._peer.gid)
            else:
                os.fchmod(folder, 0o1733)  # its name is secret, and nobody else can list it


def remove_left_behind(now_ns: int) -> None:
    """Remove folders that agents left which were killed; those of the last hour may be of one that works.

    Args:
        now_ns: ns since the epoch.
    """
    with suppress(OSError), _opened("/", PurePosixPath(DEFAULT_FOLDER)) as parent:
        for name in os.listdir(parent):
            if name.startswith(_NAME):
                with suppress(OSError):
                    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                    if now_ns - found.st_mtime_ns > _LEFT_BEHIND_SECONDS * 1e9:
                        _remove(parent, name)


def _remove(parent: int, name: str) -> None:
    """Remove a folder of plain files."""
    with suppress(OSError), _opened_in(parent, name) as folder:
        for inner in os.listdir(folder):
            with suppress(OSError):
                os.unlink(inner, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)


def _shares_our_files(pid: int) -> bool:
    """Whether the process sees the file system that we see; so it is taken where the kernel does not tell."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return True


@contextmanager
def _opened(root: str, path: PurePosixPath) -> Iterator[int]:
    """The folder `path` below `root`, reached without following a link below it."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to("/").parts:
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened_in(parent: int, name: str) -> Iterator[int]:
    folder = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)
