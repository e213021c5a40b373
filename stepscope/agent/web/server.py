"""HTTP server: listens on an address, limits connections, performs the TLS handshake and answers by routes.

Each connection has a thread, their number and duration are limited: a slow client blocks no other. An address that
other machines can reach needs TLS and users, or `--insecure`.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import StreamRequestHandler, TCPServer, ThreadingMixIn
from typing import Any

from stepscope.agent.web.http_request import BadRequestError, RequestHead, RequestHeaders, read_request_head
from stepscope.agent.web.routes import Access, Reply, Request, Route, Routes, TokenBucket, text_reply
from stepscope.agent.web.web_config import WebConfig, WebConfigReloader
from stepscope.collectors.inputs import looked_up
from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address of the HTTP server; port 0 takes a free one, an empty host is every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address_of(text: str, *, insecure: bool = False, config: WebConfig | None = None) -> ListenAddress:
    """Parse the address of the agent's HTTP server.

    Args:
        text: HOST:PORT, with an IPv6 address in brackets.
        insecure: allow an address that other machines can reach without TLS and login.
        config: TLS and users; None: neither.

    Raises:
        UsageError: it is not an address, or other machines can reach it.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else -1
    if not colon or not 0 <= number <= 65535 or (":" in host and not is_bracketed):
        raise UsageError("is not HOST:PORT", where=text, what_next="write it as 127.0.0.1:9455 or [::1]:9455")
    address = ListenAddress(host[1:-1] if is_bracketed else host, number)
    missing = (config or WebConfig()).missing_protection
    if missing and not insecure and not _is_loopback(address.host):
        raise UsageError(
            f"other machines can reach this address, and {missing}",
            where=text,
            what_next="give TLS and users with --web-config-file, or listen on 127.0.0.1, or allow it with --insecure",
        )
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


