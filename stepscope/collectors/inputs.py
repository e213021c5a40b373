"""Inputs that may be anything: files and malformed content."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.core.errors import DataError, from_os_error

_PARSE_ERRORS = (
    *(AttributeError, EOFError, LookupError, OverflowError, RecursionError, TypeError, ValueError),
    struct.error,
)
_MAX_REASON_LENGTH = 120


@contextmanager
def open_input(path: Path, *, what_next: str) -> Iterator[BinaryIO]:
    """A regular file that a collector reads, open for reading.

    Raises:
        DataError: it cannot be read, or is a pipe or a device, which may never end.
    """
    try:
        if not path.is_file():
            raise DataError("is not a file", where=str(path), what_next=what_next)
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from None


@contextmanager
def malformed_as_data_error(what: str, *, where: str, what_next: str) -> Iterator[None]:
    """Collectors: turn any Python error of malformed input into a `DataError` that begins with `what`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, _PARSE_ERRORS) and not _is_of_pickle(error):
            raise
        reason = " ".join(f"{type(error).__name__} {error}".split())[:_MAX_REASON_LENGTH]
        raise DataError(f"{what} ({reason})", where=where, what_next=what_next) from None


def _is_of_pickle(error: Exception) -> bool:
    """Whether pickle raised it, which is loaded only by who uses it."""
    pickle = sys.modules.get("pickle")
    return pickle is not None and isinstance(error, pickle.UnpicklingError)


def looked_up(host: str) -> Any:
    """A host for a collector's or server's socket: text makes Python load its international names, 0.3 MB."""
    return host.encode() if host.isascii() else host
