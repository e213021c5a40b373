"""Who is at the other end of a connection, and is it still there? By the kernel alone."""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass

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
