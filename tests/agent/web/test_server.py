"""Does the agent answer over HTTP, also while a source hangs and clients misbehave?"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from stepscope.agent.exporter import MetricsPage
from stepscope.agent.schedule import ScheduledSource
from stepscope.agent.source_state import SourceState
from stepscope.agent.web import Address, AgentServer
from stepscope.agent.web import server as server_module
from stepscope.core.errors import UsageError
from stepscope.core.readings import Collection, Missing, MissingReason, Reading

_READING = Reading("stepscope_host_cpus", 2.0, (), 1)
_GIVES = Collection((_READING,), (Missing("stepscope_host_load_average", (), MissingReason.NOT_SUPPORTED),))
_UP = SourceState("host", _GIVES, time.time_ns(), 0.1, num_collections=1)


class _Agent:
    """A server over states that a test sets."""

    def __init__(self) -> None:
        self.states: tuple[SourceState, ...] = (_UP,)
        self.server = AgentServer(
            Address("127.0.0.1", 0), MetricsPage(lambda: self.states, stale_seconds=1e9), lambda: self.states
        )
        self.port = int(self.server.url.rpartition(":")[2])

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
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
    assert "&lt;nvml&gt;<td>not_installed" in body
    assert "no &lt;driver&gt;" in body
    assert agent.get("/healthz")[::2] == (200, "ok\n")
    assert agent.get("/secret")[0] == 404
    assert agent.get("/metrics", method="DELETE")[0] == 501


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
    assert (status, body) == (500, "this page failed; the agent's log says why\n")
    assert "/metrics failed" in caplog.text
    agent.states = (_UP,)
    assert agent.get("/metrics")[0] == 200


def test_idle_clients_block_nobody_and_are_cut(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_CONNECTION_SECONDS", 1.0)
    idle = [socket.create_connection(("127.0.0.1", agent.port), timeout=20) for _ in range(20)]
    try:
        assert agent.get("/healthz")[0] == 200
        assert idle[0].recv(1) == b""  # closed by the agent
    finally:
        for connection in idle:
            connection.close()


def test_too_many_at_once_are_told_so(agent: _Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 0)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 503 ")


def test_an_address_that_is_taken_is_one_line(agent: _Agent) -> None:
    with pytest.raises(UsageError, match=rf"127.0.0.1:{agent.port}: cannot listen there \(Address already in use\)"):
        AgentServer(Address("127.0.0.1", agent.port), MetricsPage(lambda: ()), lambda: ())
