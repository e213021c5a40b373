"""An agent's end of the socket: hears all that training processes say, and says to them what a test wants."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from stepscope.core.protocol.captures import CaptureProgress
from stepscope.core.protocol.messages import Answer, Hello, LineBuffer, Message, decode_message, encode_message

M = TypeVar("M")


class StandInAgent:
    """A real Unix socket server on a thread; use it in a with block.

    Args:
        on_hello: said to each process at once after its hello, as raw bytes.
        reads: False never reads a byte.
    """

    def __init__(self, path: Path, *, on_hello: bytes = b"", reads: bool = True) -> None:
        self.heard: list[tuple[int, Message]] = []
        self.num_connections = 0
        self.num_sent = 0
        self._path = path
        self._on_hello = on_hello
        self._reads = reads
        self._ranks: dict[socket.socket, int] = {}
        self._closing = threading.Event()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> StandInAgent:
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._server.bind(str(self._path))
        self._server.listen(64)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def say(self, message: Message | bytes, *ranks: int) -> None:
        """Send to these ranks, or to all."""
        line = message if isinstance(message, bytes) else encode_message(message)
        for connection, rank in tuple(self._ranks.items()):
            if not ranks or rank in ranks:
                connection.sendall(line)

    def of(self, kind: type[M], rank: int | None = None) -> list[M]:
        """What has been heard of this kind, from this rank or all."""
        return [one for sender, one in tuple(self.heard) if isinstance(one, kind) and rank in (None, sender)]

    def states(self, capture_id: str, rank: int = 0) -> list[str]:
        """The answers to a request."""
        return [answer.progress.state.value for answer in self.of(Answer, rank) if answer.id == capture_id]

    def last(self, capture_id: str, rank: int = 0) -> CaptureProgress:
        """The newest answer to a request."""
        return [answer.progress for answer in self.of(Answer, rank) if answer.id == capture_id][-1]

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
        """Raises AssertionError when it is not so in time."""
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, f"not within {seconds} s; heard last: {self.heard[-5:]}"
            time.sleep(0.01)

    def wait_final(self, capture_id: str, *ranks: int) -> list[CaptureProgress]:
        """The last word on a request from each rank."""
        self.wait_until(
            lambda: all(
                self.states(capture_id, rank) and self.last(capture_id, rank).state.is_final for rank in ranks or (0,)
            )
        )
        return [self.last(capture_id, rank) for rank in ranks or (0,)]

    def _serve(self) -> None:
        with self._server, selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._server:
                        connection, _ = self._server.accept()
                        self.num_connections += 1
                        self._ranks[connection] = -1
                        if self._reads:
                            selector.register(connection, selectors.EVENT_READ, LineBuffer())
                        else:
                            self._send(connection)
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._read(selector, key.fileobj, key.data)
            for connection in self._ranks:
                connection.close()

    def _read(self, selector: selectors.BaseSelector, connection: socket.socket, lines: LineBuffer) -> None:
        try:
            block = connection.recv(1 << 16)
        except OSError:
            block = b""
        if not block:
            selector.unregister(connection)
            self._ranks.pop(connection, None)
            connection.close()
            return
        for line in lines.feed(block):
            message = decode_message(line)
            assert message is not None
            if isinstance(message, Hello) and self._ranks[connection] < 0:
                self._ranks[connection] = message.rank
                self._send(connection)
            self.heard.append((self._ranks[connection], message))

    def _send(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._on_hello:
                connection.setblocking(False)
                self.num_sent += connection.send(self._on_hello)
                connection.setblocking(True)
