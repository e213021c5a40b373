"""Agents are asked in parallel, and a wrong answer is an error of its agent alone."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus

import pytest

from stepscope.agent.web.routes import Access, Reply, Request, Route, json_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.core.documents.node import NODE_PATH, Node
from stepscope.core.errors import UsageError
from stepscope.workflow.nodes import agent_client as agent_client_module
from stepscope.workflow.nodes import answers as nodes_module
from stepscope.workflow.nodes.agent_client import agent_client
from stepscope.workflow.nodes.answers import NodeAnswer, NodeWatch, select_devices
from tests.workflow.nodes.made_nodes import asked, device, node, served, source


def test_the_document_comes_as_it_was() -> None:
    told = node(device(0))
    with served(told) as url:
        assert asked(agent_client(url)).node == told


def test_a_slow_agent_delays_no_other_and_is_never_asked_twice() -> None:
    go_on, asked = threading.Event(), []

    def slow(_: Request) -> Reply:
        asked.append(1)
        go_on.wait(20)
        return json_reply(HTTPStatus.OK, {"schema": "stepscope.node/9"})

    with (
        served(node(device(0))) as url,
        AgentServer(ListenAddress("127.0.0.1", 0), [Route("GET", NODE_PATH, slow)]) as other,
        NodeWatch([agent_client(other.url), agent_client(url)]) as watch,
    ):
        while not watch.answers()[1].node:
            watch.ask()
        assert watch.answers()[0].node is None
        go_on.set()
        watch.wait()
        first, second = watch.answers()
    assert asked == [1]
    assert "answers 'stepscope.node/9'" in first.error
    assert (second.error, second.node is not None) == ("", True)


def test_what_it_said_last_stays_when_it_is_gone() -> None:
    with served(node(device(0))) as url:
        watch = NodeWatch([agent_client(url)])
        watch.__enter__()
        watch.ask()
        watch.wait()
    watch.ask()
    watch.wait()
    watch.__exit__()
    (answer,) = watch.answers()
    assert answer.node is not None
    assert answer.at is not None
    assert "cannot be reached" in answer.error


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"schema": "stepscope.node/1"}, "its answer is not a stepscope.node/1 document"),
        ({}, "answers None"),
        ([], r"its answer is not a JSON object.* \(\[\]\)$"),
    ],
)
def test_an_answer_that_is_none(document: object, line: str) -> None:
    body = json.dumps(document).encode()
    route = Route("GET", NODE_PATH, lambda _: Reply(HTTPStatus.OK, body))
    with AgentServer(ListenAddress("127.0.0.1", 0), [route]) as server:
        assert re.search(line, asked(agent_client(server.url)).error)
        if document == []:  # as others of its requests are answered
            assert agent_client(server.url).ask("GET", NODE_PATH).error == "[]"


def test_user_and_password_stand_before_the_host_and_are_not_shown() -> None:
    client = agent_client("https://me:se%40cret@node7")
    assert (client.user, client.password, client.port) == ("me", "se@cret", 9455)
    assert str(client) == "https://node7:9455"
    with pytest.raises(UsageError) as raised:
        agent_client("ftp://me:secret@node7")
    assert "secret" not in str(raised.value)
    seen = []

    def answer(request: Request) -> Reply:
        seen.append(request.headers.get("Authorization"))
        return json_reply(HTTPStatus.OK, {})

    with AgentServer(ListenAddress("127.0.0.1", 0), [Route("GET", "/x", answer)], Access()) as server:
        agent_client(server.url.replace("//", "//me:word@")).ask("GET", "/x")
    assert seen == ["Basic bWU6d29yZA=="]


def test_an_agent_that_sends_a_byte_now_and_then_gets_no_longer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client_module, "_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                while True:
                    connection.sendall(b"HTTP/1.0 200 OK\r\n" if not sent else b"X")
                    sent.append(1)
                    time.sleep(0.05)

        sent: list[int] = []
        dripping = threading.Thread(target=drip)
        dripping.start()
        assert "not answered within" in asked(agent_client(f"127.0.0.1:{listening.getsockname()[1]}")).error
        dripping.join(20)
    assert len(sent) > 1


def test_an_answer_that_nobody_foresaw_is_its_own_agents_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(_: object) -> Node:
        raise OverflowError("int too large")

    monkeypatch.setattr(nodes_module, "read_node", odd)
    with served(node(device(0))) as url, NodeWatch([agent_client(url)]) as watch:
        watch.ask()
        watch.wait()
        (answer,) = watch.answers()
    assert answer.error == "its answer cannot be read (OverflowError)"


def test_a_machine_of_which_no_gpu_is_known_is_not_left_out_as_well() -> None:
    well, without = NodeAnswer("a", node(device(0))), NodeAnswer("b", node(sources=(source("nvml", "not_installed"),)))
    assert [one.agent for one in select_devices((well, without), sick=True)] == ["b"]
    assert [one.agent for one in select_devices((well, without), job="llama")] == ["a"]
