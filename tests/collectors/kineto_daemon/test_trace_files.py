"""Nobody but the process writes a trace, and nothing but its plain file is read."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pytest

from stepscope.collectors.kineto_daemon import trace_files
from stepscope.collectors.kineto_daemon import trace_files as module
from stepscope.collectors.kineto_daemon.processes import KinetoPeer, KinetoProcess
from stepscope.collectors.kineto_daemon.trace_files import TraceStaging, error_line

PEER = KinetoPeer(os.getpid(), os.getuid(), os.getgid())
OURS = KinetoProcess("/s/a", PEER, PEER.pid, (), None, 0.0, 1, True)


def test_a_folder_of_its_own_is_made_and_removed_with_what_is_in_it(tmp_path: Path) -> None:
    staging = TraceStaging(OURS, str(tmp_path))
    folder = Path(staging.path)
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    trace = staging.path / "attempt1_7.json"
    assert not staging.has(trace)
    Path(trace).write_text("{}")
    assert staging.has(trace)
    file = staging.open(trace)
    assert os.read(file, 10) == b"{}"
    os.close(file)
    staging.remove()
    assert list(tmp_path.iterdir()) == []
    staging.remove()  # again is nothing new
    assert not staging.has(trace)


def test_what_killed_agents_left_is_removed_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEFAULT_FOLDER", str(tmp_path))
    old, young = Path(TraceStaging(OURS, None).path), Path(TraceStaging(OURS, None).path)
    foreign, link = tmp_path / "of-somebody-else", tmp_path / "stepscope-kineto-link"
    foreign.mkdir()
    link.symlink_to(foreign)
    for folder in (old, young, foreign):
        (folder / "trace.json").write_text("{}")
    now_ns = time.time_ns()
    long_ago = (now_ns - 3_601_000_000_000, now_ns - 3_601_000_000_000)
    for folder in (old, foreign, link):
        os.utime(folder, ns=long_ago, follow_symlinks=False)
    module.remove_left_behind_staging(now_ns)
    assert {path.name for path in tmp_path.iterdir()} == {young.name, foreign.name, link.name}
    assert (foreign / "trace.json").exists()


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_plain_file_of_the_user_is_not_read(tmp_path: Path, kind: str) -> None:
    staging = TraceStaging(OURS, str(tmp_path))
    trace = Path(staging.path / "attempt1_7.json")
    secret = tmp_path / "secret"
    secret.write_text("{}")
    if kind == "link":
        trace.symlink_to(secret)
    elif kind == "hard link":
        trace.hardlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(trace)
    else:
        trace.mkdir()
    with pytest.raises(OSError, match=r"regular file|symbolic links"):
        staging.open(PurePosixPath(trace))
    assert kind == "hard link" or not staging.has(PurePosixPath(trace))


def test_another_users_file_is_not_read(tmp_path: Path) -> None:
    staging = TraceStaging(OURS, str(tmp_path))
    trace = Path(staging.path / "attempt1_7.json")
    trace.write_text("{}")
    staging._peer = KinetoPeer(PEER.pid, PEER.uid + 1, PEER.gid)
    with pytest.raises(PermissionError, match="regular file"):
        staging.open(PurePosixPath(trace))


def test_links_on_the_way_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="directory"):
        TraceStaging(OURS, str(tmp_path / "link"))


@pytest.mark.parametrize("folder", ["relative", "/tmp/../etc"])
def test_a_folder_that_leads_elsewhere_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="KINETO_ONDEMAND_TRACE_DIR"):
        TraceStaging(OURS, folder)


def test_a_process_out_of_reach_is_not_asked_as_its_trace_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = replace(OURS, peer=KinetoPeer(0, 1000, 1000), pid=7)
    with pytest.raises(OSError, match="hostPID"):
        TraceStaging(unseen, None)

    def forbidden(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "readlink", forbidden)
    with pytest.raises(OSError, match="CAP_SYS_PTRACE"):
        TraceStaging(replace(OURS, pid=7), None)


_OWNER = KinetoPeer(1, os.getuid(), os.getgid())
_MORE_ROOM = "No space left on device; free some space there, or set kineto.directory"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "trace.json").write_bytes(os.urandom(1 << 20))
    descriptor = os.open(tmp_path / "trace.json", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def _full(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(source: int, partial: Path) -> str:
    with pytest.raises(OSError, match=r"No space|Is a directory") as failed:
        trace_files.compress_kineto_trace(source, partial, _OWNER, max_bytes=None)
    assert not partial.exists()
    return error_line(failed.value)


def test_a_disk_that_is_full_at_the_end_is_named(source: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _full)
    partial = tmp_path / ".k.0.partial"
    assert _reason(source, partial) == f"{partial}: {_MORE_ROOM}"


def test_a_disk_that_is_full_in_the_middle_is_named(
    source: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_full(*_: object) -> IO[Any]:
        return open("/dev/full", "wb")

    partial = tmp_path / ".k.0.partial"
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(Path, "open", open_full)
    assert _reason(source, partial) == f"{partial}: {_MORE_ROOM}"


def test_what_cannot_be_read_is_no_fault_of_the_disk_where_traces_lie(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    assert _reason(folder, tmp_path / ".k.0.partial") == "the process's trace: Is a directory"
    os.close(folder)


def test_a_full_disk_is_named_where_no_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space") as failed:
        trace_files.make_capture_folder(tmp_path / "run")
    assert error_line(failed.value) == f"{tmp_path}/run/traces: {_MORE_ROOM}"
