"""Heads of HTTP requests as clients send them, and those that are refused."""

from __future__ import annotations

import http.client
import io
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.web.http_request import BadRequestError, RequestHead, read_request_head

_TOKEN = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=20)
_VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0"), max_size=30)


def _head(raw: bytes) -> RequestHead | None:
    return read_request_head(io.BytesIO(raw))


def _refused(raw: bytes) -> HTTPStatus:
    with pytest.raises(BadRequestError) as caught:
        _head(raw)
    return caught.value.status


def test_a_scrape_of_prometheus() -> None:
    head = _head(b"GET /metrics?x=1 HTTP/1.1\r\nHost: node:9455\r\nAccept-Encoding:gzip\r\nX: a\r\nx: b\r\n\r\nrest")
    assert head is not None
    assert (head.method, head.target) == ("GET", "/metrics?x=1")
    assert (head.headers.get("host"), head.headers.get("ACCEPT-encoding")) == ("node:9455", "gzip")
    assert (head.headers.get("X"), head.headers.get("Y"), "HOST" in head.headers) == ("a", "", True)


def test_two_slashes_name_no_other_host() -> None:
    head = _head(b"GET //evil/x HTTP/1.0\n\n")
    assert head is not None
    assert head.target == "/evil/x"


@given(_TOKEN, st.dictionaries(_TOKEN.map(str.lower), _VALUE, max_size=20))
def test_headers_are_read_as_by_the_standard_library(method: str, headers: dict[str, str]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    head = _head(f"{method} / HTTP/1.1\r\n{lines}".encode("latin-1"))
    expected = http.client.parse_headers(io.BytesIO(lines.encode("latin-1")))
    assert head is not None
    assert head.method == method
    for name in headers:
        assert head.headers.get(name) == str(expected[name]).strip()


@pytest.mark.parametrize("raw", [b"", b"GET / HTTP/1.1", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_that_ends_asks_for_nothing(raw: bytes) -> None:
    assert _head(raw) is None


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\n", 400),
        (b"GET / / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: x\r\n folded\r\n\r\n", 400),
        (b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 65536 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused(raw: bytes, status: int) -> None:
    assert _refused(raw) == status


def test_as_many_headers_as_allowed() -> None:
    assert _head(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n") is not None
