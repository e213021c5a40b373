"""Webhook and command: called with the change, in bounded time, and never with words of the run as code."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent.verdicts.changes import VerdictChanges
from stepscope.agent.verdicts.notifier import VerdictNotifier, check_targets
from stepscope.core.documents.node import RunVerdict
from stepscope.core.errors import UsageError
from stepscope.core.protocol.verdicts import LiveVerdict

_HOSTILE = 'r"; $(touch pwned) `x` \N{GRINNING FACE}'


class Endpoint:
    """A local HTTP server, in a with block.

    Attributes:
        bodies: what it was sent.
        status: that it answers with.
        seconds: after which it answers.
    """

    def __init__(self, status: int = 204, seconds: float = 0.0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status, self.seconds = status, seconds
        self._closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint._closing.wait(endpoint.seconds)
                endpoint.bodies.append(json.loads(content))
                self.send_response(endpoint.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?secret=s3cret"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Runs:
    """A run whose verdict changes at each look, so that each second look is a change."""

    def __init__(self) -> None:
        self.num_looks = 0

    def __call__(self) -> list[RunVerdict]:
        self.num_looks += 1
        cause = f"cause-{self.num_looks // 2}"
        verdict = LiveVerdict(_HOSTILE, self.num_looks, cause, 0.9, "Data loading", bottleneck=True, share=0.4)
        return [RunVerdict(verdict, 7, ())]


def _notifier(runs: Callable[[], list[RunVerdict]], **options: Any) -> VerdictNotifier:
    return VerdictNotifier(runs, VerdictChanges(0.0, 1000), host="n1", look_seconds=0.01, **options)


def _counts(notifier: VerdictNotifier) -> dict[tuple[str, str], float]:
    return {(dict(one.labels)["target"], dict(one.labels)["result"]): one.value for one in notifier.readings()}


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_both_get_the_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = f"import os, sys; open({str(out)!r}, 'ab').write(sys.stdin.buffer.read() + repr(os.environ).encode())"
    command = (sys.executable, "-c", program)
    with Endpoint() as endpoint, _notifier(_Runs(), webhook=endpoint.url, command=command) as notifier:
        _wait_until(lambda: len(endpoint.bodies) > 1 and out.exists() and _counts(notifier)["command", "ok"] > 0)
    first, second = endpoint.bodies[:2]
    assert first | {"verdict": None} == {
        "schema": "stepscope.verdict-change/1", "host": "n1", "uid": 7, "before": None, "verdict": None,
    }  # fmt: skip
    assert (first["verdict"]["run"], second["before"]) == (_HOSTILE, first["verdict"]["cause"])
    line, environment = out.read_text().split("\n")[:2]
    assert json.loads(line) == first
    assert "STEPSCOPE" not in environment
    assert _HOSTILE not in environment
    assert _counts(notifier)["webhook", "failed"] == 0
    assert not Path("pwned").exists()


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_endpoint_that_refuses_is_counted_and_logged_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with Endpoint(status) as endpoint, _notifier(_Runs(), webhook=endpoint.url) as notifier:
        _wait_until(lambda: _counts(notifier)["webhook", "failed"] >= 3)
        endpoint.status = 200
        _wait_until(lambda: _counts(notifier)["webhook", "ok"] >= 1)
    assert [one.getMessage() for one in caplog.records if "further" in one.getMessage()] == [
        f"verdicts.webhook fails: HTTP status {status}; further failures are counted only"
    ]
    assert "verdicts.webhook works again" in caplog.text
    assert "s3cret" not in caplog.text


def test_nobody_listens_or_answers(caplog: pytest.LogCaptureFixture) -> None:
    with Endpoint(seconds=60.0) as endpoint:
        for url in ("http://127.0.0.1:9/s3cret", endpoint.url):
            with _notifier(_Runs(), webhook=url, timeout=0.2) as notifier:
                _wait_until(lambda notifier=notifier: _counts(notifier)["webhook", "failed"] >= 2)  # type: ignore[misc]
    assert "ConnectionRefusedError: Connection refused" in caplog.text
    assert "it took too long" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/file",), "FileNotFoundError: No such file or directory"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "it ended with status 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "it took too long"),
    ],
)
def test_a_command_that_fails(command: tuple[str, ...], why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with _notifier(_Runs(), command=command, timeout=1.0) as notifier:
        _wait_until(lambda: _counts(notifier)["command", "failed"] >= 2)
    assert caplog.text.count("verdicts.command fails") == 1
    assert f"verdicts.command fails: {why}; " in caplog.text


def test_the_end_waits_for_no_call(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    program = f"open({str(begun)!r}, 'w'); import time; time.sleep(60)"
    with Endpoint(seconds=60.0) as endpoint:
        for options in ({"command": (sys.executable, "-c", program)}, {"webhook": endpoint.url}):
            with _notifier(_Runs(), timeout=60.0, **options):
                _wait_until(begun.exists)
                time.sleep(0.2)
                end = time.monotonic()
            assert time.monotonic() - end < 5.0


@pytest.mark.parametrize("url", ["", "http://localhost:1/x", "https://hooks.example/a?b=c"])
def test_urls(url: str) -> None:
    check_targets(url)


@pytest.mark.parametrize(
    "url", ["ftp://x/s3cret", "x", "http://", "http://a:b@c/s3cret", "http://x/s3 cret", "http://[x/"]
)
def test_other_urls_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of an HTTP server") as refused:
        check_targets(url)
    assert "s3" not in str(refused.value)
