"""Who answers over HTTP? One thread a connection, few at once, none for long: an idle client blocks nobody."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepscope.agent.exporter import MetricsPage
from stepscope.agent.source_state import SourceState
from stepscope.agent.web.address import Address
from stepscope.agent.web.landing import landing_page
from stepscope.core.errors import UsageError
from stepscope.core.readings import MissingReason

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64
_CONNECTION_SECONDS = 10.0
"""From its begin to its end, as Prometheus' own scrapes."""
_LOOK_SECONDS = 0.5
_TEXT = "text/plain; charset=utf-8"
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"


class AgentServer:
    """Serves the page, a landing page, health and readiness. A context manager: listens while it is open."""

    def __init__(self, address: Address, page: MetricsPage, states: Callable[[], Sequence[SourceState]]) -> None:
        """
        Args:
            address: where to listen.
            page: /metrics.
            states: the sources now; must wait for nothing.

        Raises:
            UsageError: the address cannot be had.
        """
        try:
            self._server = _server(address, page, states)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot listen there ({said})", where=str(address), what_next="choose another with --listen"
            ) from None
        name, port = self._server.server_address[:2]
        self.url = f"http://{Address(str(name), int(port))}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="stepscope-http", daemon=True
        )

    def __enter__(self) -> AgentServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut(0.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], page: MetricsPage, states: Callable[[], Sequence[SourceState]]
    ) -> None:
        self.page = page
        self.states = states
        self._connections: dict[Any, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking for the machine's name, which may take as long as a name server likes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer, or say at once that too many ask."""
        if len(self._connections) >= _MOST_CONNECTIONS:
            request.setblocking(False)
            try:
                request.send(_BUSY)
            except OSError:
                _log.debug("%s was refused and is gone", client_address)
            self.shutdown_request(request)
            return
        self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then: end those that take too long."""
        self.cut(_CONNECTION_SECONDS)

    def cut(self, seconds: float) -> None:
        """End connections that are older; their threads find them closed."""
        now = time.monotonic()
        for connection, begin in list(self._connections.items()):
            if now - begin >= seconds:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    _log.debug("a connection was closed already")

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """A client that went away is nobody's fault."""
        _log.debug("%s: connection lost", client_address, exc_info=True)


def _server(address: Address, page: MetricsPage, states: Callable[[], Sequence[SourceState]]) -> _Server:
    host = address.host or "::"
    if not address.host and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family, *_, place = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
    kind = type("_FamilyServer", (_Server,), {"address_family": family})
    server: _Server = kind(place, page, states)
    return server


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "stepscope"
    sys_version = ""
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        """Answer, also when an answer fails."""
        path = self.path.partition("?")[0]
        answer = _ANSWERS.get(path)
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here; see /\n", {"Content-Type": _TEXT})
            return
        try:
            status, body, headers = answer(self)
        except Exception:  # the edge of one request: others go on
            _log.exception("%s failed", path)
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, b"this page failed; the agent's log says why\n"
            headers = {"Content-Type": _TEXT}
        self._send(status, body, headers)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        fixed = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": policy}
        for name, value in {**headers, **fixed, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Requests are no news."""
        _log.debug("%s %s", self.address_string(), format % args)

    def metrics(self) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        accepts = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
        body, headers = self.server.page.encoded(accept=accepts[0], accept_encoding=accepts[1])
        return HTTPStatus.OK, body, headers

    def landing(self) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        body = landing_page(self.server.states(), time.time_ns()).encode(errors="replace")
        return HTTPStatus.OK, body, {"Content-Type": "text/html; charset=utf-8"}

    def health(self) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        """It answers, so it lives: a driver that hangs is no reason to start the agent anew."""
        return HTTPStatus.OK, b"ok\n", {"Content-Type": _TEXT}

    def readiness(self) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        """Ready once each source has answered or was given up."""
        waiting = [state.name for state in self.server.states() if state.reason is MissingReason.NOT_YET]
        if waiting:
            body = f"waiting for {', '.join(waiting)}\n".encode()
            return HTTPStatus.SERVICE_UNAVAILABLE, body, {"Content-Type": _TEXT}
        return HTTPStatus.OK, b"ready\n", {"Content-Type": _TEXT}


_ANSWERS: dict[str, Callable[[_Handler], tuple[HTTPStatus, bytes, dict[str, str]]]] = {
    "/": _Handler.landing,
    "/metrics": _Handler.metrics,
    "/healthz": _Handler.health,
    "/readyz": _Handler.readiness,
}
