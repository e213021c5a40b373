"""Files that appear only when they are whole; devices, pipes and open descriptors are written through."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from stepscope.core.errors import DataError, from_os_error


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to a temporary neighbour and rename it to `path`, replacing what was there.

    What leads elsewhere is written through: /dev/stdout, a pipe, a device, in whose place no file must come.

    Raises:
        DataError: the folder cannot be written.
    """
    try:
        if leads_elsewhere(path):
            write_through(path, content)
            return
        temporary = _neighbour(path)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise from_os_error(error, "cannot be written", where=str(path)) from error


def check_writable(path: Path) -> None:
    """Look, before long work, whether `write_whole` could write `path`. What is there stays as it is.

    Raises:
        DataError: it could not.
    """
    try:
        if leads_elsewhere(path):
            return  # opening a pipe would end its reader's wait
        temporary = _neighbour(path)
        try:
            with temporary.open("xb") as file:
                file.write(b"1")  # an empty file needs no space
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, "cannot be written", where=str(path)) from error


def _neighbour(path: Path) -> Path:
    """
    Raises:
        DataError: the path has no name.
    """
    if not path.name:
        raise DataError("no name of a file is given", what_next="name one")
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")


def read_whole(path: Path) -> bytes:
    """Content of `path`.

    Raises:
        DataError: it is not there or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError("is not there", where=str(path), what_next="check the path") from error
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from error


_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/self/fd)/(\d+)\Z")


def leads_elsewhere(path: Path) -> bool:
    """Whether what is written to the path goes somewhere else, and the path stays what it is.

    Raises:
        OSError: it cannot be told.
    """
    if _descriptor(path) is not None:
        return True
    return path.is_fifo() or path.is_char_device() or path.is_block_device()


def write_through(path: Path, content: bytes) -> None:
    """Write to what the path leads to.

    Raises:
        OSError: it cannot be written.
    """
    number = _descriptor(path)
    if number is None:
        with os.fdopen(os.open(path, os.O_WRONLY), "wb") as stream:
            stream.write(content)
        return
    for printed in (sys.stdout, sys.stderr):  # stands before, also where both end in one file
        if printed is not None:
            printed.flush()
    with os.fdopen(os.dup(number), "wb") as stream:  # with its own place in the file: opened anew, it begins at 0
        stream.write(content)


def _descriptor(path: Path) -> int | None:
    """Of a path that stands for a file that is open already."""
    match = _DESCRIPTOR.match(str(path))
    return int(match[1]) if match else _STANDARD.get(str(path))
