"""`stepscope dashboard`: starts, prints its address, and rejects unsafe settings."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.dashboard.live_server import get
from tests.interrupts import default_interrupt


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
