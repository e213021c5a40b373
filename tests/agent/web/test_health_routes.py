"""The agent's health API: who may do what, and what a wrong request is answered with."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.web.health_routes import health_routes
from stepscope.agent.web.routes import Access
from stepscope.agent.web.server import AgentServer, ListenAddress

_TOKEN = "0123456789abcdef0123"
_NOTE = {"by": "ann", "why": "known"}


@pytest.fixture
def port() -> Iterator[int]:
    routes = health_routes(HealthSource(lambda: (), "nvml"), host="n1")
    with AgentServer(ListenAddress("127.0.0.1", 0), routes, Access(_TOKEN)) as server:
        yield int(server.url.rpartition(":")[2])


def _ask(
    port: int, method: str, path: str, body: bytes = b"", *, token: str = _TOKEN, kind: str = "application/json"
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": kind})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, json.loads(content) if reply.headers["Content-Type"] == "application/json" else content


def test_before_the_first_check_health_is_unknown(port: int) -> None:
    status, document = _ask(port, "GET", "/api/v1/health", token="")
    assert status == 200
    assert (document["host"], document["time_ns"], document["is_kept"]) == ("n1", None, False)
    assert (document["machine"]["state"], document["gpus"], document["events"]) == ("unknown", [], [])


@pytest.mark.parametrize("path", ["/api/v1/health/ack", "/api/v1/health/set-healthy"])
def test_only_who_knows_the_token_may_write(path: str, port: int) -> None:
    assert _ask(port, "POST", path, b"{}", token="another")[0] == 403
    assert _ask(port, "GET", path)[0] == 405


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("ack", b"", 400, "not JSON: JSONDecodeError"),
        ("ack", b"[" * 10_000, 400, "not JSON: RecursionError"),
        ("ack", b"[]", 400, "must be an object"),
        ("ack", json.dumps(_NOTE).encode(), 400, '"event" must be 1 to 200 printable characters'),
        ("ack", json.dumps({**_NOTE, "event": 3}).encode(), 400, '"event" must be 1 to 200 printable characters'),
        ("ack", json.dumps({**_NOTE, "event": "x"}).encode(), 404, "no open event here is called x"),
        ("ack", json.dumps({"event": "x", "by": " ", "why": "y"}).encode(), 400, '"by" must be 1 to 200 '),
        ("ack", json.dumps({"event": "x", "by": "a\x1b[2J", "why": "y"}).encode(), 400, '"by" must be 1 to 200 '),
        ("ack", json.dumps({"event": "x", "by": "a", "why": "y" * 1001}).encode(), 400, '"why" must be 1 to 1000 '),
        ("set-healthy", json.dumps({**_NOTE, "target": "0"}).encode(), 404, "no GPU here is called 0: "),
    ],
)
def test_a_wrong_request_is_said_to_be_so(path: str, body: bytes, status: int, line: str, port: int) -> None:
    answered, document = _ask(port, "POST", f"/api/v1/health/{path}", body)
    assert answered == status
    assert document["schema"] == "stepscope.error/1"
    assert document["error"].startswith(line)


def test_a_form_of_a_foreign_page_changes_nothing(port: int) -> None:
    body = json.dumps({**_NOTE, "target": "node"}).encode()
    assert _ask(port, "POST", "/api/v1/health/set-healthy", body, kind="text/plain")[0] == 415
    assert _ask(port, "POST", "/api/v1/health/set-healthy", body)[0] == 200
    assert _ask(port, "POST", "/api/v1/health/set-healthy", b" " * 20_000)[0] == 413
