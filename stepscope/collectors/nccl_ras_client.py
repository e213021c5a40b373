"""What does NCCL's RAS service of a job say now? Asked over its TCP port, in JSON; older versions answer in text.

The service listens on 127.0.0.1:28028 in one process of a job on each node (NCCL_RAS_ADDR, NCCL_RAS_ENABLE), which asks
the job's other processes by itself. Since NCCL 2.24; JSON came later.
"""

from __future__ import annotations

import socket
import time

from stepscope.core.errors import DataError

DEFAULT_ADDRESS = ("127.0.0.1", 28028)
_PROTOCOL = 2
_LARGEST = 64 << 20
_LONGEST_LINE = 4096


def ask_ras(address: tuple[str, int] = DEFAULT_ADDRESS, *, seconds: float = 5.0) -> str:
    """Its answer to VERBOSE STATUS; `nccl_ras.read_ras` reads it.

    Args:
        address: host and port.
        seconds: for all of it; NCCL is told to answer without ranks that take half as long.

    Raises:
        OSError: nobody listens there, or not in time.
        DataError: who answers is not RAS.
    """
    end = time.monotonic() + seconds
    with socket.create_connection(address, timeout=seconds) as connection:
        conversation = _Conversation(connection, end, f"{address[0]}:{address[1]}")
        conversation.say(f"CLIENT PROTOCOL {_PROTOCOL}")
        if not conversation.line().upper().startswith("SERVER PROTOCOL "):
            raise DataError("is no RAS service of NCCL", where=conversation.where, what_next="check the port")
        conversation.say(f"TIMEOUT {max(int(seconds / 2), 1)}")
        conversation.line()
        conversation.say("SET FORMAT json")
        conversation.line()  # one that knows text alone refuses, and goes on
        conversation.say("VERBOSE STATUS")
        return conversation.rest()


class _Conversation:
    def __init__(self, connection: socket.socket, end: float, where: str) -> None:
        self.where = where
        self._connection = connection
        self._end = end
        self._heard = b""

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def line(self) -> str:
        while b"\n" not in self._heard:
            if len(self._heard) > _LONGEST_LINE or not self._hear():
                raise DataError("is no RAS service of NCCL", where=self.where, what_next="check the port")
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode(errors="replace")

    def rest(self) -> str:
        """Until it hangs up."""
        blocks = [self._heard]
        size = len(self._heard)
        self._heard = b""
        while self._hear():
            blocks.append(self._heard)
            size += len(self._heard)
            self._heard = b""
            if size > _LARGEST:
                raise DataError(f"answers more than {_LARGEST:,} bytes", where=self.where, what_next="check the port")
        return b"".join(blocks).decode(errors="replace")

    def _hear(self) -> bool:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer in time")
        self._connection.settimeout(left)
        block = self._connection.recv(1 << 16)
        self._heard += block
        return bool(block)
