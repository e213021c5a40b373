"""How does a file of lines stay whole on a disk that fills up, and after a process that was killed in a line?"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

_LONGEST_LINE_BYTES = 1 << 16


class InUseError(OSError):
    """Another process, which is alive, appends to the file."""


class WholeLines:
    """A file that lines are appended to. What cannot be written whole is taken back to the last whole line.

    A half line that an earlier process left at the end is removed, so that the next line does not continue it.
    The file is this process's alone until it is closed or the process ends, where the file system can say so.

    Attributes:
        last_before: the last whole lines that the file had, without newlines: 64 KiB of them at most.

    Raises:
        InUseError: when it is made, while another process has the file.
        OSError: from every method, when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: FileIO = path.open("a+b", buffering=0)
        try:
            self._take(path)
            self.last_before = self._remove_half_line()
        except BaseException:
            self._file.close()
            raise

    def write(self, lines: bytes) -> None:
        """Append whole lines, each with its newline. They reach the kernel before this returns."""
        before = os.fstat(self._file.fileno()).st_size
        num_written = 0
        try:
            while num_written < len(lines):  # a disk that is nearly full takes a part and says nothing
                num_written += self._file.write(lines[num_written:]) or 0
        except OSError:
            with suppress(OSError):  # what writing failed with says more
                self._file.truncate(before + lines.rfind(b"\n", 0, num_written) + 1)
            raise

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self._file.close()

    def __del__(self) -> None:
        """Closed without a warning when the run that it belongs to is forgotten."""
        if hasattr(self, "_file"):
            self._file.close()

    def _take(self, path: Path) -> None:
        """By a lock of the process's own: one shared with forked loaders' workers would outlive it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise InUseError(error.errno, "another process writes it", str(path)) from error

    def _remove_half_line(self) -> list[bytes]:
        size = os.fstat(self._file.fileno()).st_size
        tail = os.pread(self._file.fileno(), _LONGEST_LINE_BYTES, max(size - _LONGEST_LINE_BYTES, 0))
        if tail and not tail.endswith(b"\n"):
            self._file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
        return tail.split(b"\n")[:-1]
