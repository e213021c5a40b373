"""Head of an HTTP request as the agent's server reads it: method, target and headers, within limits.

The standard library's server parses headers as e-mail, for which it loads OpenSSL: 6 MB more in this agent, and more
time than the agent's answer takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedIOBase

_MAX_LINE_BYTES = 65536
_MAX_HEADERS = 100
_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/([0-9]{1,9})\.[0-9]{1,9}", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


class BadRequestError(Exception):
    """A client sends something else than an HTTP request of one the agent's versions.

    Attributes:
        status: to answer it with.
    """

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.status = status


class RequestHeaders:
    """Headers of an HTTP request; names are looked up without regard to case, of several with one name the first."""

    def __init__(self, pairs: dict[str, str]) -> None:
        """`pairs`: by name in lower case."""
        self._pairs = pairs

    def get(self, name: str, default: str = "") -> str:
        return self._pairs.get(name.lower(), default)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._pairs


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Head of an HTTP request.

    Attributes:
        target: path and query; begins with one slash at most, as // would begin the name of another host.
    """

    method: str
    target: str
    headers: RequestHeaders


def read_request_head(stream: BufferedIOBase) -> RequestHead | None:
    """Read the head of an HTTP request; None where the connection ends before it does.

    Raises:
        BadRequestError: it is not one, or too long.
        OSError: the connection is lost, or the client too slow.
    """
    line = stream.readline(_MAX_LINE_BYTES + 1)
    if len(line) > _MAX_LINE_BYTES:
        raise BadRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, "the request's address is too long")
    if not line.endswith(b"\n"):
        return None
    words = _REQUEST_LINE.fullmatch(line.decode("latin-1").rstrip("\r\n"))
    if words is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
    method, target, version = words.groups()
    if int(version) != 1:
        raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1 is spoken here")
    headers = _read_headers(stream)
    if headers is None:
        return None
    return RequestHead(method, "/" + target.lstrip("/") if target.startswith("//") else target, headers)


def _read_headers(stream: BufferedIOBase) -> RequestHeaders | None:
    pairs: dict[str, str] = {}
    for _ in range(_MAX_HEADERS + 1):
        line = stream.readline(_MAX_LINE_BYTES + 1)
        if len(line) > _MAX_LINE_BYTES:
            raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "a header is too long")
        if line in (b"\r\n", b"\n"):
            return RequestHeaders(pairs)
        if not line.endswith(b"\n"):
            return None
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or _HEADER_NAME.fullmatch(name) is None:
            raise BadRequestError(HTTPStatus.BAD_REQUEST, "a header is not NAME: VALUE")
        pairs.setdefault(name.lower(), value.strip())
    raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {_MAX_HEADERS} headers")
