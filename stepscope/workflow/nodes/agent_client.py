"""HTTP client of one agent: a request, a JSON document, a time limit."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from stepscope.core.errors import UnreachableError, UsageError
from stepscope.core.http_exchange import HTTP_ERRORS, exchange, failure_text, tls_context

DEFAULT_URL = "http://127.0.0.1:9455"
_DEFAULT_PORT = 9455
_TIMEOUT_SECONDS = 10.0
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class AgentReply:
    """Reply of a node's agent to an HTTP request.

    Attributes:
        status: HTTP status.
        document: JSON object; empty if the answer was not one.
        error: one line if the status is an error or the answer is not a document; else empty.
    """

    status: int
    document: Mapping[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class AgentClient:
    """HTTP client of one node's agent. Texts are empty if not used.

    Attributes:
        host, port, is_https: address of the agent.
        token: for requests that change something.
        ca_file: certificates to trust instead of the system's.
        user, password: for agents with passwords.
        cert_file, key_file: client certificate, and its key if that is another file.
        labels: of the target, as "rack", from where its address was read.
        server_name: in the agent's certificate, if that is not the host.
    """

    host: str
    port: int
    is_https: bool = False
    token: str = ""
    ca_file: str = ""
    user: str = ""
    password: str = ""
    cert_file: str = ""
    key_file: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    server_name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}"

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> AgentReply:
        """Send a request; the answer, whatever its status.

        Raises:
            UnreachableError: there is none.
        """
        body = None if document is None else json.dumps(document).encode()
        headers = self.headers() if body is None else {**self.headers(), "Content-Type": "application/json"}
        try:
            reply = exchange(
                self._connection(),
                method,
                path,
                headers=headers,
                body=body,
                deadline=time.monotonic() + _TIMEOUT_SECONDS,
                max_bytes=MAX_BYTES,
            )
        except HTTP_ERRORS as error:
            raise self.unreachable(error, _TIMEOUT_SECONDS) from None
        if len(reply.content) > MAX_BYTES:
            raise self.too_large()
        return _reply(reply.status, reply.content)

    def headers(self) -> dict[str, str]:
        """Headers that say who asks."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}

    def context(self) -> ssl.SSLContext | None:
        """TLS settings, which clients with the same files share; None without TLS.

        Raises:
            UsageError: a file cannot be used.
        """
        return tls_context(self.ca_file, self.cert_file, self.key_file) if self.is_https else None

    def _connection(self) -> http.client.HTTPConnection:
        context = self.context()
        if context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_SECONDS)
        return _NamedConnection(self, context)

    def too_large(self, max_bytes: int = MAX_BYTES) -> UnreachableError:
        """The error of an answer with more bytes."""
        return UnreachableError(f"answers more than {max_bytes >> 20} MiB: is that an agent?", where=str(self))

    def unreachable(self, error: Exception, seconds: float) -> UnreachableError:
        """The error of an agent that has not answered within a time, or whose answer is not HTTP."""
        next_step = "is an agent running there? name another with --agent"
        if isinstance(error, TimeoutError):
            what = f"the agent has not answered within {seconds:g} s"
        elif isinstance(error, ssl.SSLCertVerificationError):
            what, next_step = failure_text(error), "name the CA's file: --ca-file"
        elif isinstance(error, http.client.RemoteDisconnected):
            what = f"{failure_text(error)}: is that an agent?"
        elif isinstance(error, http.client.BadStatusLine):
            what = failure_text(error).replace(" (", ": is that an agent? (", 1)
        elif isinstance(error, http.client.IncompleteRead | socket.gaierror):
            what = failure_text(error)
        else:
            what = f"the agent cannot be reached ({failure_text(error)})"
        return UnreachableError(what, where=str(self), what_next=next_step)


class _NamedConnection(http.client.HTTPConnection):
    """HTTPS to an address whose certificate may have another name."""

    def __init__(self, client: AgentClient, context: ssl.SSLContext) -> None:
        super().__init__(client.host, client.port, timeout=_TIMEOUT_SECONDS)
        self._context, self._name = context, client.server_name or client.host

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def agent_client(
    url: str, *, token: str = "", ca_file: str = "", cert_file: str = "", key_file: str = ""
) -> AgentClient:
    """The HTTP client of the node's agent at a URL.

    Args:
        url: http or https; without a scheme http, without a port 9455; user:password@ before the host.
        token, ca_file, cert_file, key_file: see `AgentClient`.

    Raises:
        UsageError: the URL is not the address of an agent.
    """
    shown = url.rpartition("@")[2]  # without a password
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(
            f"is not a valid address ({error})", where=shown, what_next="write it as http://node7:9455"
        ) from None
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not host or not is_bare or not url.isprintable() or " " in url:
        raise UsageError("is not the address of an agent", where=shown, what_next="write it as http://node7:9455")
    who = unquote(parts.username or ""), unquote(parts.password or "")
    is_https = parts.scheme == "https"
    return AgentClient(host, port or _DEFAULT_PORT, is_https, token, ca_file, *who, cert_file, key_file)


def _reply(status: int, content: bytes) -> AgentReply:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        line = content.decode(errors="replace").strip()
        return AgentReply(status, {}, line[:500] or f"status {status}")
    return AgentReply(status, document, str(document.get("error", f"status {status}"))[:500] if status >= 400 else "")
