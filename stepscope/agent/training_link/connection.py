"""Connection of one training process: its messages, the bytes to send to it, and the identity of the peer.

Without I/O except for the peer's credentials: bytes in, bytes out, time is an argument.
"""

from __future__ import annotations

import hashlib
import select
import socket
import struct
from dataclasses import dataclass

from stepscope.agent.token_bucket import PacingBucket
from stepscope.core.documents.node import TrainingRank
from stepscope.core.protocol.messages import (
    PROTOCOL_VERSION,
    Answer,
    Bye,
    Heartbeat,
    Hello,
    LineBuffer,
    Message,
    ProtocolError,
    Welcome,
    decode_message,
    encode_message,
)

_BURST_BYTES = 32 << 10
_FIRST_BYTES = 4 << 10  # connecting repeatedly gives no more
_MAX_UNSENT_BYTES = 128 << 10
_MAX_FAULTS = 3
_HELLO_SECONDS = 10.0


class ConnectionEndedError(Exception):
    """The connection must be closed.

    Attributes:
        reason: label of the metric: bye, gone, no_hello, garbage, other_version, deaf.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(detail or reason)


class TrainingConnection:
    """State of one connection.

    Attributes:
        peer: ids of the process.
        hello: None before its hello.
        key: of the process; empty before its hello.
        unsent: bytes that wait until it reads.
    """

    def __init__(self, peer: Peer, now: float) -> None:
        """Times are monotonic seconds."""
        self.peer = peer
        self.hello: Hello | None = None
        self.key = ""
        self.unsent = b""
        self._lines = LineBuffer()
        self._heartbeat: Heartbeat | None = None
        self._connected_at = self._received_at = self._heartbeat_at = now
        self._budget = PacingBucket(_BURST_BYTES, now, start=_FIRST_BYTES)
        self._faults = 0

    def receive(self, block: bytes, now: float) -> list[Answer]:
        """Take in received bytes; returns the answers in them.

        Raises:
            ConnectionEndedError: it says bye, or sends garbage.
        """
        self._budget.use(len(block))
        try:
            lines = self._lines.feed(block)
        except ProtocolError as error:
            raise ConnectionEndedError("garbage", str(error)) from None
        answers = []
        for line in lines:
            try:
                message = decode_message(line)
            except ProtocolError as error:
                self._fault(str(error))
                continue
            answer = self._take(message, now)
            if answer is not None:
                answers.append(answer)
        return answers

    def queue(self, line: bytes) -> None:
        """Add a line to `unsent`.

        Raises:
            ConnectionEndedError: it has not read for too long.
        """
        if len(self.unsent) + len(line) > _MAX_UNSENT_BYTES:
            raise ConnectionEndedError("deaf")
        self.unsent += line

    def pause_seconds(self, bytes_per_second: float, now: float) -> float:
        """Seconds not to read from it, because it has sent more than allowed; 0 if it has not."""
        return self._budget.wait_seconds(bytes_per_second, now)

    def check_hello(self, now: float) -> None:
        """
        Raises:
            ConnectionEndedError: its hello has not come in time.
        """
        if self.hello is None and now - self._connected_at > _HELLO_SECONDS:
            raise ConnectionEndedError("no_hello")

    def rank(self, now: float) -> TrainingRank | None:
        """The process at `now`; None before its hello."""
        if self.hello is None:
            return None
        heartbeat = self._heartbeat
        return TrainingRank(
            self.key,
            self.hello,
            heartbeat,
            self.peer.pid,
            self.peer.uid,
            heartbeat_age_ms=(now - self._received_at) * 1e3,
            step_age_ms=heartbeat.age_ms + (now - self._heartbeat_at) * 1e3 if heartbeat else None,
        )

    def _take(self, message: Message | None, now: float) -> Answer | None:
        if isinstance(message, Hello):
            self._greet(message)
        elif self.hello is None:
            self._fault("a message before its hello")
        elif isinstance(message, Heartbeat):
            self._heartbeat, self._heartbeat_at = message, now
        elif isinstance(message, Bye):
            raise ConnectionEndedError("bye")
        self._received_at = now
        return message if isinstance(message, Answer) and self.hello is not None else None

    def _greet(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            self.unsent += encode_message(Welcome())
            raise ConnectionEndedError(
                "other_version", f"it speaks version {hello.version}, this agent version {PROTOCOL_VERSION}"
            )
        key = _key_of(hello, self.peer)
        if self.hello is not None and key != self.key:
            raise ConnectionEndedError("garbage", "its hello is that of another process now")
        if self.hello is None:
            self.unsent += encode_message(Welcome())
        self.hello, self.key = hello, key

    def _fault(self, what: str) -> None:
        self._faults += 1
        if self._faults >= _MAX_FAULTS:
            raise ConnectionEndedError("garbage", what)


def _key_of(hello: Hello, peer: Peer) -> str:
    """Key of the process: the same on each of its connections, and unlike that of a process of another user."""
    identity = f"{peer.uid}\n{hello.run_directory}\n{hello.rank}\n{hello.pid}\n{hello.start_ns}"
    return f"profile-{hello.rank}-{hashlib.sha256(identity.encode(errors='replace')).hexdigest()[:16]}"


_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Ids of a process; None where the kernel does not tell.

    Attributes:
        pid: in the agent's namespace.
        uid: of its user.
    """

    pid: int | None
    uid: int | None


def peer_of(connection: socket.socket) -> Peer:
    """Ids of the process at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return Peer(pid or None, uid if uid >= 0 else None)


def is_hung_up(connection: socket.socket) -> bool:
    """Whether the other end is closed; bytes from before may still be there to read."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
