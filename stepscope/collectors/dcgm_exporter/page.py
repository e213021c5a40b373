"""Page of a dcgm-exporter: fetched over HTTP(S) within a deadline, and parsed into samples and DCGM's blank values.

dcgm-exporter writes label values without escapes: a job name with a quote in it breaks the format. Such a line is lost,
the rest of the page is not. Older exporters print DCGM's words for "no value" as if they were values.
"""

from __future__ import annotations

import base64
import math
import os
import re
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from stepscope.collectors.readings_builder import NoValue
from stepscope.core.deadline_socket import DeadlineSocket
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import MissingReason

if TYPE_CHECKING:
    import http.client

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_LINE = re.compile(rf"({_NAME})\s*(?:\{{(.*)\}})?\s+(\S.*?)\s*", re.ASCII)
_STRICT_LABELS = re.compile(rf'\s*(?:{_LABEL}\s*=\s*"(?:[^"\\]|\\.)*"\s*(?:,\s*|$))*', re.ASCII)
_STRICT_LABEL = re.compile(rf'({_LABEL})\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)
_LOOSE_BORDER = re.compile(rf'"\s*,\s*(?={_LABEL}=")', re.ASCII)
_LOOSE_LABEL = re.compile(rf'\s*({_LABEL})="(.*)', re.ASCII | re.DOTALL)
_ESCAPE = re.compile(r'\\([\\"n])')
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}
_MAX_LINE = 65536
"""Characters. Longer lines are not samples, and would take long to match."""
_NUMBER = re.compile(r"([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|[iI]nf|[nN]a[nN]))(?:\s+(-?[0-9]{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PageSample:
    """One line of a dcgm-exporter's page.

    Attributes:
        labels: as the page has them; of a name that occurs twice, the first. Lines with the same labels share them.
        text: the value as written; not a number where a field is a text.
        time_ns: the line's own time, ns since the epoch; None without, as dcgm-exporter writes it.
    """

    name: str
    labels: Mapping[str, str]
    text: str
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a dcgm-exporter's page that cannot be read."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class DcgmPage:
    """All lines of a dcgm-exporter's page."""

    samples: tuple[PageSample, ...]
    bad_lines: tuple[BadLine, ...]


def parse_dcgm_page(text: str) -> DcgmPage:
    """Parse a dcgm-exporter's page. Raises nothing, whatever the text.

    A last line without its end is a bad one: where a page was cut, 123 would pass for 1234.
    """
    samples, bad_lines = [], []
    labels_by_text: dict[str, Mapping[str, str] | None] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        readable = number < len(lines) and len(stripped) <= _MAX_LINE
        sample = _parse_sample(stripped, labels_by_text) if readable else None
        if sample is None:
            bad_lines.append(BadLine(number, stripped[:80]))
        else:
            samples.append(sample)
    return DcgmPage(tuple(samples), tuple(bad_lines))


def _parse_sample(line: str, labels_by_text: dict[str, Mapping[str, str] | None]) -> PageSample | None:
    """The sample of a line, None where it is not one; the labels of the lines before are not parsed again."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name, body, value = match.groups()
    key = body or ""
    if key not in labels_by_text:
        labels_by_text[key] = _parse_labels(key) if key else {}
    labels = labels_by_text[key]
    if labels is None:
        return None
    number = _NUMBER.fullmatch(value)
    if number is None:
        return None if body is None else PageSample(name, labels, value)  # "garbage in words" is not a sample
    text, milliseconds = number.groups()
    return PageSample(name, labels, text, None if milliseconds is None else int(milliseconds) * 1_000_000)


def _parse_labels(body: str) -> dict[str, str] | None:
    """The labels between the braces, or None where the text is not labels."""
    if _STRICT_LABELS.fullmatch(body):
        pairs = [(name, _unescaped(value)) for name, value in _STRICT_LABEL.findall(body)]
    else:
        pairs = []
        parts = _LOOSE_BORDER.split(body.rstrip().removesuffix(","))
        parts[-1] = parts[-1].rstrip()
        if not parts[-1].endswith('"'):
            return None
        parts[-1] = parts[-1][:-1]
        for part in parts:
            match = _LOOSE_LABEL.fullmatch(part)
            if match is None:
                return None
            pairs.append((match[1], match[2]))
    labels: dict[str, str] = {}
    for name, value in pairs:
        labels.setdefault(name, value)
    return labels


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], value) if "\\" in value else value


_INT32, _INT64 = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0
_FP64 = 140737488355328
"""dcgmlib/dcgm_structs.h: blank; + 1: not found; + 2: not supported; + 3: not permissioned."""
_BLANK_REASONS = (
    NoValue(MissingReason.UNREADABLE, "DCGM has no value (blank)"),
    NoValue(MissingReason.UNREADABLE, "DCGM did not find it"),
    NoValue(MissingReason.NOT_SUPPORTED, "DCGM says: not supported"),
    NoValue(MissingReason.NO_PERMISSION, "DCGM says: no permission"),
)
_BLANK_WORDS = {
    "<<<NULL>>>": _BLANK_REASONS[0],
    "<<<NOT_FOUND>>>": _BLANK_REASONS[1],
    "<<<NOT_SUPPORTED>>>": _BLANK_REASONS[2],
    "<<<NOT_PERM>>>": _BLANK_REASONS[3],
}
_BLANK_NUMBERS = {base + kind: _BLANK_REASONS[kind] for base in (_INT32, _INT64, _FP64) for kind in range(4)}
_ROUNDED_BLANK = 9.2233720368547e18
"""Proxies in front of the exporter print int64 blanks as 9223372036854776000 or 9.223372036854776e+18."""
_MAX_DIGITS = 30
"""Of a blank; Python refuses to convert thousands of them."""


def parse_dcgm_value(text: str) -> float | NoValue:
    """The number of a sample of a dcgm-exporter, or why it has none.

    Only the blanks themselves are dropped, not all that is larger: NVLink's bytes pass the blank of doubles, 1.4e14,
    within minutes.
    """
    if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS:
        blank = _BLANK_NUMBERS.get(int(text))
        if blank is not None:
            return blank
    elif text in _BLANK_WORDS:
        return _BLANK_WORDS[text]
    try:
        value = float(text.replace("_", "?"))  # Python takes 1_000 for a number
    except ValueError:
        return NoValue(MissingReason.UNREADABLE, f"the page says {text[:40]!r}")
    if not math.isfinite(value):
        return NoValue(MissingReason.UNREADABLE, f"the page says {text[:40]}")
    if value >= _ROUNDED_BLANK:
        return _BLANK_REASONS[0]
    return _BLANK_NUMBERS.get(int(value), value) if value >= _INT32 and value.is_integer() else value


def parse_label_text(text: str) -> str:
    """The text of a dcgm-exporter's label, empty where DCGM has none."""
    return "" if text in _BLANK_WORDS else text


DEFAULT_PORT = 9400
"""dcgm-exporter's."""
MAX_PAGE_BYTES = 32 << 20
"""Bytes. 16 GPUs in 7 instances each with 100 fields come to 4 MiB."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a dcgm-exporter's page.

    Attributes:
        host, port, path: of the URL; the path with its query.
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


def dcgm_endpoint_of(text: str, *, ca_file: str = "") -> Endpoint:
    """Parse the address of a dcgm-exporter.

    Args:
        text: `host`, `host:port`, or an http or https URL, with `user:password@` where the exporter asks for them. The
            default port is 9400, for https URLs 443; the default path is /metrics.

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


class PageFetchError(Exception):
    """A dcgm-exporter's page cannot be fetched; `detail` is one line for people, without the URL."""

    def __init__(self, reason: MissingReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def fetch_dcgm_page(endpoint: Endpoint, *, timeout_seconds: float, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Fetch the text of a dcgm-exporter's page.

    Args:
        timeout_seconds: for the whole exchange, also with a server that sends a byte now and then.
        max_bytes: of the page, uncompressed.

    Raises:
        FetchError: it did not come, or not in time, or is too large, or the server refuses.
    """
    import http.client  # with TLS, 5 MB that an agent without dcgm-exporter does without
    import ssl

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
        raise PageFetchError(MissingReason.TIMED_OUT, f"no page within {timeout_seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        detail = f"its certificate is not trusted ({error.verify_message}); name the CA's file"
        raise PageFetchError(MissingReason.UNREACHABLE, detail) from None
    except ConnectionRefusedError:
        raise PageFetchError(
            MissingReason.UNREACHABLE, "refuses connections: is dcgm-exporter running there?"
        ) from None
    except socket.gaierror as error:
        raise PageFetchError(MissingReason.UNREACHABLE, f"no such host ({error.strerror})") from None
    except UnicodeError:  # a name that is invalid in DNS, a path that is invalid in HTTP
        raise PageFetchError(
            MissingReason.UNREACHABLE, "no such host or path: names are ASCII, at most 63 characters"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        raise PageFetchError(MissingReason.UNREACHABLE, f"the connection broke ({words})") from None


def _connection(endpoint: Endpoint, timeout_seconds: float) -> http.client.HTTPConnection:
    import http.client
    import ssl

    if not endpoint.is_https:
        return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_seconds)
    if endpoint.ca_file and os.path.exists(endpoint.ca_file) and not os.path.isfile(endpoint.ca_file):
        raise PageFetchError(MissingReason.FAILED, f"{endpoint.ca_file}: is not a file")
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    except OSError as error:
        detail = f"{endpoint.ca_file}: cannot be read as certificates ({error.strerror or error})"
        raise PageFetchError(MissingReason.FAILED, detail) from None
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
        raise PageFetchError(MissingReason.NO_PERMISSION, words)
    if response.status != 200:
        hint = ": is that the path?" if response.status == 404 else ""
        raise PageFetchError(MissingReason.UNREACHABLE, f"answers {response.status} {response.reason}{hint}")
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise PageFetchError(MissingReason.UNREADABLE, f"the page is larger than {max_bytes >> 20} MiB")
    if response.length:  # announced by the header and not received
        raise PageFetchError(MissingReason.UNREACHABLE, f"the page is incomplete, {response.length} bytes are missing")
    if response.headers.get("Content-Encoding", "") == "gzip":
        body = _gunzipped(bytes(body), max_bytes)
    return body.decode("utf-8", errors="replace")


def _gunzipped(body: bytes, max_bytes: int) -> bytearray:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise PageFetchError(MissingReason.UNREADABLE, f"the page cannot be decompressed ({error})") from None
    if len(data) > max_bytes:
        raise PageFetchError(MissingReason.UNREADABLE, f"the page is larger than {max_bytes >> 20} MiB")
    if not unpacker.eof:
        raise PageFetchError(MissingReason.UNREACHABLE, "the compressed page is incomplete")
    return bytearray(data)
