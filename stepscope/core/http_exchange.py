"""HTTP exchanges, each with one deadline and a bounded reply, and what went wrong in words."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from stepscope.core.deadline_socket import DeadlineSocket
from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply to an HTTP request.

    Attributes:
        content: at most one byte more than was allowed.
        location: where a redirection leads; else empty.
    """

    status: int
    content: bytes
    location: str = ""


HTTP_ERRORS = (OSError, UnicodeError, http.client.HTTPException)
"""What `exchange` raises; `failure_text` has it in words."""


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    deadline: float,
    max_bytes: int,
    body: bytes | None = None,
) -> HttpReply:
    """Send a request by a new connection, read the reply and close.

    Args:
        deadline: of the whole exchange, in monotonic seconds.
        max_bytes: of the content; of a longer one `max_bytes` + 1 are read.

    Raises:
        OSError, UnicodeError, http.client.HTTPException: there is no reply; TimeoutError: not in time.
    """
    connection.timeout = max(deadline - time.monotonic(), 0.001)
    try:
        connection.connect()
        with connection.sock as channel:
            connection.sock = DeadlineSocket(channel, deadline)
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read(max_bytes + 1)
            return HttpReply(response.status, content, response.getheader("Location") or "")
    finally:
        connection.close()


def failure_text(error: Exception) -> str:
    """Why there was no reply, in a few words, without the name of what was asked."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, socket.gaierror):
        return f"no such host ({error.strerror})"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer ends too early"
    if isinstance(error, http.client.BadStatusLine):
        return f"its answer is not HTTP ({str(error).strip()[:40]})"
    number = None if isinstance(error, ssl.SSLError) else getattr(error, "errno", None)
    known = os.strerror(number) if number else getattr(error, "strerror", None)  # asyncio words it otherwise
    return known or str(error) or type(error).__name__


@lru_cache(maxsize=8)
def tls_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """TLS settings, which clients with the same files share: reading the system's certificates takes 20 ms.

    Raises:
        UsageError: a file cannot be used.
    """
    for file in filter(None, (ca_file, cert_file, key_file)):
        if os.path.exists(file) and not os.path.isfile(file):  # OpenSSL would wait for the writer of a pipe
            raise UsageError("is not a file", where=file)
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise UsageError(f"cannot be read as certificates ({error.strerror or error})", where=ca_file) from None
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file or None, password="")
        except (OSError, ValueError) as error:
            what = f"cannot be read as a certificate with its key ({getattr(error, 'strerror', None) or error})"
            raise UsageError(what, where=cert_file, what_next="name the key's file: --key-file") from None
    return context
