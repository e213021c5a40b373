"""Reading of bounded texts, and atomic writing, which passes output through to devices, pipes and open descriptors."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from pathlib import Path
from select import POLLIN, poll
from typing import BinaryIO

from stepscope.core.errors import DataError, from_os_error


def write_whole(path: Path, content: bytes) -> None:
    """Store: write a whole file by way of a temporary file beside `path`.

    `content` goes to the temporary file, which is renamed to `path`, replacing what was there. /dev/stdout, pipes and
    devices are written to directly: no file may take their place.

    Raises:
        DataError: the folder cannot be written.
    """
    try:
        if _is_passed_through(path):
            _write_through(path, content)
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
    """Store: check before long work that `write_whole` could write `path`, without changing it.

    Raises:
        DataError: it could not.
    """
    try:
        if _is_passed_through(path):
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
    if not path.name:
        raise DataError("the file name is empty", what_next="give one")
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")


_OTHER_END_SECONDS = 10.0
"""For the first byte of a pipe, or its reader: it may be of a command that takes a while."""


def open_regular(path: Path) -> BinaryIO:
    """Store: open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is something else (EINVAL): a pipe may wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # to open a pipe waits for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return open(descriptor, "rb")


def _open_ready(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe once something was written to it, or its writer has ended.

    Raises:
        OSError: it cannot be opened, is a folder, or a pipe into which nobody writes (ETIMEDOUT).
    """
    if not path.is_fifo():
        return path.open("rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    ready = poll()
    ready.register(descriptor, POLLIN)
    if not ready.poll(1e3 * _OTHER_END_SECONDS):
        os.close(descriptor)
        said = f"is a pipe into which nobody has written for {_OTHER_END_SECONDS:.0f} s"
        raise OSError(errno.ETIMEDOUT, said, str(path))
    os.set_blocking(descriptor, True)
    return open(descriptor, "rb")


def read_whole(path: Path) -> bytes:
    """Store: read the content of a whole file.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError as error:
        raise DataError("does not exist", where=str(path), what_next="check the path") from error
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from error


MAX_TEXT_BYTES = 16 << 20
"""Of a text that people or their tools write: settings, lists of agents."""


def read_text(path: Path) -> str:
    """Store: read a text written by people, of at most `MAX_TEXT_BYTES`; a device may have no end.

    Raises:
        OSError: it cannot be read, or is longer (EFBIG).
        UnicodeDecodeError: it is no text.
    """
    with _open_ready(path) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"has more than {MAX_TEXT_BYTES >> 20} MiB", str(path))
    return content.decode()


_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/self/fd)/(\d+)\Z")


def _is_passed_through(path: Path) -> bool:
    """Whether the path is a pipe, a device or an open descriptor: what is written goes on, and the path stays."""
    return _descriptor(path) is not None or path.is_fifo() or path.is_char_device() or path.is_block_device()


def _open_to_write(path: Path) -> int:
    """Descriptor of a device, or of a pipe once somebody reads it.

    Raises:
        OSError: it cannot be opened, or nobody reads the pipe (ENXIO).
    """
    if not path.is_fifo():
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    end = time.monotonic() + _OTHER_END_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                said = f"is a pipe that nobody has read for {_OTHER_END_SECONDS:.0f} s"
                raise OSError(errno.ENXIO, said, str(path)) from None
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _write_through(path: Path, content: bytes) -> None:
    number = _descriptor(path)
    if number is None:
        with os.fdopen(_open_to_write(path), "wb") as stream:
            stream.write(content)
        return
    for printed in (sys.stdout, sys.stderr):  # comes first, also where both go to the same file
        if printed is not None:
            printed.flush()
    with os.fdopen(os.dup(number), "wb") as stream:  # keeps the position; reopened, the file would begin at 0
        stream.write(content)


def _descriptor(path: Path) -> int | None:
    """The number of the open descriptor that the path names, if any."""
    match = _DESCRIPTOR.match(str(path))
    return int(match[1]) if match else _STANDARD.get(str(path))
