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

from stepscope.collectors.inputs import DeadlineSocket
from stepscope.core.errors import UnreachableError, UsageError

DEFAULT_URL = "http://127.0.0.1:9455"
_DEFAULT_PORT = 9455
_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 16 << 20


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

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}"

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> AgentReply:
        """Send a request; the answer, whatever its status.

        Raises:
            UnreachableError: there is none.
        """
        body = None if document is None else json.dumps(document).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        try:
            connection = self._connection()
            try:
                connection.connect()
                with connection.sock as channel:
                    connection.sock = DeadlineSocket(channel, deadline)
                    connection.request(method, path, body, headers)
                    response = connection.getresponse()
                    content = response.read(_MAX_BYTES + 1)
            finally:
                connection.close()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        if len(content) > _MAX_BYTES:
            raise UnreachableError(f"answers more than {_MAX_BYTES >> 20} MiB: is that an agent?", where=str(self))
        return _reply(response.status, content)

    def _connection(self) -> http.client.HTTPConnection:
        if not self.is_https:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_SECONDS)
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            what = f"cannot be read as certificates ({error.strerror or error})"
            raise UsageError(what, where=self.ca_file) from None
        if self.cert_file:
            try:
                context.load_cert_chain(self.cert_file, self.key_file or None, password="")
            except (OSError, ValueError) as error:
                what = f"cannot be read as a certificate with its key ({getattr(error, 'strerror', None) or error})"
                raise UsageError(what, where=self.cert_file, what_next="name the key's file: --key-file") from None
        return http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_SECONDS, context=context)

    def _unreachable(self, error: Exception) -> UnreachableError:
        next_step = "is an agent running there? name another with --agent"
        if isinstance(error, TimeoutError):
            what = f"the agent has not answered within {_TIMEOUT_SECONDS:.0f} s"
        elif isinstance(error, ssl.SSLCertVerificationError):
            what, next_step = (
                f"its certificate is not trusted ({error.verify_message})",
                "name the CA's file: --ca-file",
            )
        elif isinstance(error, socket.gaierror):
            what = f"no such host ({error.strerror})"
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            what = f"the agent cannot be reached ({reason})"
        return UnreachableError(what, where=str(self), what_next=next_step)


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
