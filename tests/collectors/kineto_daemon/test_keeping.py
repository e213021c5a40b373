"""Does a trace that cannot be kept say where, and what helps?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from stepscope.collectors.kineto_daemon import keeping
from stepscope.collectors.kineto_daemon.recording import said
from stepscope.collectors.kineto_daemon.registry import Peer

_OWNER = Peer(1, os.getuid(), os.getgid())
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
        keeping.compress(source, partial, _OWNER, max_bytes=None)
    assert not partial.exists()
    return said(failed.value)


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
        keeping.next_capture(tmp_path / "run")
    assert said(failed.value) == f"{tmp_path}/run/traces: {_MORE_ROOM}"
