"""Who answers over HTTP? The routes that the agent was given; whatever they do, others are answered."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from stepscope.agent.web.access import Access
from stepscope.agent.web.address import Address
from stepscope.agent.web.budget import Budget
from stepscope.agent.web.connections import CONNECTION_SECONDS, ConnectionServer
from stepscope.agent.web.guard import Guard
from stepscope.agent.web.handshake import shake_hands
from stepscope.agent.web.routes import Reply, Request, Route, Routes, text_reply
from stepscope.core.errors import UsageError

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_FIXED_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


class AgentServer:
    """Answers on its routes. A context manager: listens while it is open."""

    def __init__(
        self,
        address: Address,
        routes: Iterable[Route],
        access: Access | None = None,
        guard: Guard | None = None,
    ) -> None:
        """
        Args:
            address: where to listen.
            routes: who answers what.
            access: who may ask; None lets nobody ask what needs a token.
            guard: how connections are encrypted, and which headers go with every answer.

        Raises:
            UsageError: the address cannot be had.
        """
        try:
            self._server = _server(address, Routes(routes), access or Access(), guard or Guard())
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot listen there ({said})", where=str(address), what_next="choose another with --listen"
            ) from None
        name, port = self._server.server_address[:2]
        scheme = "https" if self._server.guard.context() else "http"
        self.url = f"{scheme}://{Address(str(name), int(port))}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="stepscope-http", daemon=True
        )

    @property
    def num_looks(self) -> int:
        """Times that it looked for new connections: it grows as long as any is taken."""
        return self._server.num_looks

    def __enter__(self) -> AgentServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut(0.0)


class _Server(ConnectionServer):
    def __init__(self, address: tuple[str, int], routes: Routes, access: Access, guard: Guard) -> None:
        self.routes = routes
        self.access = access
        self.guard = guard
        config = guard.config()  # as exporter-toolkit's, the limit is that of the start
        self.rate = Budget(config.burst, config.requests_per_second) if config.requests_per_second else None
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Hands are shaken in its own thread, so that a slow client delays no other."""
        connection, client = super().get_request()
        context = self.guard.context()
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, client


def _server(address: Address, routes: Routes, access: Access, guard: Guard) -> _Server:
    host = address.host or "::"
    if not address.host and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family, *_, place = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
    kind = type("_FamilyServer", (_Server,), {"address_family": family})
    server: _Server = kind(place, routes, access, guard)
    return server


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "stepscope"
    sys_version = ""
    timeout = CONNECTION_SECONDS

    def setup(self) -> None:
        """Begin a connection."""
        super().setup()
        if isinstance(self.connection, ssl.SSLSocket):
            shake_hands(self.connection, self.server.guard.config().tls)

    def _answer(self) -> None:
        """Answer, also when an answer fails."""
        self.server.has_asked(self.request)
        path = self.path.partition("?")[0]
        try:
            reply = self._reply(path)
        except Exception:  # the edge of one request: others go on
            _log.exception("%s failed", path)
            reply = text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the agent's log says why")
        self.send_response(reply.status)
        fixed = {**_FIXED_HEADERS, **self.server.guard.config().headers, "Content-Length": str(len(reply.body))}
        for name, value in {**reply.headers, **fixed}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815

    def _reply(self, path: str) -> Reply:
        method = "GET" if self.command == "HEAD" else self.command
        found = self.server.routes.find(method, path)
        is_open = not isinstance(found, Reply) and found[0].is_open
        if not is_open and self.server.rate is not None and not self.server.rate.take(1.0):
            return text_reply(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", Retry_After="1")
        refusal = self.server.access.refusal(
            None if isinstance(found, Reply) else found[0], self.headers, str(self.client_address[0])
        )
        if refusal is not None:
            return refusal
        if isinstance(found, Reply):
            return found
        route, parts = found
        body = self._body(route.max_body_bytes) if route.max_body_bytes else b""
        if isinstance(body, Reply):
            return body
        return route.answer(Request(method, path, self.headers, body, parts, self.address_string()))

    def _body(self, most: int) -> bytes | Reply:
        """The whole body, or what is wrong with it; a client that stops halfway is cut like any other slow one."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in self.headers:
            return text_reply(HTTPStatus.LENGTH_REQUIRED, "say by Content-Length how long the body is")
        if len(length) > 12 or int(length) > most:
            return text_reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {most} bytes here")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return text_reply(HTTPStatus.BAD_REQUEST, "the body ended early")
        return body

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Requests are no news."""
        _log.debug("%s %s", self.address_string(), format % args)
