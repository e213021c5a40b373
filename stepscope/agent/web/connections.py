"""How does one client not block another? One thread a connection, few at once, none for long."""

from __future__ import annotations

import errno
import logging
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
_MOST_OF_ONE_CLIENT = 32
"""So that one that holds all it can get leaves room for others."""
CONNECTION_SECONDS = 10.0
"""From its begin to its end, as Prometheus' own scrapes."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.2
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"


class ConnectionServer(ThreadingHTTPServer):
    """Counts connections, refuses those over the limits, and ends those that take too long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.num_looks = 0
        self._connections: dict[Any, tuple[float, str]] = {}
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
        """Begin to answer, or say at once that too many ask."""
        client = str(client_address[0])
        of_client = sum(1 for _, other in list(self._connections.values()) if other == client)
        if len(self._connections) >= _MOST_CONNECTIONS or of_client >= _MOST_OF_ONE_CLIENT:
            request.setblocking(False)
            try:
                request.send(_BUSY)
            except OSError:
                _log.debug("%s was refused and is gone", client_address)
            self.shutdown_request(request)
            return
        self._connections[request] = time.monotonic(), client
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then: end those that take too long."""
        self.num_looks += 1
        self.cut(CONNECTION_SECONDS)

    def cut(self, seconds: float) -> None:
        """End connections that are older; their threads find them closed."""
        now = time.monotonic()
        for connection, (begin, _) in list(self._connections.items()):
            if now - begin >= seconds:
                try:
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own would disturb its thread
                except OSError:
                    _log.debug("a connection was closed already")

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """A client that went away is nobody's fault."""
        _log.debug("%s: connection lost", client_address, exc_info=True)
