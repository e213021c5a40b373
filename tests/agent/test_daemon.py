"""The agent as a process: a log that takes nothing, and whatever hangs, stop neither its work nor its end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

_PATIENCE = 40.0
_QUICK_END_SECONDS = 12.0
"""Ten, and some for a slow machine."""


def _python(code: str, **pipes: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload,no-any-return]


def test_lines_of_the_process_and_of_its_children_are_written_in_order() -> None:
    code = """
import subprocess, sys
from stepscope.agent.daemon import LogQueue
with LogQueue() as log:
    print("first", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo second >&2; printf third >&2"])
    assert log.num_dropped == 0
print("fourth", file=sys.stderr)
"""
    with _python(code, stderr=subprocess.PIPE) as process:
        assert process.communicate(timeout=_PATIENCE)[1] == b"first\nsecond\nthird\nfourth\n"
        assert process.returncode == 0


def test_lines_that_a_pipe_does_not_take_are_dropped_and_counted() -> None:
    code = """
import sys
from stepscope.agent.daemon import LogQueue
with LogQueue() as log:
    for number in range(20_000):
        print(f"line {number:06}", "x" * 80, file=sys.stderr, flush=True)
    print(log.num_dropped, flush=True)
    sys.stdin.readline()
"""
    with _python(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        dropped = int(process.stdout.readline())  # all lines are taken while nobody reads
        assert 10_000 < dropped < 20_000
        _, written = process.communicate(b"\n", timeout=_PATIENCE)
    lines = written.decode().splitlines()
    assert [line[:11] for line in lines[:1000]] == [f"line {number:06}" for number in range(1000)]
    (note,) = [line for line in lines if line.startswith("stepscope agent: ")]
    told = int(re.findall(r"([\d,]+) lines dropped", note)[0].replace(",", ""))
    assert told == 20_000 - (len(lines) - 1)


def test_a_full_disk_costs_the_line_only() -> None:
    code = """
import sys, time
from stepscope.agent.daemon import LogQueue
with LogQueue() as log:
    print("lost", file=sys.stderr, flush=True)
    while not log.num_dropped: time.sleep(0.01)
    assert log.num_dropped == 1
"""
    with open("/dev/full", "wb") as full, _python(code, stderr=full) as process:
        assert process.wait(_PATIENCE) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_main_thread_that_hangs_ends_in_time(number: signal.Signals, code: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = f"""
import signal, sys
from stepscope.agent.daemon import ends_in_time
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
with ends_in_time(0.5):
    print("hangs", flush=True)
    open({str(tmp_path / "fifo")!r})
"""
    with _python(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(_PATIENCE) == code
        assert process.stderr is not None
        assert b"hangs" in process.stderr.read()


@contextmanager
def _agent(
    machine: FakeNvml, folder: Path, stderr: int, *arguments: str, **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The agent as a process, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", f"127.0.0.1:{port}", "--socket", ""]
    environment = machine.environment() | {
        "STEPSCOPE_AGENT__STATE__DIRECTORY": str(folder / "state"),
        "STEPSCOPE_AGENT__KINETO__ENABLED": "false",
        **settings,
    }
    with subprocess.Popen([*command, *arguments], stderr=stderr, env=environment) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _page(url: str) -> str:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
    return ""


def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def _value(page: str, series: str) -> float | None:
    line = next((line for line in page.splitlines() if line.startswith(series)), "")
    return float(line.rpartition(" ")[2]) if line else None


def _ends(process: subprocess.Popen[bytes]) -> None:
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(_PATIENCE) == 0
    assert time.monotonic() - begin < _QUICK_END_SECONDS


@contextmanager
def _unread_pipe() -> Iterator[int]:
    """The writing end of a full pipe that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(writer)
        os.close(reader)


def test_health_goes_on_while_nobody_reads_the_log(machine: FakeNvml, tmp_path: Path) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    chatter = {"FAKE_NVML_CHATTERS": "1"}  # the driver's library in each reader process prints, too
    with _unread_pipe() as stderr, _agent(machine, tmp_path, stderr, **chatter) as (process, url):
        _until(lambda: bool(_page(f"{url}/readyz")), "not ready")
        machine.set(0, xids=1, xid__0=48)
        machine.write()
        _until(lambda: 'code="xid_48"' in _page(f"{url}/metrics"), "the XID is no event")
        machine.set(0, lost=1)
        machine.write()
        _until(lambda: 'code="gpu_lost"' in _page(f"{url}/metrics"), "the lost GPU is no event")
        for _ in range(50):
            process.send_signal(signal.SIGHUP)  # each is logged
            time.sleep(0.02)
        page = _page(f"{url}/metrics")
        assert _value(page, 'stepscope_agent_collector_up{collector="health"') == 1.0
        sources = {one["name"]: one for one in json.loads(_page(f"{url}/api/v1/node"))["sources"]}
        assert sources["health"]["age_seconds"] < 10.0
        assert _value(page, "stepscope_agent_log_lines_dropped_total") == 0.0  # they still wait
        _ends(process)


def test_it_ends_although_its_readers_are_stopped_and_clients_do_not_read(machine: FakeNvml, tmp_path: Path) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    with _agent(machine, tmp_path, subprocess.DEVNULL) as (process, url):
        _until(lambda: bool(_page(f"{url}/readyz")), "not ready")
        host, port = url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(8)]
        for client in clients[:4]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        reached = [int(child) for child in children] or _children_of(process.pid)
        assert reached
        for child in reached:
            os.kill(child, signal.SIGSTOP)
        try:
            _ends(process)
        finally:
            for child in reached:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            for client in clients:
                client.close()


def _children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def test_it_ends_although_the_driver_hangs(machine: FakeNvml, tmp_path: Path) -> None:
    machine.add(profiles.h100(0))
    machine.values["hang"] = "any"
    machine.write()
    with _agent(machine, tmp_path, subprocess.DEVNULL) as (process, url):
        _until(lambda: bool(_page(f"{url}/healthz")), "it does not listen")
        time.sleep(1.0)
        _ends(process)


@pytest.mark.parametrize("setting", ["STEPSCOPE_AGENT__WEB__TOKEN_FILE", "STEPSCOPE_AGENT__WEB__CONFIG_FILE"])
def test_a_file_that_is_a_pipe_is_an_error_and_not_waited_for(setting: str, machine: FakeNvml, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    settings = {setting: str(tmp_path / "pipe")}
    with _agent(machine, tmp_path, subprocess.PIPE, **settings) as (process, _):
        assert process.wait(_PATIENCE) == 2
        assert process.stderr is not None
        assert b"is not a file" in process.stderr.read()


def test_pipes_in_its_state_directory_do_not_keep_it_from_starting(machine: FakeNvml, tmp_path: Path) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    (tmp_path / "state").mkdir()
    for name in ("captures.json", "token", "health.jsonl"):
        os.mkfifo(tmp_path / "state" / name, 0o600)
    with _agent(machine, tmp_path, subprocess.DEVNULL) as (process, url):
        _until(lambda: bool(_page(f"{url}/readyz")), "not ready")
        _ends(process)
