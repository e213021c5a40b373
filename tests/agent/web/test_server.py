"""HTTP server of the agent, also while a source hangs and clients misbehave."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.polling import ScheduledSource, SourceState
from stepscope.agent.web import server as connections
from stepscope.agent.web.endpoints import page_routes
from stepscope.agent.web.routes import Access, Reply, Request, Route, text_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import Collection, Missing, MissingReason, Reading

_READING = Reading("stepscope_host_cpus", 2.0, (), 1)
_GIVES = Collection((_READING,), (Missing("stepscope_host_load_average", (), MissingReason.NOT_SUPPORTED),))
_UP = SourceState("host", _GIVES, time.time_ns(), 0.1, num_collections=1, age_seconds=0.25)


def _echo(request: Request) -> Reply:
    return text_reply(HTTPStatus.OK, f"{request.parts['name']} {request.body.decode()}")


class _Agent:
    """A server over states that a test sets."""

    def __init__(self) -> None:
        self.states: tuple[SourceState, ...] = (_UP,)
        page = MetricsPage(lambda: self.states, stale_seconds=1e9)
        routes = (*page_routes(page, lambda: self.states), Route("POST", "/echo/{name}", _echo, 10, needs_token=True))
        self.server = AgentServer(ListenAddress("127.0.0.1", 0), routes, Access("a-token"))
        self.port = int(self.server.url.rpartition(":")[2])

    def get(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def agent() -> Iterator[_Agent]:
    made = _Agent()
    with made.server:
        yield made


def test_metrics_in_the_format_asked_for(agent: _Agent) -> None:
    status, headers, body = agent.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "\nstepscope_host_cpus 2.0\n" in body
    _, headers, body = agent.get("/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")
    status, headers, body = agent.get("/metrics", method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 100


def test_landing_health_and_the_rest(agent: _Agent) -> None:
    agent.states = (_UP, SourceState("<nvml>", reason=MissingReason.NOT_INSTALLED, detail="no <driver>"))
    status, headers, body = agent.get("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert 'href="metrics"' in body
    assert "<td>host<td>up<td>1<td>1<td>0.2 s" in body
    assert "&lt;nvml&gt;<td>not_installed" in body
    assert "no &lt;driver&gt;" in body
    assert agent.get("/healthz")[::2] == (200, "ok\n")
    assert agent.get("/secret")[0] == 404


@pytest.mark.parametrize("method", ["DELETE", "POST", "PUT", "PATCH"])
def test_a_method_that_a_page_does_not_have_is_refused_in_one_plain_line(agent: _Agent, method: str) -> None:
    status, headers, body = agent.get("/metrics", method=method, body=b"{}")
    assert (status, headers["Allow"], body) == (405, "GET", "only GET is allowed here\n")
    assert headers["Content-Type"].startswith("text/plain")
    assert agent.get("/nothing", method=method, body=b"{}")[0] == 404
    assert agent.get("/metrics", method="BREW")[0] == 501


def test_an_address_that_is_too_long_is_refused_in_one_plain_line(agent: _Agent) -> None:
    status, headers, body = agent.get("/" + "a" * 65_600)
    assert (status, body) == (414, "the request's address is too long\n")
    assert headers["Content-Type"].startswith("text/plain")


def test_it_is_ready_once_every_source_has_answered_or_is_given_up(agent: _Agent) -> None:
    agent.states = (_UP, SourceState("nvml", reason=MissingReason.NOT_YET))
    assert agent.get("/readyz")[::2] == (503, "waiting for nvml\n")
    agent.states = (_UP, SourceState("nvml", reason=MissingReason.TIMED_OUT))
    assert agent.get("/readyz")[::2] == (200, "ready\n")


def test_it_answers_while_a_source_hangs(agent: _Agent) -> None:
    go_on = threading.Event()
    calls = iter(range(1000))

    class HangsSecond:
        def collect(self) -> Collection:
            if next(calls) > 0:
                go_on.wait(60)
            return _GIVES

    with ScheduledSource("host", HangsSecond(), interval=0.01, deadline=0.1) as source:
        end = time.monotonic() + 20
        while source.state().reason is not MissingReason.TIMED_OUT:
            assert time.monotonic() < end
            time.sleep(0.01)
        agent.states = (source.state(),)
        body = agent.get("/metrics")[2]
        go_on.set()
    assert "\nstepscope_host_cpus 2.0\n" in body
    assert 'stepscope_agent_collector_up{collector="host",reason="timed_out"} 0.0' in body
    assert 'stepscope_agent_collector_age_seconds{collector="host"} ' in body


def test_a_page_that_fails_is_one_line_and_costs_no_other(agent: _Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.states = (None,)  # type: ignore[assignment]
    status, _, body = agent.get("/metrics")
    assert (status, body) == (500, "this request failed; see the agent's log\n")
    assert "/metrics failed" in caplog.text
    agent.states = (_UP,)
    assert agent.get("/metrics")[0] == 200


def test_idle_clients_block_nobody_and_are_cut(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 1.0)
    idle = [socket.create_connection(("127.0.0.1", agent.port), timeout=20) for _ in range(20)]
    try:
        assert agent.get("/healthz")[0] == 200
        assert idle[0].recv(1) == b""  # closed by the agent
    finally:
        for connection in idle:
            connection.close()


def test_where_nobody_can_be_cut_they_are_told_so(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 0)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 503 ")


@pytest.mark.parametrize("begin", [b"", b"GET /metrics HTTP/1.1\r\nX-Drip: "])
def test_who_asks_takes_the_place_of_who_says_nothing(agent: _Agent, begin: bytes) -> None:
    held = [socket.create_connection(("127.0.0.1", agent.port), timeout=20) for _ in range(50)]
    try:
        for one in held:
            try:
                one.sendall(begin)
            except OSError:
                continue  # cut already
        assert agent.get("/healthz")[0] == 200
        assert held[0].recv(1) == b""  # the oldest went
        for _ in range(200):  # opened for ever anew
            held.append(socket.create_connection(("127.0.0.1", agent.port), timeout=20))
            held.pop(0).close()
            if len(held) % 20 == 0:
                assert agent.get("/metrics")[0] == 200
        assert [agent.get("/healthz")[0] for _ in range(20)] == [200] * 20
    finally:
        for connection in held:
            connection.close()


def test_who_says_nothing_for_long_is_cut(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as silent:
        silent.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert silent.recv(1) == b""


def test_one_client_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_OF_ONE_CLIENT", 3)
    go_on = threading.Event()

    def slow(_: Request) -> Reply:
        go_on.wait(20)
        return text_reply(HTTPStatus.OK, "at last")

    routes = [Route("GET", "/slow", slow), Route("GET", "/fast", lambda _: text_reply(HTTPStatus.OK, "now"))]
    with AgentServer(ListenAddress("127.0.0.1", 0), routes) as server:
        place = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        held = [socket.create_connection(place, timeout=20) for _ in range(3)]
        try:
            for connection in held:
                connection.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            end = time.monotonic() + 20
            while sum(one.has_request for one in server._server._connections.values()) < 3:
                assert time.monotonic() < end
                time.sleep(0.01)
            with socket.create_connection(place, timeout=20) as fourth:
                assert fourth.recv(100).startswith(b"HTTP/1.0 503 ")
            with socket.create_connection(place, timeout=20, source_address=("127.0.0.2", 0)) as other:
                other.sendall(b"GET /fast HTTP/1.0\r\n\r\n")
                assert other.recv(100).startswith(b"HTTP/1.0 200 ")
            go_on.set()
            assert [one.recv(100)[:13] for one in held] == [b"HTTP/1.0 200 "] * 3
        finally:
            go_on.set()
            for connection in held:
                connection.close()


def test_an_address_that_is_taken_is_one_line(agent: _Agent) -> None:
    with pytest.raises(UsageError, match=rf"127.0.0.1:{agent.port}: cannot listen there \(Address already in use\)"):
        AgentServer(ListenAddress("127.0.0.1", agent.port), ())


def test_what_needs_the_token_is_refused_without_it(agent: _Agent) -> None:
    status, headers, _ = agent.get("/echo/x", "POST", b"1")
    assert (status, headers["WWW-Authenticate"][:6]) == (401, "Bearer")
    assert agent.get("/echo/x", "POST", b"1", Authorization="Bearer another")[0] == 403
    assert agent.get("/echo/x", "POST", b"1", Authorization="Basic a-token")[0] == 401
    assert agent.get("/echo/x", "POST", b"1", Authorization="bearer a-token")[::2] == (200, "x 1\n")
    with AgentServer(ListenAddress("127.0.0.1", 0), [Route("GET", "/a", _echo, needs_token=True)]) as other:
        connection = http.client.HTTPConnection(other.url.removeprefix("http://"), timeout=20)
        connection.request("GET", "/a", headers={"Authorization": "Bearer "})
        assert connection.getresponse().status == 403  # without a token of its own nobody may
        connection.close()


def test_a_body_has_a_length_and_a_limit(agent: _Agent) -> None:
    token = {"Authorization": "Bearer a-token"}
    assert agent.get("/echo/x", "POST", b"1" * 10, **token)[2] == "x 1111111111\n"
    assert agent.get("/echo/x", "POST", b"1" * 11, **token)[0] == 413
    for length in ("", "-1", "x", "9" * 5000):
        assert agent.get("/echo/x", "POST", b"1", **token, **{"Content-Length": length})[0] in (411, 413)
    assert agent.get("/echo/x", "POST", b"1", **token, **{"Transfer-Encoding": "chunked"})[0] == 411
    assert agent.get("/echo/", "POST", b"1", **token)[0] == 404
    assert agent.get("/echo/x/y", "POST", b"1", **token)[0] == 404


def test_a_body_that_does_not_come_blocks_nobody_and_is_cut(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 1.0)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as slow:
        slow.sendall(b"POST /echo/x HTTP/1.1\r\nAuthorization: Bearer a-token\r\nContent-Length: 9\r\n\r\n1")
        assert agent.get("/healthz")[0] == 200
        assert slow.recv(1) == b""


def test_where_no_descriptor_is_left_a_client_waits_and_no_core_is_burnt(
    agent: _Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def none_left(_: object) -> None:
        refused.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", none_left)
        begin = time.monotonic()
        client = socket.create_connection(("127.0.0.1", agent.port))
        while len(refused) < 3:
            time.sleep(0.01)
        assert time.monotonic() - begin >= 2 * connections._PAUSE_SECONDS
    client.close()
    assert agent.get("/healthz")[0] == HTTPStatus.OK
