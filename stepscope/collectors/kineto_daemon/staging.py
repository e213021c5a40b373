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

from stepscope.collectors.kineto_daemon.registry import KinetoProcess

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

    def __init__(self, process: KinetoProcess, base: str | None) -> None:
        """Make it.

        Args:
            process: whose.
            base: its KINETO_ONDEMAND_TRACE_DIR, None without.

        Raises:
            OSError: it cannot be made.
            ValueError: the base leads elsewhere.
        """
        if base is not None and (not base.startswith("/") or ".." in base.split("/")):
            raise ValueError(f"its KINETO_ONDEMAND_TRACE_DIR is no plain folder: {base}")
        self._peer = process.peer
        self._is_local = base is None
        self._root = _root_of(process)
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
            try:
                os.fchown(folder, self._peer.uid, self._peer.gid)
            except PermissionError:  # without CAP_CHOWN: its name is secret, and nobody else can list it
                os.fchmod(folder, 0o1733)


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


def _root_of(process: KinetoProcess) -> str:
    """Where the process's file system is for us.

    Raises:
        OSError: it is out of our reach, so that its trace would be lost.
    """
    pid = process.peer.pid
    if pid == 0:
        raise ProcessLookupError("the agent does not see its process: run it in the host's PID namespace (hostPID)")
    try:
        is_ours = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except PermissionError:
        if process.pid != pid:
            raise PermissionError("its trace lies in its container, where the agent needs CAP_SYS_PTRACE") from None
        is_ours = True  # another user's process, on this machine as we are
    return "/" if is_ours else f"/proc/{pid}/root"


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
