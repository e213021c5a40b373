"""Agents of several nodes capture together, or not at all."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.agent.captures.coordinator import AgentCaptureCoordinator
from stepscope.agent.state_directory import agent_token
from stepscope.agent.web.endpoints import capture_routes
from stepscope.agent.web.routes import Access
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.protocol.captures import (
    Alignment,
    CaptureOrder,
    CaptureProgress,
    CaptureRequest,
    CaptureSelector,
    CaptureState,
)
from stepscope.workflow.nodes import capture as capture_module
from stepscope.workflow.nodes.agent_client import AgentClient, agent_client
from stepscope.workflow.nodes.capture import capture_job
from tests.agent.captures.fake_backend import FakeBackend, target
from tests.agent.web.certificates import self_signed

_REQUEST = CaptureRequest("new", 3, deadline_unix_ns=time.time_ns() + 600 * 10**9)
_ORDER = CaptureOrder(_REQUEST, CaptureSelector("r"))


class _Node:
    """A node with one rank, whose agent listens."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir()
        self.backend = FakeBackend([target(rank, step_ms=100.0)])
        self.captures = AgentCaptureCoordinator([self.backend], directory=folder)
        self.routes, self.token = capture_routes(self.captures), agent_token(folder)
        self.key = f"k{rank}"

    def listen(self, opened: ExitStack) -> AgentClient:
        opened.enter_context(self.captures)
        server = AgentServer(ListenAddress("127.0.0.1", 0), self.routes, Access(self.token))
        opened.enter_context(server)
        return agent_client(server.url, token=self.token or "")

    def will_say(self, *answers: CaptureProgress) -> None:
        self.backend.says[self.key] = list(answers)


def _done(rank: int, start: int = 8) -> CaptureProgress:
    path = f"/runs/r/traces/step{start}/rank{rank}.json.gz"
    return CaptureProgress(CaptureState.DONE, start_step=start, steps=3, path=path, bytes=10)


@pytest.fixture
def nodes(tmp_path: Path) -> list[_Node]:
    return [_Node(tmp_path / str(rank), rank) for rank in range(2)]


@pytest.fixture
def agents(nodes: list[_Node], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AgentClient]]:
    monkeypatch.setattr(capture_module, "_LOOK_SECONDS", 0.02)
    with ExitStack() as opened:
        yield [node.listen(opened) for node in nodes]


def test_all_nodes_are_asked_the_same_at_once(nodes: list[_Node], agents: list[AgentClient]) -> None:
    for rank, node in enumerate(nodes):
        node.will_say(_done(rank))
    lines: list[str] = []
    captured = capture_job(agents, _ORDER, log=lines.append)
    assert captured.state is CaptureState.DONE
    assert [one.target.rank for one in captured.ranks] == [0, 1]
    assert captured.folder == "/runs/r/traces/step8"
    assert captured.warnings == ()
    asked = [node.backend.asked[0][0] for node in nodes]
    assert asked[0] == asked[1]
    assert asked[0].start_unix_ns is not None  # time for all to hear of it
    assert lines[0].endswith(": asked 2 ranks on 2 nodes")


def test_a_job_that_has_just_been_started_is_waited_for(nodes: list[_Node], agents: list[AgentClient]) -> None:
    known = [(node, node.backend.known.copy()) for node in nodes]
    for rank, (node, _) in enumerate(known):
        node.will_say(_done(rank))
        node.backend.known.clear()
    lines: list[str] = []

    def come_late() -> None:
        for node, targets in known:
            node.backend.known.extend(replace(one, job="77") for one in targets)

    timer = threading.Timer(0.5, come_late)
    timer.start()
    begin_ns = time.time_ns()
    captured = capture_job(agents, CaptureOrder(_REQUEST, CaptureSelector(job="77")), log=lines.append)
    timer.join()
    assert captured.state is CaptureState.DONE
    assert lines[0] == "no process of job 77 is known yet; waits for one, 20 s at most"
    assert "yet" not in lines[1]
    asked = nodes[0].backend.asked[0][0]
    assert asked.start_unix_ns is not None
    assert asked.start_unix_ns > begin_ns + 3.4e9  # counted from when somebody was there


