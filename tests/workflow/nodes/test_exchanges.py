"""Many agents at once: each answer and each kind of silence or garbage reaches its agent, within the time."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from stepscope.agent.web.endpoints import api_routes
from stepscope.agent.web.routes import Access, Reply, Request, Route, json_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.core.documents.node import NODE_PATH, node_document
from stepscope.core.errors import UnreachableError, UsageError
from stepscope.workflow.nodes import exchanges as exchanges_module
from stepscope.workflow.nodes.agent_client import MAX_BYTES, agent_client
from stepscope.workflow.nodes.answers import NodeAnswer, answers_of
from stepscope.workflow.nodes.exchanges import AgentExchanges, Body
from tests.agent.web.certificates import self_signed
from tests.workflow.nodes.made_nodes import device, node, served

_HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def _raw(*parts: bytes, stays_open: bool = False, pause_seconds: float = 0.0) -> Iterator[str]:
    """A server that sends these bytes to whoever connects; its address."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    for part in parts:
                        connection.sendall(part)
                        time.sleep(pause_seconds)
                    if stays_open:
                        stop.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        stop.set()
        with suppress(OSError):
            socket.create_connection(listening.getsockname(), 1).close()
        thread.join(20)


def _answer(url: str, seconds: float = 5.0) -> NodeAnswer:
    (answer,) = answers_of([agent_client(url)], seconds=seconds)
    return answer


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "it closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer is not HTTP: is that an agent? (SSH-2.0-OpenSSH_9.2)"),
        (_HEAD + b"Content-Length: 100\r\n\r\n{", "its answer ends too early"),
        (_HEAD + b"\r\n", "its answer is not a JSON object: is that an agent? (empty)"),
        (_HEAD + b"\r\n" + b"[" * 100_000, "its answer is not a JSON object"),
        (_HEAD + b'\r\n{"schema": "stepscope.node/1"}', "its answer is not a stepscope.node/1 document"),
        (b"HTTP/1.0 302 Found\r\nLocation: /login\r\n\r\n", "answers with HTTP status 302"),
        (b'HTTP/1.0 502 Bad Gateway\r\n\r\n{"error": "no such tenant"}', "no such tenant"),
        (b"HTTP/1.0 401 Unauthorized\r\n\r\nthis needs a user\n", "this needs a user"),
        (_HEAD + b"\r\n" + b" " * (MAX_BYTES + 1), "answers more than 16 MiB"),
        (_HEAD + b"X: " + b"x" * 70_000 + b"\r\n\r\n{}", "the agent cannot be reached (got more than 65536 bytes"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_garbage_is_its_own_agents_error(content: bytes, error: str) -> None:
    with _raw(content) as url, served(node(device(0))) as good:
        first, second = answers_of([agent_client(url), agent_client(good)], seconds=20.0)
    assert error in first.error
    assert (second.error, second.node is not None) == ("", True)


@pytest.mark.parametrize("parts", [(), (_HEAD[:20],), (_HEAD + b"Content-Length: 9\r\n\r\n{",)])
def test_whoever_hangs_is_given_up_in_time(parts: tuple[bytes, ...]) -> None:
    with _raw(*parts, stays_open=True) as url:
        begin = time.monotonic()
        assert _answer(url, 0.3).error == "the agent has not answered within 0.3 s"
        assert time.monotonic() - begin < 5.0


def test_a_byte_now_and_then_is_no_answer() -> None:
    drops = [bytes([byte]) for byte in _HEAD]
    with _raw(*drops, pause_seconds=0.05) as url:
        assert _answer(url, 0.4).error == "the agent has not answered within 0.4 s"


def test_an_answer_that_is_whole_needs_no_end_of_the_connection() -> None:
    body = b'{"schema": "stepscope.node/9"}'
    with _raw(_HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body, stays_open=True) as url:
        begin = time.monotonic()
        assert "answers 'stepscope.node/9'" in _answer(url, 15.0).error
        assert time.monotonic() - begin < 10.0


def test_chunks_are_joined() -> None:
    body = b'{"schema": "stepscope.node/9"}'
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with _raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks) as url:
        assert "answers 'stepscope.node/9'" in _answer(url).error


def test_nobody_listens_and_nobody_is_called_so() -> None:
    assert _answer("127.0.0.1:9").error == "the agent cannot be reached (Connection refused)"
    assert _answer("nowhere.invalid").error.startswith("no such host")


