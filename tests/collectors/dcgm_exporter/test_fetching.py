"""A page is fetched completely and in time, or the reason is given, whatever the server does."""

from __future__ import annotations

import base64
import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import Endpoint, PageFetchError, dcgm_endpoint_of, fetch_dcgm_page
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.dcgm_exporter.pages import Pages, busy, codes, collect, missing, render, values

Answer = Callable[[socket.socket, bytes], None]


@contextmanager
def server(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that gives each connection this answer; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                channel, _ = listener.accept()
            except OSError:
                return
            try:
                with channel if context is None else context.wrap_socket(channel, server_side=True) as wrapped:
                    wrapped.settimeout(5)
                    request = b""
                    while b"\r\n\r\n" not in request and (data := wrapped.recv(65536)):
                        request += data
                    answer(wrapped, request)
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def page(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    """An answer with its length."""
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return lambda channel, _: channel.sendall(head.encode() + b"\r\n\r\n" + body)


def raw(data: bytes) -> Answer:
    return lambda channel, _: channel.sendall(data)


def at(port: int, scheme: str = "http") -> Endpoint:
    return dcgm_endpoint_of(f"{scheme}://127.0.0.1:{port}")


def failure(answer: Answer, *, timeout: float = 5.0, max_bytes: int = 1 << 20) -> PageFetchError:
    with server(answer) as port, pytest.raises(PageFetchError) as caught:
        fetch_dcgm_page(at(port), timeout_seconds=timeout, max_bytes=max_bytes)
    return caught.value


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("node7", "http://node7:9400/metrics"),
        ("node7:9401", "http://node7:9401/metrics"),
        ("10.0.0.7:9400", "http://10.0.0.7:9400/metrics"),
        ("[fd00::7]:9400", "http://[fd00::7]:9400/metrics"),
        ("http://node7", "http://node7:9400/metrics"),
        ("http://node7:9400/", "http://node7:9400/metrics"),
        ("https://node7/gpu/metrics?token=1", "https://node7:443/gpu/metrics"),
        ("http://me:secret@node7", "http://node7:9400/metrics"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert str(dcgm_endpoint_of(text)) == url


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://node7", "node7:port", "node7:99999", "no de", "node\r\nX: y", "["]
)
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="give host:port or a URL"):
        dcgm_endpoint_of(text)


def test_a_password_is_in_no_message() -> None:
    with pytest.raises(UsageError) as caught:
        dcgm_endpoint_of("ftp://me:secret@node7")
    assert "secret" not in str(caught.value)
    assert "secret" not in str(dcgm_endpoint_of("http://me:secret@node7"))


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
def test_a_page_is_fetched_whole(headers: tuple[str, ...]) -> None:
    text = render(busy()) * 500
    with server(page(text.encode(), *headers)) as port:
        assert fetch_dcgm_page(at(port), timeout_seconds=5) == text


def test_a_page_in_chunks_as_go_sends_it() -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nA 1\nB\r\n3\r\n 2\n\r\n0\r\n\r\n"
    with server(raw(data)) as port:
        assert fetch_dcgm_page(at(port), timeout_seconds=5) == "A 1\nB 2\n"


def test_a_packed_page_and_one_that_is_a_bomb() -> None:
    with server(page(gzip.compress(b"A 1\n"), "Content-Encoding: gzip")) as port:
        assert fetch_dcgm_page(at(port), timeout_seconds=5) == "A 1\n"
    error = failure(page(gzip.compress(b"A" * 20_000_000), "Content-Encoding: gzip"))
    assert error.reason is MissingReason.UNREADABLE
    cut = failure(page(gzip.compress(b"A 1\n")[:-9], "Content-Encoding: gzip"))
    assert "incomplete" in cut.detail


def test_user_and_password_are_sent() -> None:
    seen: list[bytes] = []

    def answer(channel: socket.socket, request: bytes) -> None:
        seen.append(request)
        page(b"A 1\n")(channel, request)

    with server(answer) as port:
        fetch_dcgm_page(dcgm_endpoint_of(f"http://me:se%40cret@127.0.0.1:{port}"), timeout_seconds=5)
    assert b"Authorization: Basic " + base64.b64encode(b"me:se@cret") in seen[0]
    assert seen[0].startswith(b"GET /metrics HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("500 Internal Server Error", MissingReason.UNREACHABLE),
        ("404 Not Found", MissingReason.UNREACHABLE),
        ("301 Moved Permanently", MissingReason.UNREACHABLE),
        ("401 Unauthorized", MissingReason.NO_PERMISSION),
        ("403 Forbidden", MissingReason.NO_PERMISSION),
    ],
)
def test_other_answers_are_reasons(status: str, reason: MissingReason) -> None:
    error = failure(page(b"x", status=status))
    assert error.reason is reason
    assert status[:3] in error.detail


