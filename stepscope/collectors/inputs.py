"""Inputs that may be anything: files, malformed content, and sockets with one deadline for a whole exchange.

A socket's timeout holds for each call: a server that sends one byte now and then is never timed out.
"""

from __future__ import annotations

import io
import socket
import struct
import sys
import time
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


class DeadlineSocket:
    """Socket of a collector's HTTP client. Its calls raise TimeoutError once the deadline is over."""

    def __init__(self, channel: socket.socket, deadline: float) -> None:
        """`channel` is connected, its owner closes it; `deadline` is in monotonic seconds."""
        self._channel = channel
        self._deadline = deadline

    def _before_deadline(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("no answer in time")
        self._channel.settimeout(left)
        return self._channel

    def sendall(self, data: bytes) -> None:
        self._before_deadline().sendall(data)

    def recv(self, size: int) -> bytes:
        return self._before_deadline().recv(size)

    def recv_into(self, buffer: memoryview) -> int:
        return self._before_deadline().recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        """http.client closes before it reads the answer; its owner does, afterwards."""


class _Incoming(io.RawIOBase):
    """What comes through a socket, as http.client reads it."""

    def __init__(self, channel: DeadlineSocket) -> None:
        super().__init__()
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._channel.recv_into(memoryview(buffer))
