"""Errors that stepscope expects, and the exit code of each.

    StepscopeError            1   (never raised itself)
    +-- UsageError            2   the command line or an argument is wrong
    +-- DataError             3   an input cannot be used
    |   +-- NotATraceError       3   the file is something else
    |   +-- TruncatedTraceError  3   the trace ends too early
    +-- UnreachableError      4   a server, socket or object store does not answer

Every message is one line: what is wrong, where, what to do next.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import ClassVar


def printable(text: str) -> str:
    """The text with characters that are not printable escaped: paths and names in a file may hold terminal codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class StepscopeError(Exception):
    """Root of all errors that stepscope raises on purpose.

    Args:
        what: what is wrong.
        where: file, rank or setting that it is about; may be empty.
        what_next: what the reader should do; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", what_next: str = "") -> None:
        self.what = what
        self.where = where
        self.what_next = what_next
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{text}; {self.what_next}" if self.what_next else text
        return printable(" ".join(text.split()))


class UsageError(StepscopeError):
    """The command line or an argument is wrong."""

    exit_code = 2


class DataError(StepscopeError):
    """An input cannot be used."""

    exit_code = 3


class NotATraceError(DataError):
    """The file is not a profiler trace."""


class TruncatedTraceError(DataError):
    """The trace ends before its first step could be analysed."""


class UnreachableError(StepscopeError):
    """A server, socket or object store does not answer."""

    exit_code = 4


_NEXT_STEPS = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
}


def from_os_error(error: OSError, what: str, *, where: str, kind: type[StepscopeError] = DataError) -> StepscopeError:
    """The error to raise for a file or folder that the operating system refuses, with the reason and the next step.

    Args:
        what: what is not possible: "cannot be read".
        kind: UsageError for files that the user configures stepscope with.
    """
    next_step = _NEXT_STEPS.get(error.errno or 0, "check the path")
    return kind(f"{what} ({error.strerror or error})", where=where, what_next=next_step)


def none_usable(errors: Sequence[DataError], what: str, *, where: str = "", what_next: str) -> DataError:
    """The error to raise when no input can be used: the error of the only one, else their number and the first error.

    Args:
        errors: of the inputs, at least one.
        what: plural noun of the inputs: "files".
        what_next: what the reader should do where the first error does not say so.
    """
    if len(errors) == 1:
        return errors[0]
    what_next = "" if errors[0].what_next else what_next
    return DataError(
        f"none of {len(errors)} {what} can be used; the first: {errors[0]}", where=where, what_next=what_next
    )
