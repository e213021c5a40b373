"""Socket with one deadline for a whole exchange.

A socket's timeout holds for each call: a server that sends one byte now and then is never timed out.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class DeadlineSocket:
    """Socket of an HTTP client. Its calls raise TimeoutError once the deadline is over."""

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
