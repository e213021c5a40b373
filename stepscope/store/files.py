"""How does a file appear under its name only when it is whole?"""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core.errors import DataError, from_os_error


_OF_OPEN_FILES = tuple(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to a temporary neighbour and rename it to `path`, replacing what was there.

    A device or pipe is written as it is: /dev/stdout, and never another file in the place of /dev/null.

    Raises:
        DataError: the folder cannot be written.
    """
    if _is_stream(path):
        try:
            with path.open("wb") as stream:
                stream.write(content)
        except OSError as error:
            raise from_os_error(error, "cannot be written", where=str(path)) from error
        return
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
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
    if _is_stream(path):
        return  # opening a pipe would end its reader's wait
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(b"1")  # an empty file needs no space
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, "cannot be written", where=str(path)) from error


def _is_stream(path: Path) -> bool:
    """Whether writing goes through it to somewhere else, also where that is a file, as behind /dev/stdout."""
    return path.is_fifo() or path.is_char_device() or path.is_block_device() or path.parent in _OF_OPEN_FILES


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
