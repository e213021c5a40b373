"""Files below /proc and /sys, of this machine or as mounted into a container.

What cannot be read is a `NoValue` with its reason, never an exception.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import MissingReason

_MAX_BYTES = 8 << 20
"""/proc/stat of 1,024 CPUs comes to 200 KiB."""
_REASONS = {
    errno.EACCES: MissingReason.NO_PERMISSION,
    errno.EPERM: MissingReason.NO_PERMISSION,
    errno.ESRCH: MissingReason.GONE,
    errno.EOPNOTSUPP: MissingReason.NOT_SUPPORTED,  # /proc/pressure where PSI is off
    errno.EINVAL: MissingReason.NOT_SUPPORTED,  # the speed of an interface that is down
    errno.ENOENT: MissingReason.NOT_SUPPORTED,
    errno.ENOTDIR: MissingReason.NOT_SUPPORTED,
    errno.ENODEV: MissingReason.GONE,
}

T = TypeVar("T")


def _opened(path: str, flags: int) -> int:
    """A pipe in place of a file, as a folder of jobs may have it, reads as empty; nothing waits for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class Files:
    """Files of the host below a root; paths are given without a slash at their start.

    Attributes:
        root: "/", or where a container has the machine's, or a tree made by a test.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    @property
    def is_mounted(self) -> bool:
        """Whether they belong to another machine or namespace than this process."""
        return str(self.root) != "/"

    def read(self, path: str) -> str | NoValue:
        try:
            with open(self.root / path, "rb", buffering=0, opener=_opened) as file:
                parts = []
                left = _MAX_BYTES
                while left > 0 and (part := file.read(min(left, 1 << 16))):
                    parts.append(part)
                    left -= len(part)
        except OSError as error:
            return _why_unread(path, error)
        except ValueError as error:  # a zero byte in a path
            return NoValue(MissingReason.FAILED, f"/{path!r}: {error}")
        return b"".join(parts).decode("utf-8", errors="replace")

    def parse(self, path: str, parse: Callable[[str], T]) -> T | NoValue:
        """What `parse` makes of the text of a file."""
        text = self.read(path)
        if isinstance(text, NoValue):
            return text
        parsed = parse(text)
        return parsed._replace(detail=f"/{path}: {parsed.detail}") if isinstance(parsed, NoValue) else parsed

    def fields(self, path: str, parse: Callable[[str], Mapping[str, T]]) -> Fields[T]:
        """The values that `parse` finds in a file, by name."""
        return Fields(path, self.parse(path, parse))

    def number(self, path: str) -> int | NoValue:
        text = self.read(path)
        if isinstance(text, NoValue):
            return text
        word = text.strip()
        if not (word.isascii() and word.isdecimal()):
            return NoValue(MissingReason.UNREADABLE, f"/{path}: {word[:40]!r} is not a number")
        return int(word)

    def names(self, path: str) -> list[str] | NoValue:
        """Names in a folder, sorted."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError as error:
            return _why_unread(path, error)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder, as far as permissions show."""
        return os.path.exists(self.root / path)


class Fields(Generic[T]):
    """Values of one file of the host by name; a name that the file does not have gives a `NoValue`.

    Attributes:
        why_unread: why the whole file could not be read; None where it could.
    """

    def __init__(self, path: str, values: Mapping[str, T] | NoValue) -> None:
        self._path = path
        self._values = {} if isinstance(values, NoValue) else values
        self.why_unread = values if isinstance(values, NoValue) else None

    def __getitem__(self, name: str) -> T | NoValue:
        if self.why_unread is not None:
            return self.why_unread
        value = self._values.get(name)
        return not_in_file(self._path, name) if value is None else value


def not_in_file(path: str, what: str) -> NoValue:
    """Why there is no value where a file of the host is there and does not have it."""
    return NoValue(MissingReason.NOT_SUPPORTED, f"/{path}: without {what}")


def _why_unread(path: str, error: OSError) -> NoValue:
    reason = _REASONS.get(error.errno or 0, MissingReason.FAILED)
    return NoValue(reason, f"/{path}: {error.strerror or error}")
