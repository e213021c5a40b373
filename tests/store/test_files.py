"""Files that cannot be written are detected before the work that produces them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.store.files import check_writable, open_regular, read_text, read_whole, write_whole


def test_a_look_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    check_writable(tmp_path / "a.json")
    check_writable(tmp_path / "b.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "before"


def test_what_cannot_be_written_is_told_alike_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.json"
    told = f"{path}: cannot be written (No such file or directory); check the path"
    with pytest.raises(DataError) as before:
        check_writable(path)
    with pytest.raises(DataError) as after:
        write_whole(path, b"1")
    assert str(before.value) == str(after.value) == told


def test_a_full_disk_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _mode: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=r"a\.json: cannot be written \(No space left on device\); free some space"):
        check_writable(tmp_path / "a.json")


def test_a_device_or_pipe_is_written_through_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_whole(pipe, b"told")
        assert os.read(reader, 10) == b"told"
    finally:
        os.close(reader)
    write_whole(Path("/dev/null"), b"nothing")
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_what_the_shell_redirected_keeps_what_stands_in_it(tmp_path: Path, folder: str) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"before, ")
        file.flush()
        check_writable(Path(f"{folder}/{file.fileno()}"))
        write_whole(Path(f"{folder}/{file.fileno()}"), b"told, ")
        file.write(b"after")
    assert log.read_bytes() == b"before, told, after"


def test_a_path_without_a_name_is_refused() -> None:
    with pytest.raises(DataError, match="file name is empty"):
        check_writable(Path(""))


def test_a_pipe_without_an_other_end_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.store.files._OTHER_END_SECONDS", 0.1)
    pipe = tmp_path / "agents.txt"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is a pipe into which nobody has written for 0 s"):
        read_text(pipe)
    with pytest.raises(DataError, match="is a pipe that nobody has read for 0 s"):
        write_whole(pipe, b"a")
    with pytest.raises(DataError, match=r"cannot be read \(is not a regular file\)"):
        read_whole(pipe)
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(tmp_path)


def test_a_pipe_is_read_once_it_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "agents.txt"
    os.mkfifo(pipe)
    later = threading.Timer(0.2, pipe.write_bytes, (b"127.0.0.1:9455\n",))
    later.start()
    assert read_text(pipe) == "127.0.0.1:9455\n"
    later.join()


def test_a_pipe_is_written_once_it_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "analysis.json"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    later = threading.Timer(0.2, reader.start)
    later.start()
    write_whole(pipe, b"{}")
    later.join()
    reader.join()
    assert read == [b"{}"]
