"""Client that fetches a page over HTTP or HTTPS, within a deadline and a size limit."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
import zlib
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from stepscope.collectors.deadline_socket import DeadlineSocket
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import MissingReason

DEFAULT_PORT = 9400
"""dcgm-exporter's."""
MAX_PAGE_BYTES = 32 << 20
"""Bytes. 16 GPUs in 7 instances each with 100 fields come to 4 MiB."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a page.

    Attributes:
        host, port, path: of the URL; the path with its query.
        is_https: whether the connection is encrypted.
        user, password: for basic authentication; empty without.
        ca_file: certificates to trust instead of the system's; empty without.
    """

    host: str
    port: int
    path: str
    is_https: bool = False
    user: str = ""
    password: str = ""
    ca_file: str = ""

    def __str__(self) -> str:
        """The URL without the password, and without its query, which may hold a token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_https else 'http'}://{host}:{self.port}{self.path.partition('?')[0]}"


def endpoint_of(text: str, *, ca_file: str = "") -> Endpoint:
    """Parse the endpoint of a setting.

    Args:
        text: `host`, `host:port`, or an http or https URL, with `user:password@` where the exporter asks for them. The
            default port is 9400, for https URLs 443; the default path is /metrics.
        ca_file: certificates to trust.

    Raises:
        UsageError: it is not an address.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(
            f"not an address ({error})", where=_redacted(text), what_next="give host:port or a URL"
        ) from None
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(
            "not an address", where=_redacted(text), what_next="give host:port or a URL with http or https"
        )
    is_https = parts.scheme == "https"
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    return Endpoint(
        host=host,
        port=port if port is not None else 443 if is_https else DEFAULT_PORT,
        path=f"{path}?{parts.query}" if parts.query else path,
        is_https=is_https,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        ca_file=ca_file,
    )


def _redacted(text: str) -> str:
    """The text without what may be a password."""
    return text.rpartition("@")[2]


class FetchError(Exception):
    """A page cannot be fetched.

    Attributes:
        reason: as of a `Missing`.
        detail: one line for people, without the URL.
    """

    def __init__(self, reason: MissingReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def fetch_page(endpoint: Endpoint, *, timeout_seconds: float, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Fetch the text of a page.

    Args:
        timeout_seconds: for the whole exchange, also with a server that sends a byte now and then.
        max_bytes: of the page, uncompressed.

    Raises:
        FetchError: it did not come, or not in time, or is too large, or the server refuses.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = _connection(endpoint, timeout_seconds)
        try:
            connection.connect()
            with connection.sock as channel:
                connection.sock = DeadlineSocket(channel, deadline)
                return _get_page(connection, endpoint, max_bytes)
        finally:
            connection.close()
    except TimeoutError:
        raise FetchError(MissingReason.TIMED_OUT, f"no page within {timeout_seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        detail = f"its certificate is not trusted ({error.verify_message}); name the CA's file"
        raise FetchError(MissingReason.UNREACHABLE, detail) from None
    except ConnectionRefusedError:
        raise FetchError(MissingReason.UNREACHABLE, "refuses connections: is dcgm-exporter running there?") from None
    except socket.gaierror as error:
        raise FetchError(MissingReason.UNREACHABLE, f"no such host ({error.strerror})") from None
    except UnicodeError:  # a name that is invalid in DNS, a path that is invalid in HTTP
        raise FetchError(
            MissingReason.UNREACHABLE, "no such host or path: names are ASCII, at most 63 characters"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        raise FetchError(MissingReason.UNREACHABLE, f"the connection broke ({words})") from None


def _connection(endpoint: Endpoint, timeout_seconds: float) -> http.client.HTTPConnection:
    if not endpoint.is_https:
        return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_seconds)
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    except OSError as error:
        detail = f"{endpoint.ca_file}: cannot be read as certificates ({error.strerror or error})"
        raise FetchError(MissingReason.FAILED, detail) from None
    return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout_seconds, context=context)


def _get_page(connection: http.client.HTTPConnection, endpoint: Endpoint, max_bytes: int) -> str:
    headers = {"Accept": "text/plain", "Accept-Encoding": "identity", "Connection": "close"}
    if endpoint.user or endpoint.password:
        secret = base64.b64encode(f"{endpoint.user}:{endpoint.password}".encode()).decode()
        headers["Authorization"] = f"Basic {secret}"
    connection.request("GET", endpoint.path, headers=headers)
    response = connection.getresponse()
    if response.status in (401, 403):
        words = f"answers {response.status}: give user and password" if response.status == 401 else "answers 403"
        raise FetchError(MissingReason.NO_PERMISSION, words)
    if response.status != 200:
        hint = ": is that the path?" if response.status == 404 else ""
        raise FetchError(MissingReason.UNREACHABLE, f"answers {response.status} {response.reason}{hint}")
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise FetchError(MissingReason.UNREADABLE, f"the page is larger than {max_bytes >> 20} MiB")
    if response.length:  # announced by the header and not received
        raise FetchError(MissingReason.UNREACHABLE, f"the page is incomplete, {response.length} bytes are missing")
    if response.headers.get("Content-Encoding", "") == "gzip":
        body = _gunzipped(bytes(body), max_bytes)
    return body.decode("utf-8", errors="replace")


def _gunzipped(body: bytes, max_bytes: int) -> bytearray:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise FetchError(MissingReason.UNREADABLE, f"the page cannot be decompressed ({error})") from None
    if len(data) > max_bytes:
        raise FetchError(MissingReason.UNREADABLE, f"the page is larger than {max_bytes >> 20} MiB")
    if not unpacker.eof:
        raise FetchError(MissingReason.UNREACHABLE, "the compressed page is incomplete")
    return bytearray(data)
