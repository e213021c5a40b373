"""A place for a socket, and processes that speak to it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.protocol.messages import Hello, LineBuffer, Message, decode_message, encode_message


class Process:
    """A training process's end of the socket, as a test wants it to be."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self._lines = LineBuffer()
        self._heard: list[Message] = []

    def say(self, message: Message | bytes) -> None:
        """Send it."""
        self.socket.sendall(message if isinstance(message, bytes) else encode_message(message))

    def hear(self) -> Message:
        """The next message."""
        while not self._heard:
            block = self.socket.recv(4096)
            assert block, "the agent has hung up"
            self._heard += [
                message for line in self._lines.feed(block) if (message := decode_message(line)) is not None
            ]
        return self._heard.pop(0)

    def is_left(self) -> bool:
        """Waits until the agent hangs up."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


def hello(rank: int = 0, **fields: object) -> Hello:
    """Who a process is, if nothing else is told."""
    told = {"run": "r", "run_directory": "/runs/r", "rank": rank, "local_rank": rank, "world_size": 2} | fields
    return Hello(**({"pid": os.getpid(), "host": "h", "start_ns": 1} | told))  # type: ignore[arg-type]


def wait_until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    """Raises AssertionError when it is not so in time."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def server(place: Path) -> Iterator[TrainingServer]:
    """One that listens."""
    with TrainingServer(str(place)) as listening:
        yield listening


@pytest.fixture
def connect(place: Path, server: TrainingServer) -> Iterator[Callable[[], Process]]:
    """Makes processes that connect; their ends are closed at the end."""
    processes: list[Process] = []

    def made() -> Process:
        processes.append(Process(place))
        return processes[-1]

    yield made
    for process in processes:
        process.socket.close()
    wait_until(lambda: not server.ranks())
