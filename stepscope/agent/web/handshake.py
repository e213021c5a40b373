"""Does a client speak TLS, and is its certificate one of those allowed?"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

from stepscope.agent.web.tls_config import TlsConfig

_PLAIN = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nthis address speaks HTTPS, and was asked in HTTP\n"
)


def shake_hands(connection: ssl.SSLSocket, tls: TlsConfig | None) -> None:
    """Begin to talk in secret.

    Args:
        connection: not begun.
        tls: which clients are allowed.

    Raises:
        OSError: they do not talk, or must not.
    """
    try:
        connection.do_handshake()
    except ssl.SSLError as error:
        if error.reason == "HTTP_REQUEST":
            socket.socket.send(connection, _PLAIN)  # as it came: unencrypted
        raise
    allowed = tls.client_allowed_sans if tls else ()
    if allowed and not _names(connection) & set(allowed):
        raise ssl.SSLError("the client's certificate has none of the allowed names")


def _names(connection: ssl.SSLSocket) -> set[str]:
    certificate: Mapping[str, Any] = connection.getpeercert() or {}
    return {str(value) for _, value in certificate.get("subjectAltName", ())}