def test_nobody_there() -> None:
    with server(raw(b"")) as port:
        pass
    with pytest.raises(PageFetchError) as caught:
        fetch_dcgm_page(at(port), timeout_seconds=5)
    assert caught.value.reason is MissingReason.UNREACHABLE
    assert "is dcgm-exporter running there?" in caught.value.detail


@pytest.mark.parametrize("text", ["node..7", "x" * 64])
def test_names_that_cannot_be_are_reasons_too(text: str) -> None:
    with pytest.raises(PageFetchError) as caught:
        fetch_dcgm_page(dcgm_endpoint_of(text), timeout_seconds=5)
    assert caught.value.reason is MissingReason.UNREACHABLE
    with server(page(b"A 1\n")) as port, pytest.raises(PageFetchError, match="path"):
        fetch_dcgm_page(dcgm_endpoint_of(f"127.0.0.1:{port}/größe"), timeout_seconds=5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff\n" * 10,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nA 1\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nA 1\nB\r\n",
    ],
)
def test_a_page_that_is_cut_is_none(data: bytes) -> None:
    assert failure(raw(data)).reason is MissingReason.UNREACHABLE


def test_a_page_that_is_too_large_is_left_off() -> None:
    assert failure(page(b"A" * 3_000_000)).reason is MissingReason.UNREADABLE


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_bug_24_a_server_that_drips_gets_no_longer_than_the_deadline(head: bytes) -> None:
    def answer(channel: socket.socket, _request: bytes) -> None:
        channel.sendall(head)
        for _ in range(40):
            channel.sendall(b"A")
            time.sleep(0.05)

    start = time.monotonic()
    assert failure(answer, timeout=0.3).reason is MissingReason.TIMED_OUT
    assert time.monotonic() - start < 5.0  # the server's own loop ends within 2 s


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=node7", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_https_with_a_ca_of_ones_own(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with server(page(b"A 1\n"), context) as port:
        url = f"https://127.0.0.1:{port}"
        assert fetch_dcgm_page(dcgm_endpoint_of(url, ca_file=str(certificate[0])), timeout_seconds=5) == "A 1\n"
        with pytest.raises(PageFetchError, match="not trusted") as caught:
            fetch_dcgm_page(dcgm_endpoint_of(url), timeout_seconds=5)
    assert caught.value.reason is MissingReason.UNREACHABLE


def test_https_of_a_server_without_and_a_ca_file_that_is_not_there() -> None:
    with server(page(b"A 1\n")) as port, pytest.raises(PageFetchError):
        fetch_dcgm_page(at(port, "https"), timeout_seconds=0.3)
    with pytest.raises(PageFetchError, match="cannot be read as certificates"):
        fetch_dcgm_page(dcgm_endpoint_of("https://127.0.0.1:1", ca_file="/nowhere.pem"), timeout_seconds=5)


def test_a_collector_over_http() -> None:
    with server(page(render(busy()).encode())) as port:
        collection = DcgmExporterCollector(at(port)).collect()
    assert values(collection, "utilization_ratio") == [0.97]
    collection = DcgmExporterCollector(at(port)).collect()
    (absent,) = collection.missing
    assert (absent.metric, absent.labels, absent.reason) == ("", (), MissingReason.UNREACHABLE)
    assert absent.detail.startswith(f"http://127.0.0.1:{port}/metrics: ")


@pytest.mark.parametrize("text", ["", "\n\n", "# HELP DCGM_FI_DEV_GPU_UTIL x\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"])
def test_an_empty_page_is_not_yet_and_no_gpu_is_gone(text: str) -> None:
    pages = Pages(render(busy()), text, render(busy()))
    pages.collect()
    (absent,) = pages.collect().missing
    assert absent.reason is MissingReason.NOT_YET
    assert missing(pages.collect(), "") == []


@pytest.mark.parametrize("text", ["node_load1 0.5\n", "<html><head></head></html>", "\x00"])
def test_a_page_of_somebody_else_is_told(text: str) -> None:
    (absent,) = collect(text).missing
    assert (absent.reason, absent.labels) == (MissingReason.UNREADABLE, ())


def test_an_error_says_nothing_of_the_gpus_that_were_there() -> None:
    pages = Pages(render(busy()), PageFetchError(MissingReason.TIMED_OUT, "no page within 5 s"), render(busy()))
    pages.collect()
    assert [one.reason for one in pages.collect().missing] == [MissingReason.TIMED_OUT]
    assert codes(pages.collect()) == []


def test_lines_that_cannot_be_read_are_counted_and_the_others_read() -> None:
    collection = collect(render(busy()) + 'DCGM_FI_DEV_GPU_TEMP{gpu="1" 2\n')
    assert codes(collection) == ["unreadable_lines"]
    assert values(collection, "power_watts") == [512.371]
