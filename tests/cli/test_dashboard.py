"""`stepscope dashboard`: starts, prints its address, and rejects unsafe settings."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.dashboard.live_server import get
from tests.interrupts import default_interrupt
from tests.workflow.history.sinks import PageServer, answer


def run(*arguments: str) -> int:
    """The exit code of `stepscope dashboard ...`."""
    with pytest.raises(SystemExit) as stopped:
        main(["dashboard", *arguments])
    code = stopped.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "127.evil.example"])
def test_an_address_others_can_reach_is_refused(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--runs", str(tmp_path), "--host", host) == 2

    message = capsys.readouterr().err
    assert "--insecure" in message
    assert message.count("\n") == 1


def test_a_missing_directory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--runs", str(tmp_path / "nowhere")) == 3
    assert "--runs" in capsys.readouterr().err


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert run("--runs", str(tmp_path), "--port", str(port)) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_it_serves_until_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepscope", "dashboard", "--runs", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = next(word for word in line.split() if word.startswith("http://"))
        try:
            assert get(f"{url}/healthz").body == b"ok\n"
        finally:
            process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=20) == 130
        assert "Traceback" not in rest


def test_it_records_agents_meanwhile(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    store = tmp_path / "history"
    with PageServer(answer(b"a 1\n")) as server:
        command = [sys.executable, "-m", "stepscope", "dashboard", "--runs", str(tmp_path), "--port", "0"]
        command += ["--history", str(store), "--agent", server.address, "--interval", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while "http://" not in (line := process.stderr.readline()):
                assert line
            url = next(word for word in line.split() if word.startswith("http://"))
            end = time.monotonic() + 30
            while b'stepscope_history_targets{state="up"} 1\n' not in (page := get(f"{url}/metrics").body):
                assert time.monotonic() < end
                time.sleep(0.1)
            assert b"stepscope_dashboard_store_up 1\n" in page
            process.terminate()
            lines = process.stderr.read()
            assert process.wait(timeout=20) == 0, lines
    question = [sys.executable, "-m", "stepscope", "history", "query", "a", "--by", "node", "--history", str(store)]
    asked = subprocess.run([*question, "--json"], capture_output=True, text=True, check=True)
    (group,) = json.loads(asked.stdout)["groups"]
    assert (group["labels"], group["last"]) == ({"instance": server.address}, 1.0)