def test_a_name_server_that_hangs_keeps_no_agent_and_no_end_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(host: str, _port: int) -> list[str]:
        if host == "slow":
            go_on.wait(20)
        return ["127.0.0.1"]

    monkeypatch.setattr(exchanges_module, "_addresses", slow)
    with served(node(device(0))) as url:
        clients = [agent_client("slow:9"), agent_client(url.replace("127.0.0.1", "fast"))]
        first, second = answers_of(clients, seconds=2.0)
    go_on.set()
    assert first.error == "the agent has not answered within 2 s"
    assert second.node is not None


def test_names_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges_module, "_addresses", lambda *_: ["127.9.9.9", "127.0.0.1"])
    with served(node(device(0))) as url:
        assert _answer(url.replace("127.0.0.1", "two")).node is not None


def test_more_agents_than_may_be_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges_module, "_num_files", lambda _: 2)
    with served(node(device(0))) as url:
        port = url.rpartition(":")[2]
        clients = [agent_client(f"http://127.0.0.1:{port}"), *(agent_client(f"127.0.0.{n}:9") for n in range(2, 9))]
        answers = answers_of(clients)
    assert [bool(answer.node) for answer in answers] == [True, *([False] * 7)]


def test_tls_is_checked_and_its_settings_are_read_once(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, "agent", "DNS:localhost")
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}\n")
    routes = api_routes(lambda _: node(device(0)), scheme="https")
    with AgentServer(ListenAddress("127.0.0.1", 0), routes, Access(), WebConfigReloader(config)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        trusting = agent_client(url, ca_file=str(cert))
        assert answers_of([trusting])[0].error == ""
        assert trusting.context() is agent_client("https://other", ca_file=str(cert)).context()
        assert "its certificate is not trusted" in _answer(url).error
        assert _answer(url.replace("https", "http")).error != ""
    with pytest.raises(UsageError, match="cannot be read as certificates"):
        answers_of([agent_client(url, ca_file="/nowhere")])


def test_while_others_answer_a_slow_agent_has_more_time_and_not_for_ever() -> None:
    def answered_after(seconds: float) -> Route:
        def answer(_: Request) -> Reply:
            time.sleep(seconds)
            return json_reply(HTTPStatus.OK, node_document(node(device(0))))

        return Route("GET", NODE_PATH, answer)

    with ExitStack() as stack:
        servers = [
            stack.enter_context(AgentServer(ListenAddress("127.0.0.1", 0), [answered_after(seconds)]))
            for seconds in (0.0, 0.7, 1.4, 5.0)
        ]
        answers = answers_of([agent_client(server.url) for server in servers], seconds=1.0)
    assert [bool(answer.node) for answer in answers] == [True, True, True, False]
    assert answers[3].error == "the agent has not answered within 1 s"


def _requested(url: str, *, max_bytes: int = 1000) -> Body | UnreachableError:
    """Answer to one request that allows gzip."""
    answers: queue.SimpleQueue[Body | UnreachableError] = queue.SimpleQueue()
    with AgentExchanges(seconds=5.0, most=1) as exchanges:
        headers = {"Accept-Encoding": "gzip"}
        exchanges.request(agent_client(url), "/metrics", answers.put, headers=headers, max_bytes=max_bytes)
        return answers.get(timeout=20)


def _packed(content: bytes, *, cut: int = 0) -> bytes:
    body = gzip.compress(content)
    body = body[: len(body) - cut]
    return b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (_packed(b"a 1\n"), (200, b"a 1\n")),
        (_packed(b"a" * 1000), (200, b"a" * 1000)),
        (b"HTTP/1.0 200 OK\r\n\r\na 1\n", (200, b"a 1\n")),
        (_packed(b"a" * 1001), "answers more than"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"a" * 1001, "answers more than"),
        (_packed(b"a 1\n", cut=4), "its answer ends too early"),
        (b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\na 1\n", "its answer cannot be unpacked"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_request_with_an_answer_that_may_be_packed(content: bytes, answer: Body | str) -> None:
    with _raw(content) as url:
        found = _requested(url)
    if isinstance(answer, str):
        assert isinstance(found, UnreachableError)
        assert answer in found.what
    else:
        assert found == answer


def test_why_there_is_no_answer_is_its_cause() -> None:
    found = _requested("127.0.0.1:9")
    assert isinstance(found, UnreachableError)
    assert isinstance(found.__cause__, ConnectionRefusedError)
