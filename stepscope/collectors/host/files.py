"""What stands in a file of /proc or /sys, or why is it not told?"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.readings import MissingReason

_LARGEST = 8 << 20
"""Bytes. /proc/stat of 1,024 CPUs comes to 200 KiB."""
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


@dataclass(frozen=True, slots=True)
class Unread:
    """Why there is no text.

    Attributes:
        reason: in the words of readings.
        detail: one line for people, with the file.
    """

    reason: MissingReason
    detail: str


class Files:
    """Files below a root.

    Attributes:
        root: "/", or where a container has the machine's, or a tree made by a test.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    @property
    def is_mounted(self) -> bool:
        """Whether they are another machine's or namespace's than ours."""
        return str(self.root) != "/"

    def read(self, path: str) -> str | Unread:
        """The text of a file; `path` is below the root, without a slash at its start. Raises nothing."""
        try:
            with open(self.root / path, "rb", buffering=0) as file:
                parts = []
                left = _LARGEST
                while left > 0 and (part := file.read(min(left, 1 << 16))):
                    parts.append(part)
                    left -= len(part)
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, MissingReason.FAILED)
            return Unread(reason, f"/{path}: {error.strerror or error}")
        except ValueError as error:  # a zero byte in a path
            return Unread(MissingReason.FAILED, f"/{path!r}: {error}")
        return b"".join(parts).decode("utf-8", errors="replace")

    def names(self, path: str) -> list[str] | Unread:
        """Names in a folder, sorted. Raises nothing."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, MissingReason.FAILED)
            return Unread(reason, f"/{path}: {error.strerror or error}")

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder, as far as we may see."""
        return os.path.exists(self.root / path)
