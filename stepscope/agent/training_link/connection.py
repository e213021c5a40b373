"""Connection of one training process: what it has sent, what may be sent to it, and who is at its other end.

Without I/O but for the peer's credentials: bytes in, bytes out, time is an argument.
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
    decode,
    encode,
)

_BURST_BYTES = 32 << 10
_FIRST_BYTES = 4 << 10  # who connects again and again gets no more for it
_MAX_UNSENT_BYTES = 128 << 10
_MAX_FAULTS = 3
_HELLO_SECONDS = 10.0


class ConnectionEndedError(Exception):
    """The connection is to end.

    Attributes:
        reason: a word, for the count: bye, no_hello, garbage, other_version, deaf.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(detail or reason)


class TrainingConnection:
    """One connection.

    Attributes:
        peer: who it is.
        hello: None until it has introduced itself.
        key: of the process; empty until then.
        unsent: bytes that wait for it to read.
    """

    def __init__(self, peer: Peer, now: float) -> None:
        """Times are monotonic seconds."""
        self.peer = peer
        self.hello: Hello | None = None
        self.key = ""
        self.unsent = b""
        self._lines = LineBuffer()
        self._heartbeat: Heartbeat | None = None
        self._connected_at = self._heard_at = self._heartbeat_at = now
        self._budget = PacingBucket(_BURST_BYTES, now, start=_FIRST_BYTES)
        self._faults = 0

    def hear(self, block: bytes, now: float) -> list[Answer]:
        """The answers in what it said; all else is kept here.

        Raises:
            LeftError: it says good-bye, or what nobody understands.
        """
        self._budget.use(len(block))
        try:
            lines = self._lines.feed(block)
        except ProtocolError as error:
            raise ConnectionEndedError("garbage", str(error)) from None
        answers = []
        for line in lines:
            try:
                message = decode(line)
            except ProtocolError as error:
                self._fault(str(error))
                continue
            answer = self._take(message, now)
            if answer is not None:
                answers.append(answer)
        return answers

    def say(self, line: bytes) -> None:
        """Send this when it reads.

        Raises:
            LeftError: it has not read for too long.
        """
        if len(self.unsent) + len(line) > _MAX_UNSENT_BYTES:
            raise ConnectionEndedError("deaf")
        self.unsent += line

    def pause_seconds(self, bytes_per_second: float, now: float) -> float:
        """How long it is not to be read, because it has said more than it may; 0 for not at all."""
        return self._budget.wait_seconds(bytes_per_second, now)

    def check_patience(self, now: float) -> None:
        """
        Raises:
            LeftError: it has not said who it is in time.
        """
        if self.hello is None and now - self._connected_at > _HELLO_SECONDS:
            raise ConnectionEndedError("no_hello")

    def rank(self, now: float) -> TrainingRank | None:
        """What is known of it; None until it has introduced itself."""
        if self.hello is None:
            return None
        heartbeat = self._heartbeat
        return TrainingRank(
            self.key,
            self.hello,
            heartbeat,
            self.peer.pid,
            self.peer.uid,
            heartbeat_age_ms=(now - self._heard_at) * 1e3,
            step_age_ms=heartbeat.age_ms + (now - self._heartbeat_at) * 1e3 if heartbeat else None,
        )

    def _take(self, message: Message | None, now: float) -> Answer | None:
        if isinstance(message, Hello):
            self._meet(message)
        elif self.hello is None:
            self._fault("something before its hello")
        elif isinstance(message, Heartbeat):
            self._heartbeat, self._heartbeat_at = message, now
        elif isinstance(message, Bye):
            raise ConnectionEndedError("bye")
        self._heard_at = now
        return message if isinstance(message, Answer) and self.hello is not None else None

    def _meet(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            self.unsent += encode(Welcome())
            raise ConnectionEndedError(
                "other_version", f"it speaks version {hello.version}, this agent version {PROTOCOL_VERSION}"
            )
        key = _key_of(hello, self.peer)
        if self.hello is not None and key != self.key:
            raise ConnectionEndedError("garbage", "it says that it is somebody else now")
        if self.hello is None:
            self.unsent += encode(Welcome())
        self.hello, self.key = hello, key

    def _fault(self, what: str) -> None:
        self._faults += 1
        if self._faults >= _MAX_FAULTS:
            raise ConnectionEndedError("garbage", what)


def _key_of(hello: Hello, peer: Peer) -> str:
    """The same on each connection of the process, and no other's: of those who say the same the user is another."""
    told = f"{peer.uid}\n{hello.run_directory}\n{hello.rank}\n{hello.pid}\n{hello.start_ns}"
    return f"profile-{hello.rank}-{hashlib.sha256(told.encode(errors='replace')).hexdigest()[:16]}"


_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process; None where the kernel does not tell.

    Attributes:
        pid: in this process's namespace.
        uid: of its user.
    """

    pid: int | None
    uid: int | None


def peer_of(connection: socket.socket) -> Peer:
    """Who connected."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return Peer(pid or None, uid if uid >= 0 else None)


def is_hung_up(connection: socket.socket) -> bool:
    """Whether it is gone; what it has said before may still be there to read."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
