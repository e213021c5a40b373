"""How does one client not block another? One thread a connection, few at once, none for long."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
_MOST_OF_ONE_CLIENT = 32
"""So that one that holds all it can get leaves room for others."""
CONNECTION_SECONDS = 10.0
"""From its begin to its end, as Prometheus' own scrapes."""
_ASKING_SECONDS = 5.0
"""Until it has said what it asks for. Where places are wanted, who has not must go before."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.2
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class _Connection:
    begin: float
    client: str
    has_asked: bool = False


class ConnectionServer(ThreadingHTTPServer):
    """Counts connections and ends those that take too long. Over the limits, who asks takes the place of who has asked
    for nothing yet: silence costs nobody an answer.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.num_looks = 0
        self._lock = threading.Lock()
        self._connections: dict[Any, _Connection] = {}  # the oldest first
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without asking for the machine's name, which may take as long as a name server likes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Where no descriptor is left for it, it waits, and is not asked for in a busy loop."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                time.sleep(_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer, or say at once that too many are answered."""
        client = str(client_address[0])
        with self._lock:
            has_room = self._make_room(client)
            if has_room:
                self._connections[request] = _Connection(time.monotonic(), client)
        if has_room:
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        try:
            request.send(_BUSY)
        except OSError:
            _log.debug("%s was refused and is gone", client_address)
        self.shutdown_request(request)

    def has_asked(self, request: Any) -> None:
        """A connection has said what it asks for, so that it keeps its place."""
        with self._lock:
            known = self._connections.get(request)
            if known is not None:
                known.has_asked = True

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then: end those that take too long."""
        self.num_looks += 1
        self.cut(CONNECTION_SECONDS, _ASKING_SECONDS)

    def cut(self, seconds: float, asking_seconds: float | None = None) -> None:
        """End connections that are older, or older than `asking_seconds` and have asked for nothing yet; their threads
        find them closed.
        """
        now = time.monotonic()
        with self._lock:
            for request, known in self._connections.items():
                age = now - known.begin
                if age >= seconds or (asking_seconds is not None and age >= asking_seconds and not known.has_asked):
                    _close(request)

    def _make_room(self, client: str) -> bool:
        """Whether one more fits, if need be in the place of the oldest that has asked for nothing yet."""
        of_client = [request for request, known in self._connections.items() if known.client == client]
        if len(of_client) >= _MOST_OF_ONE_CLIENT:
            candidates = of_client
        elif len(self._connections) >= _MOST_CONNECTIONS:
            candidates = list(self._connections)
        else:
            return True
        silent = next((request for request in candidates if not self._connections[request].has_asked), None)
        if silent is None:
            return False
        del self._connections[silent]
        _close(silent)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """A client that went away is nobody's fault."""
        _log.debug("%s: connection lost", client_address, exc_info=True)


def _close(request: Any) -> None:
    try:
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # TLS's own would disturb its thread
    except OSError:
        _log.debug("a connection was closed already")