def test_a_node_whose_rank_comes_a_little_later_takes_part(nodes: list[_Node], agents: list[AgentClient]) -> None:
    late = nodes[1].backend.known.copy()
    nodes[1].backend.known.clear()
    nodes[0].will_say(CaptureProgress(CaptureState.ACCEPTED, start_step=8))
    nodes[1].will_say(_done(1))
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line.endswith("asked 1 rank on 1 node"):
            nodes[1].backend.known.extend(late)
        if "1 done" in line:
            nodes[0].backend.answer("k0", _done(0), nodes[0].backend.asked[0][0].id)

    captured = capture_job(agents, _ORDER, log=tell)
    assert captured.state is CaptureState.DONE
    assert [one.target.rank for one in captured.ranks] == [0, 1]
    assert captured.warnings == ()
    assert nodes[0].backend.asked[0][0] == nodes[1].backend.asked[0][0]


def test_a_job_that_nobody_knows_is_said_in_time(agents: list[AgentClient], monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = CaptureOrder(_REQUEST, CaptureSelector(job="78"))
    monkeypatch.setattr(capture_module, "_UNKNOWN_SECONDS", 0.2)
    with pytest.raises(DataError, match="no process of job 78 is known here"):
        capture_job(agents, unknown)
    monkeypatch.setattr(capture_module, "_UNKNOWN_SECONDS", 60.0)
    with subprocess.Popen(["sleep", "0.5"]) as process:
        threading.Thread(target=process.wait).start()  # else it stays in /proc until it is asked for its end
        with pytest.raises(DataError, match="is known here"):  # the process it is named by has ended
            capture_job(agents, replace(unknown, selector=CaptureSelector(job=str(process.pid))))


def test_a_node_that_is_not_named_or_not_of_the_job_is_said(nodes: list[_Node], agents: list[AgentClient]) -> None:
    nodes[1].will_say(_done(1))
    captured = capture_job(agents[1:], _ORDER)
    assert [warning.code for warning in captured.warnings] == ["ranks_missing"]
    assert captured.missing_ranks == [0]
    nodes[0].backend.known.clear()
    assert list(capture_job(agents, _ORDER).reports) == [str(agents[1])]
    nodes[1].backend.known.clear()
    with pytest.raises(DataError, match="no process of run r is known here"):
        capture_job(agents, _ORDER)


def test_nodes_whose_first_steps_nobody_tells_are_said(nodes: list[_Node], agents: list[AgentClient]) -> None:
    for rank, node in enumerate(nodes):
        node.will_say(replace(_done(rank), start_step=None))
    assert [warning.code for warning in capture_job(agents, _ORDER).warnings] == ["starts_unknown"]
    assert capture_job(agents[:1], replace(_ORDER, request=replace(_REQUEST, ranks=(0,)))).warnings == ()


def test_ranks_that_go_by_their_own_clocks_are_asked_anew(nodes: list[_Node], agents: list[AgentClient]) -> None:
    for rank, node in enumerate(nodes):
        node.will_say(CaptureProgress(CaptureState.ACCEPTED, start_step=8 * rank + 8, aligned_by=Alignment.TIME))
    agreed = threading.Event()

    def tell(line: str) -> None:
        if "clocks" in line:
            agreed.set()
            for rank, node in enumerate(nodes):
                node.will_say(_done(rank, 57))

    captured = capture_job(agents, _ORDER, log=tell)
    assert agreed.is_set()
    assert captured.order.request.start_step == 16 + 40 + 1  # 4 s of 0.1 s each
    assert captured.order.request.id.endswith("-2")
    assert captured.state is CaptureState.DONE
    assert [node.backend.cancelled[0][0] + "-2" for node in nodes] == [captured.order.request.id] * 2


def test_an_agent_that_does_not_answer_leaves_nothing_captured(nodes: list[_Node], agents: list[AgentClient]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = agent_client(f"127.0.0.1:{nobody.getsockname()[1]}", token="x")
        with pytest.raises(UnreachableError, match=r"the agent cannot be reached \(Connection refused\)"):
            capture_job([*agents, away], _ORDER)
    for node in nodes:
        (report,) = node.captures.reports()
        assert report.is_cancelled


def test_a_wrong_token_and_too_many_steps(agents: list[AgentClient]) -> None:
    stranger = agent_client(str(agents[0]), token="x" * 20)
    with pytest.raises(UsageError, match="this is not the agent's token; name the file"):
        capture_job([stranger], _ORDER)
    with pytest.raises(DataError, match="at most 100 steps are captured at once"):
        capture_job(agents, replace(_ORDER, request=CaptureRequest("new", 500)))


def test_an_agent_that_has_forgotten_is_asked_anew_and_training_knows(
    nodes: list[_Node], agents: list[AgentClient]
) -> None:
    nodes[0].will_say(CaptureProgress(CaptureState.ACCEPTED, start_step=8))
    captures = nodes[0].captures

    def tell(line: str) -> None:
        if "1 accepted" in line:
            nodes[0].will_say(_done(0))
            captures._captures.clear()
            captures.wake()

    captured = capture_job(agents[:1], _ORDER, log=tell)
    assert captured.state is CaptureState.DONE
    assert len({request.id for request, _ in nodes[0].backend.asked}) == 1


def test_some_rank_without_a_trace_is_a_part(nodes: list[_Node], agents: list[AgentClient]) -> None:
    nodes[0].will_say(_done(0))
    nodes[1].will_say(CaptureProgress(CaptureState.REFUSED, "too late"))
    captured = capture_job(agents, _ORDER)
    assert captured.state is CaptureState.PARTIAL
    assert [one.progress.reason for one in captured.ranks] == [None, "too late"]


def test_without_waiting_it_is_left_to_go_on(nodes: list[_Node], agents: list[AgentClient]) -> None:
    captured = capture_job(agents, _ORDER, wait=False)
    assert captured.state is CaptureState.ASKED
    assert not any(node.backend.cancelled for node in nodes)


def test_over_tls_with_a_certificate_of_ones_own(tmp_path: Path, nodes: list[_Node]) -> None:
    certificate, key = self_signed(tmp_path, "node")
    (tmp_path / "web.yml").write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
    guard, node = WebConfigReloader(tmp_path / "web.yml"), nodes[0]
    access = Access(node.token, guard)
    with node.captures, AgentServer(ListenAddress("127.0.0.1", 0), node.routes, access, guard) as server:
        token = node.token or ""
        with pytest.raises(UnreachableError, match="its certificate is not trusted"):
            capture_job([agent_client(server.url, token=token)], _ORDER, wait=False)
        agent = agent_client(server.url, token=token, ca_file=str(certificate))
        assert capture_job([agent], _ORDER, wait=False).state is CaptureState.ASKED
        with pytest.raises(UsageError, match="cannot be read as certificates"):
            capture_job([agent_client(server.url, ca_file=str(tmp_path / "nowhere"))], _ORDER)


def test_an_agent_that_asks_for_a_certificate(tmp_path: Path, nodes: list[_Node]) -> None:
    certificate, key = self_signed(tmp_path, "node")
    lines = (f"cert_file: {certificate}", f"key_file: {key}", f"client_ca_file: {certificate}")
    text = "\n  ".join(["tls_server_config:", *lines, "client_auth_type: RequireAndVerifyClientCert"])
    (tmp_path / "web.yml").write_text(text + "\n")
    guard, node = WebConfigReloader(tmp_path / "web.yml"), nodes[0]
    access = Access(node.token, guard)
    with node.captures, AgentServer(ListenAddress("127.0.0.1", 0), node.routes, access, guard) as server:
        told = {"token": node.token or "", "ca_file": str(certificate)}
        with pytest.raises(UnreachableError):
            capture_job([agent_client(server.url, **told)], _ORDER, wait=False)
        with pytest.raises(UsageError, match="cannot be read as a certificate with its key"):
            capture_job([agent_client(server.url, **told, cert_file=str(certificate))], _ORDER, wait=False)
        agent = agent_client(server.url, **told, cert_file=str(certificate), key_file=str(key))
        assert capture_job([agent], _ORDER, wait=False).state is CaptureState.ASKED


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("node7", "http://node7:9455"),
        ("node7:1", "http://node7:1"),
        ("https://node7/", "https://node7:9455"),
        ("http://[::1]:7", "http://[::1]:7"),
        ("http://me:secret@a", "http://a:9455"),
    ],
)
def test_addresses(url: str, said: str) -> None:
    assert str(agent_client(url)) == said


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://a:b", "http://a/b", "a b", "a\n"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        agent_client(url)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\n\r\n<html>", b"HTTP/1.0 200 OK\r\n\r\n{}"]
)
def test_what_is_no_agent_is_one_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the order, and what takes it back
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((UnreachableError, DataError)):
            capture_job([agent_client(f"127.0.0.1:{server.getsockname()[1]}")], _ORDER)
        thread.join(20)