_log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 64
_MAX_OF_ONE_CLIENT = 32
"""So that one client cannot take all connections."""
CONNECTION_SECONDS = 10.0
"""Longest duration of a connection, as of Prometheus' scrapes."""
_REQUEST_SECONDS = 5.0
"""Until the request is received. Over the limits, connections without one are closed even earlier."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.2
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class _Connection:
    begin: float
    client: str
    has_request: bool = False


class ConnectionServer(ThreadingMixIn, TCPServer):
    """HTTP server with limits on the number and duration of connections. Over the limits a new connection replaces the
    oldest one that has sent no request yet: idle connections cannot lock others out.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], routes: Routes, access: Access, reloader: WebConfigReloader) -> None:
        self.routes, self.access, self.reloader = routes, access, reloader
        config = reloader.config()  # as in exporter-toolkit, the rate limit of the start stays
        self.rate = TokenBucket(config.burst, config.requests_per_second) if config.requests_per_second else None
        self.num_polls = 0
        self._lock = threading.Lock()
        self._connections: dict[Any, _Connection] = {}  # the oldest first
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Where no file descriptor is left for it, wait instead of retrying in a busy loop.

        The TLS handshake is done in the connection's own thread, so that a slow client delays no other.
        """
        try:
            connection, client = super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                time.sleep(_PAUSE_SECONDS)
            raise
        context = self.reloader.context()
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, client

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start to answer, or refuse at once over the limits."""
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

    def has_request(self, request: Any) -> None:
        """Mark that a connection's request was received, so that it is not replaced."""
        with self._lock:
            known = self._connections.get(request)
            if known is not None:
                known.has_request = True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that take too long; called at each poll."""
        self.num_polls += 1
        self.cut(CONNECTION_SECONDS, _REQUEST_SECONDS)

    def cut(self, seconds: float, request_seconds: float | None = None) -> None:
        """Close connections that are older than `seconds`, or older than `request_seconds` without a request."""
        now = time.monotonic()
        with self._lock:
            for request, known in self._connections.items():
                age = now - known.begin
                if age >= seconds or (request_seconds is not None and age >= request_seconds and not known.has_request):
                    _close(request)

    def _make_room(self, client: str) -> bool:
        """Whether one more connection fits, if need be instead of the oldest without a request."""
        of_client = [request for request, known in self._connections.items() if known.client == client]
        if len(of_client) >= _MAX_OF_ONE_CLIENT:
            candidates = of_client
        elif len(self._connections) >= _MAX_CONNECTIONS:
            candidates = list(self._connections)
        else:
            return True
        idle = next((request for request in candidates if not self._connections[request].has_request), None)
        if idle is None:
            return False
        del self._connections[idle]
        _close(idle)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """Log a lost connection, which is not an error."""
        _log.debug("%s: connection lost", client_address, exc_info=True)


def _close(request: Any) -> None:
    try:
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # TLS's own shutdown would interfere with its thread
    except OSError:
        _log.debug("a connection was already closed")


_PLAIN = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nthis address speaks HTTPS, the request was HTTP\n"
)


def _shake_hands(connection: Any, config: WebConfig) -> None:
    """Perform the TLS handshake.

    Raises:
        OSError: the client speaks something else, or has no certificate that is wanted.
    """
    import ssl

    try:
        connection.do_handshake()
    except ssl.SSLError as error:
        if error.reason == "HTTP_REQUEST":
            socket.socket.send(connection, _PLAIN)  # unencrypted, as the request
        raise
    allowed = config.tls.client_allowed_sans if config.tls else ()
    if allowed and not _names(connection.getpeercert() or {}) & set(allowed):
        raise ssl.SSLError("the client's certificate has none of the allowed names")


def _names(certificate: Mapping[str, Any]) -> set[str]:
    return {str(value) for _, value in certificate.get("subjectAltName", ())}


_POLL_SECONDS = 1.0
_FIXED_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


class AgentServer:
    """HTTP server of the agent. A context manager: listens while it is open."""

    def __init__(
        self,
        address: ListenAddress,
        routes: Iterable[Route],
        access: Access | None = None,
        reloader: WebConfigReloader | None = None,
    ) -> None:
        """
        Args:
            access: None refuses all requests that need a token.
            reloader: config of TLS, and headers of every reply.

        Raises:
            UsageError: it cannot listen on the address.
        """
        try:
            self._server = _server(address, Routes(routes), access or Access(), reloader or WebConfigReloader())
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot listen there ({said})", where=str(address), what_next="choose another with --listen"
            ) from None
        name, port = self._server.server_address[:2]
        scheme = "https" if self._server.reloader.context() else "http"
        self.url = f"{scheme}://{ListenAddress(str(name), int(port))}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="stepscope-http", daemon=True
        )

    @property
    def num_polls(self) -> int:
        """Number of polls for new connections; it grows as long as the server works."""
        return self._server.num_polls

    def __enter__(self) -> AgentServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut(0.0)


def _server(address: ListenAddress, routes: Routes, access: Access, reloader: WebConfigReloader) -> ConnectionServer:
    host = address.host or "::"
    if not address.host and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family, *_, place = socket.getaddrinfo(looked_up(host), address.port, type=socket.SOCK_STREAM)[0]
    kind = type("_FamilyServer", (ConnectionServer,), {"address_family": family})
    server: ConnectionServer = kind(place, routes, access, reloader)
    return server


_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH"})


class _Handler(StreamRequestHandler):
    """Answers one request of a connection."""

    server: ConnectionServer
    timeout = CONNECTION_SECONDS

    def setup(self) -> None:
        super().setup()
        if type(self.connection) is not socket.socket:
            _shake_hands(self.connection, self.server.reloader.config())

    def handle(self) -> None:
        try:
            head = read_request_head(self.rfile)
        except TimeoutError:
            _log.debug("%s: no request in time", self.client_address[0])
            return
        except BadRequestError as error:
            self._send("GET", text_reply(error.status, str(error)))
            return
        if head is None:
            return
        self.server.has_request(self.request)
        path = head.target.partition("?")[0]
        try:
            reply = self._reply(head)
        except Exception:  # edge of one request: others go on
            _log.exception("%s failed", path)
            reply = text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "this request failed; see the agent's log")
        self._send(head.method, reply)
        _log.debug("%s %s %s %d", self.client_address[0], head.method, path, reply.status)

    def _send(self, method: str, reply: Reply) -> None:
        own = {
            "Server": "stepscope",
            "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            **reply.headers,
            **_FIXED_HEADERS,
            **self.server.reloader.config().headers,
            "Content-Length": str(len(reply.body)),
        }
        lines = [f"HTTP/1.0 {reply.status.value} {reply.status.phrase}", *(f"{one}: {own[one]}" for one in own), "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        self.wfile.write(head if method == "HEAD" else head + reply.body)  # at once: one packet wakes the client once

    def _reply(self, head: RequestHead) -> Reply:
        if head.method not in _METHODS:
            return text_reply(HTTPStatus.NOT_IMPLEMENTED, "there is no such method here")
        path, _, query = head.target.partition("?")
        method = "GET" if head.method == "HEAD" else head.method
        client = str(self.client_address[0])
        found = self.server.routes.find(method, path)
        is_open = not isinstance(found, Reply) and found[0].is_open
        if not is_open and self.server.rate is not None and not self.server.rate.take(1.0):
            return text_reply(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", Retry_After="1")
        refusal = self.server.access.refusal(None if isinstance(found, Reply) else found[0], head.headers, client)
        if refusal is not None:
            return refusal
        if isinstance(found, Reply):
            return found
        route, parts = found
        body = self._body(head.headers, route.max_body_bytes) if route.max_body_bytes else b""
        if isinstance(body, Reply):
            return body
        return route.answer(Request(method, path, head.headers, body, parts, client, query))

    def _body(self, headers: RequestHeaders, max_bytes: int) -> bytes | Reply:
        """The whole body, or the error reply; a client that stops halfway is cut off like any other slow one."""
        length = headers.get("Content-Length")
        if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in headers:
            return text_reply(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if len(length) > 12 or int(length) > max_bytes:
            return text_reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {max_bytes} bytes here")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return text_reply(HTTPStatus.BAD_REQUEST, "the body is incomplete")
        return body
