"""Socket file: owned by one agent, and the file of a killed agent blocks no other."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from stepscope.agent.training_link.connection import SocketFile
from stepscope.core.errors import UsageError


def test_everybody_may_connect_and_nothing_is_left(place: Path) -> None:
    with SocketFile(str(place)):
        assert place.stat().st_mode & 0o777 == 0o666
    assert not place.exists()
    with SocketFile(str(place), mode=0o660):
        assert place.stat().st_mode & 0o777 == 0o660


def test_others_reach_it_whatever_the_umask(place: Path) -> None:
    before = os.umask(0o077)
    try:
        with SocketFile(str(place.parent / "new" / "agent.sock")) as file:
            assert (place.parent / "new").stat().st_mode & 0o777 == 0o755
            assert Path(file.path).stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def test_a_second_agent_is_refused_in_one_line_and_the_first_goes_on(place: Path) -> None:
    with SocketFile(str(place)):
        with pytest.raises(UsageError, match=r"another agent listens at this socket; stop it") as raised:
            SocketFile(str(place)).__enter__()
        assert "\n" not in str(raised.value)
        with socket.socket(socket.AF_UNIX) as process:
            process.connect(str(place))


def test_the_file_of_an_agent_that_was_killed_is_replaced(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place))
        killed.listen()
    with SocketFile(str(place)), socket.socket(socket.AF_UNIX) as process:
        process.connect(str(place))


def test_what_is_somebody_elses_is_left_alone(place: Path) -> None:
    place.write_text("mine")
    with pytest.raises(UsageError, match="exists and is not a socket"):
        SocketFile(str(place)).__enter__()
    assert place.read_text() == "mine"
    place.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        with pytest.raises(UsageError, match="another agent"):
            SocketFile(str(place)).__enter__()


def test_an_abstract_socket_has_no_file() -> None:
    name = f"@stepscope-{os.getpid()}"
    with SocketFile(name):
        with pytest.raises(UsageError, match="another agent"):
            SocketFile(name).__enter__()
        assert not Path(name).exists()
    with SocketFile(name):
        pass


def test_a_folder_that_cannot_be_had_is_an_os_error(place: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SocketFile(str(place.parent / "no" / "where" / "agent.sock")).__enter__()
    with pytest.raises(OSError, match="too long"):
        SocketFile(str(place.parent / "new" / ("x" * 120))).__enter__()
    assert list(place.parent.iterdir()) == []
    longest = f"{place.parent}/".ljust(107, "x")
    with SocketFile(longest):
        assert Path(longest).is_socket()
