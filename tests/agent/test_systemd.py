"""systemd notifications: ready and alive while the agent works, and not otherwise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.agent.service import Systemd


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(20)
        yield made


def _environment(listener: socket.socket, seconds: float = 0.04, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": str(int(seconds * 1e6)), **more}


def test_ready_and_stopping(listener: socket.socket) -> None:
    systemd = Systemd(_environment(listener))
    systemd.ready("reads 8 GPUs")
    assert listener.recv(100) == b"READY=1\nSTATUS=reads 8 GPUs"
    systemd.stopping()
    assert listener.recv(100) == b"STOPPING=1"


def test_an_abstract_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{tmp_path}")
        Systemd({"NOTIFY_SOCKET": f"@{tmp_path}"}).stopping()
        assert made.recv(100) == b"STOPPING=1"


def test_the_watchdog_is_fed_while_all_goes_on_and_not_when_one_stands_still(listener: socket.socket) -> None:
    stop, counts, asked = threading.Event(), [0, 0], threading.Event()

    def progress() -> tuple[int, int]:
        counts[0] += 1
        counts[1] += counts[1] < 3  # then it stands still
        if counts[0] == 10:
            asked.set()
        return counts[0], counts[1]

    watching = threading.Thread(target=Systemd(_environment(listener)).watch, args=(progress, stop))
    watching.start()
    assert asked.wait(20)
    stop.set()
    watching.join()
    assert [listener.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(100)


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"WATCHDOG_USEC": "x"}])
def test_without_a_manager_it_only_waits(environment: dict[str, str]) -> None:
    systemd = Systemd(environment)
    systemd.ready("x")
    stop = threading.Event()
    stop.set()
    systemd.watch(lambda: (), stop)
    systemd.stopping()


def test_another_process_s_watchdog_is_not_fed(listener: socket.socket) -> None:
    systemd, stop = Systemd(_environment(listener, WATCHDOG_PID="1")), threading.Event()
    stop.set()
    systemd.watch(lambda: (), stop)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(100)
