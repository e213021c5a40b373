"""`stepscope capture` end to end: traces of the same steps of all ranks, also when the agent fails meanwhile."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.training.gloo_ranks import steps_in, training

pytest.importorskip("torch")


@contextmanager
def _agent(folder: Path, socket_file: Path, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """A real agent and its URL; killed at the end of the block."""
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", listen]
    options = ["--socket", str(socket_file), "--state-dir", str(folder / "state")]
    log = folder / f"agent{time.monotonic_ns()}.log"
    with log.open("w") as file, subprocess.Popen([*command, *options], stderr=file, text=True) as process:
        try:
            _wait_until(lambda: "/metrics" in log.read_text())
            yield log.read_text().split()[2].removesuffix("/metrics")
        finally:
            process.kill()


def _wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


class _Api:
    """The agent's HTTP API."""

    def __init__(self, url: str, token: str) -> None:
        self._host = url.removeprefix("http://")
        self._token = token

    def ask(self, method: str, path: str, document: object = None, token: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, timeout=20)
        headers = {"Authorization": f"Bearer {self._token if token is None else token}"}
        body = None if document is None else json.dumps(document)
        if document is not None:
            headers["Content-Type"] = "application/json"
        if token == "":
            del headers["Authorization"]
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def steps(self) -> list[str]:
        """Series of the newest step, one a rank."""
        return [
            line for line in self.ask("GET", "/metrics")[1].splitlines() if line.startswith("stepscope_training_step{")
        ]


def _capture(url: str, state: Path, *options: str) -> list[str]:
    return ["capture", "--agent", url, "--token-file", str(state / "token"), *options]


def _run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_capture_through_a_real_agent(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, runs = tmp_path / "state", tmp_path / "runs"
    with _agent(tmp_path, place) as url, training(tmp_path, place, 2):
        api = _Api(url, (state / "token").read_text().strip())
        _wait_until(lambda: len(api.steps()) == 2)

        assert _run(_capture(url, state, "--run", "r", "--steps", "3", "--json")) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["schema"], document["state"]) == ("stepscope.capture/1", "done")
        ranks = document["agents"][0]["ranks"]
        steps = [steps_in(rank["path"]) for rank in ranks]
        assert len(steps[0]) == 3
        assert steps == [steps[0]] * 2
        assert document["folder"] == str(runs / "r" / "traces" / f"step{steps[0][0]}")
        assert _run(["analyze", document["folder"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["job"]["ranks"] == [0, 1]

        assert _run(_capture(url, state, "--run", str(runs / "r"), "--steps", "2", "--ranks", "1")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("rank 1  done  steps ")
        assert lines[-1].startswith(f"stepscope analyze {runs}/r/traces/step")

        _refusals(api, url, state, capsys)
        _interrupted(api, url, state)
    assert not list(tmp_path.glob("**/escaped*"))


def _refusals(api: _Api, url: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/api/v1/captures"
    order = {"run": "r", "steps": 1}
    assert api.ask("POST", path, order, token="")[0] == 401
    assert api.ask("GET", path, token="")[0] == 401
    assert api.ask("POST", path, order, token="wrong")[0] == 403
    assert api.ask("POST", path, {"run": "../escaped", "steps": 1})[0] == 404
    assert api.ask("POST", path, {"run": "/tmp/escaped", "steps": 1})[0] == 404
    for wrong in ({"path": "/tmp/escaped"}, {"id": "../escaped"}, {"id": "/escaped"}, {"id": "rule-1"}, {"steps": 0}):
        status, text = api.ask("POST", path, order | wrong)
        assert (status, json.loads(text)["schema"]) == (400, "stepscope.error/1")
    assert api.ask("POST", path, order | {"steps": 1000})[0] == 422
    assert api.ask("GET", f"{path}/../../etc/passwd")[0] == 404
    assert api.ask("DELETE", f"{path}/nobody")[0] == 404
    wrong_token = state.parent / "wrong"
    wrong_token.write_text("x" * 40)
    assert _run(["capture", "--agent", url, "--token-file", str(wrong_token), "--run", "r", "--steps", "1"]) == 2
    assert _run(_capture(url, state, "--run", "another", "--steps", "1")) == 3
    assert _run(_capture("127.0.0.1:1", state, "--run", "r", "--steps", "1")) == 4
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "connected are: r" in errors[1]


def _interrupted(api: _Api, url: str, state: Path) -> None:
    """^C cancels what nobody waits for any more."""
    command = [sys.executable, "-m", "stepscope", *_capture(url, state, "--run", "r", "--steps", "100")]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr is not None
        capture_id = process.stderr.readline().split()[1].rstrip(":")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        _wait_until(lambda: '"state":"cancelled"' in api.ask("GET", f"/api/v1/captures/{capture_id}")[1])


def test_an_agent_that_is_killed_during_a_capture_goes_on_with_it(tmp_path: Path, place: Path) -> None:
    state = tmp_path / "state"
    with training(tmp_path, place, 2):
        with _agent(tmp_path, place) as url:
            api = _Api(url, (state / "token").read_text().strip())
            _wait_until(lambda: len(api.steps()) == 2)
            asked = _capture(url, state, "--run", "r", "--steps", "50", "--json")
            client = subprocess.Popen(
                [sys.executable, "-m", "stepscope", *asked], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert client.stderr is not None
            line = ""
            while not any(state in line for state in ("accepted", "started")):
                line = client.stderr.readline()
                assert line, "it has ended"
        with client, _agent(tmp_path, place, url.removeprefix("http://")):
            output, errors = client.communicate(timeout=90)
            assert client.returncode == 0, errors
        ranks = json.loads(output)["agents"][0]["ranks"]
        assert steps_in(ranks[0]["path"]) == steps_in(ranks[1]["path"])
        assert len(steps_in(ranks[0]["path"])) == 50
