"""Input files that may be anything: opening refuses pipes and devices, and what is malformed becomes a `DataError`."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stepscope.core.errors import DataError, from_os_error

_PARSE_ERRORS = (
    *(AttributeError, EOFError, LookupError, OverflowError, RecursionError, TypeError, ValueError),
    *(pickle.UnpicklingError, struct.error),
)
_MAX_REASON_LENGTH = 120


@contextmanager
def open_input(path: Path, *, what_next: str) -> Iterator[BinaryIO]:
    """A regular file, open for reading.

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
    """Turn whatever Python error a malformed input causes into a `DataError` that begins with `what`."""
    try:
        yield
    except _PARSE_ERRORS as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:_MAX_REASON_LENGTH]
        raise DataError(f"{what} ({reason})", where=where, what_next=what_next) from None
