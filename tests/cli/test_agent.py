"""`stepscope agent`: starts on any machine, reports what is missing, and exits cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml


@pytest.fixture
def without_driver(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> dict[str, str]:
    """An environment in which the driver's library finds no driver, whatever this machine has."""
    machine = FakeNvml(build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml"), tmp_path / "nvml.conf")
    machine.values["error"] = "9"  # NVML_ERROR_DRIVER_NOT_LOADED
    machine.write()
    return machine.environment()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_runs_without_any_gpu_until_it_is_told_to_end(
    number: signal.Signals, code: int, without_driver: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=without_driver,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[2]
            line = process.stderr.readline()
            assert line.startswith("stepscope agent: reads 0 GPUs and ")
            assert "nvml (not_installed: " in line
            with urllib.request.urlopen(url, timeout=20) as answer:
                page = answer.read().decode()
            assert 'stepscope_agent_collector_up{collector="nvml",reason="not_installed"} 0.0' in page
            assert "\nstepscope_host_memory_total_bytes " in page
            asked = [sys.executable, "-m", "stepscope", "status", "--agent", url.removesuffix("/metrics")]
            status = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
            assert status.returncode == 4
            assert status.stdout.startswith("1 machine, 0 GPUs: nothing is known of their health\nwarning: ")
            assert "no GPU driver answers (not_installed: " in status.stdout
            process.send_signal(signal.SIGHUP)
            assert process.stderr.readline().startswith("stepscope agent: goes on after SIGHUP; ")
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(timeout=20) == code
            assert rest == ""
        finally:
            process.kill()


@pytest.mark.parametrize("log", ["a full disk", "a pipe without a reader"])
def test_a_log_that_cannot_be_written_ends_nothing(log: str, without_driver: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # where captures would be kept: a warning, too
    without_driver["STEPSCOPE_AGENT__STATE__DIRECTORY"] = str(tmp_path / "file" / "state")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", f"127.0.0.1:{port}", "--socket", ""]
    reader, writer = os.pipe()
    os.close(reader)
    with (
        os.fdopen(writer, "wb") as pipe,
        open("/dev/full", "wb") as full,
        subprocess.Popen(command, stderr=full if log == "a full disk" else pipe, env=without_driver) as process,
    ):
        try:
            end = time.monotonic() + 30
            while True:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20):
                    break
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert process.poll() is None
            process.terminate()
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_a_public_address_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["agent", "run", "--listen", "0.0.0.0:0"])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "--insecure" in line


def test_the_check_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["agent", "check"])
    assert not ended.value.code
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["source", "state", "values"]
    assert any(line.startswith("host ") and " up " in line for line in table)
    assert any(line.startswith("this machine: ") for line in table)
    with pytest.raises(SystemExit):
        main(["agent", "check", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["warnings"]) == ("stepscope.agent-check/1", [])
    assert {source["name"] for source in document["sources"]} >= {"nvml", "kernel_log", "host", "infiniband"}
    machine = next(one for one in document["capabilities"] if not one["labels"])
    assert "stepscope_host_cpus" in machine["collected"]


def test_an_option_that_makes_no_sense_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--interval", "0"], ["--listen", "nowhere"], ["--dcgm-exporter", "http://"]):
        with pytest.raises(SystemExit) as ended:
            main(["agent", "run", *arguments])
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
