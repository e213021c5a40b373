"""Capture coordinator: accepts requests, also over HTTP, keeps them across a restart, and records the requester."""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from stepscope.agent import state_directory
from stepscope.agent.captures.capture import CaptureRefusedError
from stepscope.agent.captures.coordinator import AgentCaptureCoordinator, AgentCaptureFile
from stepscope.agent.config.settings import CaptureLimits
from stepscope.agent.state_directory import StateLock, agent_token, read_agent_token
from stepscope.agent.web.endpoints import capture_routes
from stepscope.agent.web.routes import Access
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import Missing, MissingReason
from stepscope.core.protocol.captures import (
    CaptureOrder,
    CaptureProgress,
    CaptureRequest,
    CaptureSelector,
    CaptureState,
)
from tests.agent.captures.fake_backend import FakeBackend, target

_ACCEPTED = CaptureProgress(CaptureState.ACCEPTED, start_step=8)
_DONE = CaptureProgress(CaptureState.DONE, path="/runs/r/traces/step8/rank0.json.gz", bytes=9)


def _order(capture_id: str, steps: int, **selector: str) -> CaptureOrder:
    return CaptureOrder(CaptureRequest(capture_id, steps), CaptureSelector(**selector))  # type: ignore[arg-type]


def _wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_refusal_tells_why_a_way_to_capture_is_closed() -> None:
    closed = FakeBackend([], why_closed=Missing("", (), MissingReason.TAKEN, "the socket: another daemon is there"))
    with AgentCaptureCoordinator([FakeBackend([]), closed]) as coordinator:
        with pytest.raises(
            CaptureRefusedError, match=r"none is: .*KINETO_USE_DAEMON=1 \(the socket: another daemon is there\)$"
        ):
            coordinator.request(_order("c", 3, job="9"), client="10.0.0.1")
        closed.known = [target(0)]
        with pytest.raises(CaptureRefusedError, match=r"connected are: r \(the socket: another daemon is there\)$"):
            coordinator.request(_order("c", 3, job="9"), client="10.0.0.1")


def test_an_order_comes_about_and_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepscope.agent.audit")
    backend = FakeBackend([target(0)], {"k0": [_ACCEPTED, _DONE]})
    with AgentCaptureCoordinator([FakeBackend([]), backend]) as coordinator:
        order = _order("c", 3, run="r")
        coordinator.request(order, client="10.0.0.1")
        _wait_until(lambda: coordinator.report("c").state is CaptureState.DONE)
        assert coordinator.request(order, client="10.0.0.1").state is CaptureState.DONE  # asked again, told again
        with pytest.raises(CaptureRefusedError, match="another capture has this id"):
            coordinator.request(_order("c", 4, run="r"), client="10.0.0.1")
        with pytest.raises(CaptureRefusedError, match="no process of run q"):
            coordinator.request(_order("d", 4, run="q"), client="10.0.0.2")
    assert len(backend.asked) == 1
    assert backend.asked[0][0].max_bytes == 1 << 30
    assert [record.message for record in caplog.records] == [
        "capture c asked by 10.0.0.1: 3 steps of run r, rank 0",
        "capture c: rank 0 of r: accepted",
        "capture c: rank 0 of r: done /runs/r/traces/step8/rank0.json.gz (9 bytes)",
        "capture c asked by 10.0.0.1: refused, another capture has this id",
        "capture d asked by 10.0.0.2: refused, no process of run q is known here; connected are: r",
    ]


def test_a_process_that_has_ended_is_noticed(tmp_path: Path) -> None:
    backend = FakeBackend([target(0, pid=os.getpid()), target(1, pid=1 << 22)])
    with AgentCaptureCoordinator([backend], directory=tmp_path) as coordinator:
        coordinator.request(_order("c", 3, run="r"), client="me")
        backend.known.clear()
        coordinator.wake()
        _wait_until(lambda: coordinator.report("c").ranks[1].progress.reason == "its process has ended")
        assert coordinator.report("c").ranks[0].progress.state is CaptureState.ASKED
        coordinator.cancel("c", client="me")
        backend.known.append(target(0, pid=os.getpid()))
        _wait_until(lambda: coordinator.report("c").state is CaptureState.CANCELLED)
    assert len(backend.asked) == 1  # who comes back is told that it is cancelled, and not asked


