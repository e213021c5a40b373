"""Files below /proc and /sys (of this machine, or mounted into a container), and the readings made from them.

A file that cannot be read is an `Unread` with its reason, never an exception.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of

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


class HostReadings:
    """Readings, what is missing, findings."""

    def __init__(self, time_ns: int) -> None:
        """
        Args:
            time_ns: now, ns since the epoch.
        """
        self.time_ns = time_ns
        self._readings: list[Reading] = []
        self._missing: list[Missing] = []
        self._findings: list[Finding] = []

    def add(self, name: str, value: float, **labels: str | int) -> None:
        """One value in base units; `name` is whole."""
        self._readings.append(Reading(name, value, labels_of(**labels), self.time_ns))

    def miss(self, names: Iterable[str], why: Unread, **labels: str | int) -> None:
        """These metrics have no value."""
        self._missing += [Missing(name, labels_of(**labels), why.reason, why.detail) for name in names]

    def miss_line(self, name: str, path: str, what: str, **labels: str | int) -> None:
        """A file is there and says nothing of this."""
        self.miss([name], Unread(MissingReason.NOT_SUPPORTED, f"/{path}: without {what}"), **labels)

    def note(self, code: str, message: str, **labels: str | int) -> None:
        """One finding."""
        self._findings.append(Finding(code, message, labels_of(**labels), self.time_ns))

    def collection(self) -> Collection:
        """All of it."""
        return Collection(tuple(self._readings), tuple(self._missing), tuple(self._findings))
