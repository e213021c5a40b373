"""Every question is answered at once, and no answer can end a process."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.collectors.kineto_daemon import server as server_module
from stepscope.collectors.kineto_daemon.processes import KinetoProcess
from stepscope.collectors.kineto_daemon.server import KinetoServer
from stepscope.core.errors import UsageError
from tests.collectors.kineto_daemon.conftest import PATIENT_SECONDS
from tests.collectors.kineto_daemon.libkineto import Libkineto


def nothing(_: KinetoProcess) -> str:
    return ""


@contextmanager
def client_of(server: KinetoServer, folder: Path | None, job_id: int = 0) -> Iterator[Libkineto]:
    client = Libkineto(server.address, folder, job_id=job_id)
    try:
        yield client
    finally:
        client.close()


def test_a_process_is_known_by_the_kernels_word_and_gets_its_text(socket_folder: Path) -> None:
    with (
        KinetoServer(
            lambda process: f"A={process.num_polls}\n" if process.accepts else "", folder=str(socket_folder)
        ) as server,
        client_of(server, socket_folder, job_id=77) as client,
    ):
        client.pid = 4711  # in its own namespace
        client.obeys = False
        assert client.ask() == "A=1\n"
        assert client.ask(accepts=False) == ""
        assert client.register() == 1
        (process,) = server.processes()
        assert (process.peer.pid, process.peer.uid, process.pid) == (os.getpid(), os.getuid(), 4711)
        assert (process.job_id, process.num_polls, process.accepts) == (77, 2, False)
        assert os.stat(str(server.address)).st_mode & 0o777 == 0o666
    assert not (socket_folder / "dynolog").exists()


def test_bytes_that_are_no_question_are_counted_and_answered_by_nothing(socket_folder: Path) -> None:
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        for content in (b"x", b"\xff" * 4000, struct.pack("<Q32s", 8, b"req") + b"\0" * 8):
            client._socket.sendto(content, server.address)
        assert client.ask() == ""  # the next question's answer is the first
        assert server.num_rejected == 3


def test_files_that_are_sent_along_are_not_taken(socket_folder: Path) -> None:
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        before = len(os.listdir("/proc/self/fd"))
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))]
        for _ in range(20):
            client._socket.sendmsg([b"x"], files, 0, server.address)
        client.ask()
        assert len(os.listdir("/proc/self/fd")) == before
        assert server.num_rejected == 20


def test_a_flood_is_read_slowly(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MAX_PER_SECOND", 20)
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        begin = time.monotonic()
        for _ in range(50):
            client._socket.sendto(b"x", server.address)
        while server.num_rejected < 50:
            assert time.monotonic() < begin + 60
            time.sleep(0.02)
        assert time.monotonic() - begin > 1.9


def test_a_fault_costs_one_answer(socket_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def take(process: KinetoProcess) -> str:
        if process.num_polls == 1:
            raise RuntimeError("a fault")
        return ""

    with KinetoServer(take, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        client._socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.ask()
        client._socket.settimeout(20)
        assert client.ask() == ""
    assert "a PyTorch process got no answer" in caplog.text


def test_a_process_that_names_the_folder_otherwise_is_not_answered_as_that_would_end_it(
    socket_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = socket_folder / "seen-from-a-container"
    other.symlink_to(socket_folder)
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, other) as client:
        client._socket.settimeout(0.3)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                client.ask()
        assert server.foreign_folders() == (str(other),)
        assert server.processes() == ()
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"KINETO_IPC_SOCKET_DIR={other}" in line


def test_a_question_that_waited_too_long_gets_no_answer_to_be_taken_for_the_next_ones(socket_folder: Path) -> None:
    stopped, going_on = threading.Event(), threading.Event()

    def take(process: KinetoProcess) -> str:
        if process.num_polls == 1:  # the server is kept off its core, as in a machine that was suspended
            stopped.set()
            going_on.wait(20)
        return f"A={process.num_polls}\n"

    with KinetoServer(take, folder=str(socket_folder)) as server, client_of(server, socket_folder) as first:
        first.obeys = False
        first_ask = threading.Thread(target=first.ask, daemon=True)
        first._socket.settimeout(30)
        first_ask.start()
        stopped.wait(20)
        with client_of(server, socket_folder) as client:
            client._socket.settimeout(1.2 * PATIENT_SECONDS)
            client.obeys = False
            with pytest.raises(TimeoutError):
                client.ask()
            going_on.set()
            first_ask.join()
            client._socket.settimeout(20)
            assert client.ask() == "A=2\n"


def test_another_daemon_at_the_address_is_one_clear_line(socket_folder: Path) -> None:
    with KinetoServer(nothing, folder=str(socket_folder)):
        with pytest.raises(UsageError, match="another daemon answers PyTorch processes there"):
            KinetoServer(nothing, folder=str(socket_folder)).__enter__()
        assert (socket_folder / "dynolog").exists()
    with pytest.raises(UsageError, match="no socket there"):
        KinetoServer(nothing, folder=str(socket_folder / "missing" / "too")).__enter__()
    with KinetoServer(nothing, folder=str(socket_folder / "missing")):
        assert (socket_folder / "missing").stat().st_mode & 0o7777 == 0o1777


def test_what_a_daemon_left_that_ended_badly_is_in_nobodys_way(socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(socket_folder / "dynolog"))
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        assert client.ask() == ""


def test_a_process_that_has_ended_is_in_nobodys_way(socket_folder: Path) -> None:
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as other:
        with client_of(server, socket_folder) as client:
            client._socket.sendto(struct.pack("<Q32siiqi", 20, b"req", 3, 1, 0, 1), server.address)
        assert other.ask() == ""


def test_answers_come_well_within_what_a_process_waits(socket_folder: Path) -> None:
    with KinetoServer(nothing, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        took = []
        for _ in range(200):
            begin = time.perf_counter()
            client.ask()
            took.append(time.perf_counter() - begin)
    assert sorted(took)[10] < 0.02


def test_what_is_no_socket_is_left_alone(socket_folder: Path) -> None:
    somebodys = socket_folder / "dynolog"
    somebodys.write_text("precious")
    with pytest.raises(UsageError, match="something else is there"):
        KinetoServer(nothing, folder=str(socket_folder)).__enter__()
    assert somebodys.read_text() == "precious"


def test_a_link_in_the_place_of_the_socket_opens_nobodys_file(socket_folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(0o600)
    (socket_folder / "link").symlink_to(secret)
    server_module._let_all_write(str(socket_folder / "link"))
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_question_that_cannot_be_answered_costs_the_next_ones_nothing(
    socket_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def take(process: KinetoProcess) -> str:
        if process.num_polls <= 2:
            raise ValueError("nobody foresaw it")
        return "A=1\n"

    with KinetoServer(take, folder=str(socket_folder)) as server, client_of(server, socket_folder) as client:
        client.obeys = False
        client._socket.settimeout(0.3)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                client.ask()
        client._socket.settimeout(20)
        assert client.ask() == "A=1\n"
    (record,) = caplog.records
    assert record.getMessage() == "a PyTorch process got no answer"