def test_captures_outlive_the_agent(tmp_path: Path) -> None:
    backend = FakeBackend([target(0)], {"k0": [_ACCEPTED]})
    with AgentCaptureCoordinator([backend], directory=tmp_path) as coordinator:
        coordinator.request(_order("c", 3, run="r"), client="me")
        _wait_until(lambda: coordinator.report("c").state is CaptureState.ACCEPTED)
    assert (tmp_path / "captures.json").stat().st_mode & 0o777 == 0o600
    backend.says["k0"] = [_DONE]
    with AgentCaptureCoordinator([backend], directory=tmp_path) as coordinator:
        _wait_until(lambda: coordinator.report("c").state is CaptureState.DONE)
    once = AgentCaptureCoordinator([backend], directory=tmp_path, limits=CaptureLimits(max_per_hour=1))
    with (
        once,
        pytest.raises(CaptureRefusedError, match="captured 1 time within an hour"),
    ):  # a restart makes nobody freer
        once.request(_order("d", 3, run="r"), client="me")


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": 1}', '[{"host": "h"}]', '[{"order": []}]'])
def test_a_file_that_is_damaged_is_said_and_forgotten(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "captures.json").write_text(text)
    assert AgentCaptureFile(tmp_path).read() == []
    assert "earlier captures are lost" in caplog.text


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Callable[..., tuple[int, dict[str, object]]]]:
    backend = FakeBackend([target(0)], {"k0": [_ACCEPTED]})
    coordinator, token = AgentCaptureCoordinator([backend], directory=tmp_path), agent_token(tmp_path)
    routes = capture_routes(coordinator)
    with coordinator, AgentServer(ListenAddress("127.0.0.1", 0), routes, Access(token)) as server:

        def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, object]]:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
            told = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | headers
            connection.request(method, f"/api/v1/captures{path}", body, told)
            answer = connection.getresponse()
            document = json.loads(answer.read())
            connection.close()
            return answer.status, document

        yield ask


def test_orders_over_http(api: Callable[..., tuple[int, dict[str, object]]]) -> None:
    status, document = api("POST", "", '{"run": "r", "steps": 3}')
    assert (status, document["schema"]) == (202, "stepscope.node-capture/1")
    order = document["order"]
    assert isinstance(order, dict)
    capture_id = order["id"]
    assert api("GET", f"/{capture_id}")[0] == 200
    assert api("GET", "")[1]["schema"] == "stepscope.node-captures/1"
    assert api("DELETE", f"/{capture_id}")[0] == 202
    assert api("GET", "/nobody")[0] == 404
    # a page of somebody else's can send forms and plain texts to this machine, and no JSON
    assert api("POST", "", '{"run": "r", "steps": 3}', **{"Content-Type": "text/plain"})[0] == 415
    for body in ("", "[", "[]", '{"steps": 3}', '{"run": "r", "steps": 3, "step": 3}', '{"run": "r", "steps": true}'):
        status, document = api("POST", "", body)
        assert (status, document["schema"]) == (400, "stepscope.error/1")
        assert "\n" not in str(document["error"])


def test_the_token_is_made_once_and_for_its_user_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    token = read_agent_token(file, create=True)
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_agent_token(file, create=True) == read_agent_token(file) == token
    assert not caplog.text
    file.chmod(0o644)
    assert read_agent_token(file, create=True) == token
    assert "chmod 600" in caplog.text
    for text in ("", "short", "two words of some length", "x" * 600, "é" * 20):
        file.write_text(text)
        with pytest.raises(UsageError, match="is not a token"):
            read_agent_token(file)
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        read_agent_token(tmp_path / "nowhere")


def test_a_full_disk_leaves_no_token_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"

    def full(descriptor: int, mode: str) -> IO[Any]:
        os.close(descriptor)
        return Path("/dev/full").open(mode)

    with monkeypatch.context() as patch:
        patch.setattr(state_directory, "open", full, raising=False)
        with pytest.raises(
            UsageError, match=r"token: the token cannot be created \(No space left on device\); free some space"
        ):
            read_agent_token(file, create=True)
    assert list(tmp_path.iterdir()) == []
    assert len(read_agent_token(file, create=True)) >= 32
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_place_for_the_token_nobody_may_ask_and_the_agent_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with AgentCaptureCoordinator([], directory=tmp_path / "file" / "state"):
        assert agent_token(tmp_path / "file" / "state") is None
    assert "captures cannot be requested" in caplog.text
    with pytest.raises(UsageError):
        agent_token(tmp_path, tmp_path / "file")
    caplog.clear()
    with StateLock(tmp_path / "file"), AgentCaptureCoordinator([], directory=tmp_path / "file"):
        assert agent_token(tmp_path / "file") is None
    assert f"the agent's state is not kept: {tmp_path}/file: is not a folder" in caplog.text
    assert f"{tmp_path}/file/token: the token cannot be created (Not a directory)" in caplog.text


def test_a_token_that_is_there_is_read_also_where_nothing_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    token = read_agent_token(tmp_path / "token", create=True)
    monkeypatch.setattr(os, "open", read_only)
    assert read_agent_token(tmp_path / "token", create=True) == token
    with pytest.raises(UsageError, match=r"the token cannot be created \(Read-only file system\)"):
        read_agent_token(tmp_path / "another", create=True)
