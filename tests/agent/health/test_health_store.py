"""The file of health: what was put last is read again, whatever the disk does, and no check waits for it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.agent.health.health_store import (
    HEALTH_FILE,
    HEALTH_STORE_SCHEMA,
    MAX_AGE_NS,
    MAX_KEPT_EVENTS,
    HealthStore,
    StoredHealth,
)

_SECONDS = 20.0


def _put(folder: Path, *numbers: int, **options: Any) -> bool:
    """Open a store, put states with these numbers and an event each; whether the last was kept."""
    with HealthStore(folder, **options) as store:
        store.stored(_SECONDS)
        return [store.wait(store.put({"n": n}, [{"id": n, "ended_ns": n}], is_urgent=True), _SECONDS) for n in numbers][
            -1
        ]


def _stored(folder: Path, **options: Any) -> StoredHealth:
    with HealthStore(folder, **options) as store:
        return store.stored(_SECONDS)


def _line(document: object) -> bytes:
    text = json.dumps(document).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _of_version(number: int) -> bytes:
    return _line({"schema": f"stepscope.health-store/{number}", "state": {"n": 1}, "ended": []})


def test_the_last_state_and_all_ended_events_are_read_again(tmp_path: Path) -> None:
    assert _stored(tmp_path) == StoredHealth()
    assert _put(tmp_path, 1, 2)
    assert _put(tmp_path, 3)
    found = _stored(tmp_path)
    assert found.state == {"n": 3}
    assert [one["id"] for one in found.ended] == [1, 2, 3]
    assert (tmp_path / HEALTH_FILE).stat().st_mode & 0o777 == 0o600


def test_a_line_that_a_kill_cut_short_costs_that_line_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _put(tmp_path, 1, 2)
    file = tmp_path / HEALTH_FILE
    content = file.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content)):
        file.write_bytes(content[:end])
        assert _stored(tmp_path).state == {"n": 1}
    assert not caplog.records


def test_the_file_is_bounded_in_bytes_rows_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: MAX_AGE_NS + 100)
    with HealthStore(tmp_path, rewrite_bytes=20_000) as store:
        sizes = []
        for n in range(600):
            store.wait(store.put({"n": n}, [{"id": n, "ended_ns": n}]), _SECONDS)
            sizes.append((tmp_path / HEALTH_FILE).stat().st_size)
    assert max(sizes) < 20_000 + 2 * MAX_KEPT_EVENTS * 40
    kept = [one["id"] for one in _stored(tmp_path).ended]
    assert kept == list(range(600 - MAX_KEPT_EVENTS, 600))
    with HealthStore(tmp_path) as store:  # the first put of an agent writes the file anew
        store.put({"n": 600}, [{"id": 600, "ended_ns": MAX_AGE_NS + 400}])
    assert [one["id"] for one in _stored(tmp_path).ended] == list(range(345, 601))  # one event ahead removes none
    monkeypatch.setattr(time, "time_ns", lambda: MAX_AGE_NS + 400)
    with HealthStore(tmp_path) as store:
        store.put({"n": 601})
    assert [one["id"] for one in _stored(tmp_path).ended] == list(range(400, 601))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is damaged, or not a store of health; health begins anew; it is now health.damaged"),
        (b"\0" * 5000, "is damaged, or not a store of health; health begins anew; it is now health.damaged"),
        (
            b"SQLite format 3\0\n\n",
            "is damaged, or not a store of health; health begins anew; it is now health.damaged",
        ),
        (_line({"schema": "other/1"}), "is damaged, or not a store of health; health begins anew; it is now "),
        (_line([1]), "is damaged, or not a store of health; health begins anew; it is now health.damaged"),
        (_line({"schema": HEALTH_STORE_SCHEMA, "state": [], "ended": []}), "is damaged, or not a store of health; "),
        (_line({"schema": HEALTH_STORE_SCHEMA, "state": {}, "ended": [3]}), "is damaged, or not a store of health; "),
        (b"[" * 100_000 + b"\n", "is damaged, or not a store of health; health begins anew; it is now health.damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line_and_a_fresh_start(
    content: bytes, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HEALTH_FILE).write_bytes(content)
    assert _stored(tmp_path) == StoredHealth()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path / HEALTH_FILE} {line}")
    assert (tmp_path / "health.damaged").read_bytes() == content
    assert _put(tmp_path, 1)
    assert _stored(tmp_path).state == {"n": 1}


def test_the_file_of_a_newer_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / HEALTH_FILE
    file.write_bytes(_of_version(1) + _of_version(2))
    assert not _put(tmp_path, 1)
    assert file.read_bytes() == _of_version(1) + _of_version(2)
    (record,) = caplog.records
    assert record.getMessage() == f"{file} is of another version of stepscope; health begins anew and is not kept"


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)], ids=["folder", "pipe", "link"]
)
def test_what_is_no_file_ends_nothing(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / HEALTH_FILE)
    assert _stored(tmp_path) == StoredHealth()
    assert len(caplog.records) == 1


@given(st.integers(0, 10_000), st.integers(0, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_leaves_a_whole_state_or_none(tmp_path: Path, place: int, value: int) -> None:
    file = tmp_path / HEALTH_FILE
    file.unlink(missing_ok=True)
    _put(tmp_path, 1, 2, 3)
    content = bytearray(file.read_bytes())
    content[place % len(content)] = value
    file.write_bytes(content)
    assert _stored(tmp_path).state in ({"n": 1}, {"n": 2}, {"n": 3}, None)


def test_a_damaged_line_is_said_and_the_last_whole_one_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _put(tmp_path, 1, 2, 3)
    file = tmp_path / HEALTH_FILE
    content = bytearray(file.read_bytes())
    content[content.index(b'"n":2')] ^= 1
    file.write_bytes(content)
    assert _stored(tmp_path).state == {"n": 3}
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: 1 line is damaged; the last whole one is used"
    ]


def test_a_full_disk_is_one_line_and_the_next_room_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stepscope.agent.health.health_store._RETRY_SECONDS", 0.0)
    room, write = [10**6], os.write

    def limited(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name != "stepscope-health-store":
            return write(descriptor, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    with HealthStore(tmp_path) as store:
        assert store.wait(store.put({"n": 1}, [{"id": 1}]), _SECONDS)
        room[0] = 25  # a part of a line still fits
        for n in (2, 3):
            assert not store.wait(store.put({"n": n}, [{"id": n}]), _SECONDS)
            assert _stored(tmp_path, may_write=lambda: False).state == {"n": 1}
        room[0] = 10**6
        assert store.wait(store.put({"n": 4}, [{"id": 4}]), _SECONDS)
    assert [one["id"] for one in _stored(tmp_path).ended] == [1, 2, 3, 4]
    lines = [record.getMessage() for record in caplog.records]
    file = tmp_path / HEALTH_FILE
    assert lines == [f"health is not kept: {file}: No space left on device", f"health is kept again: {file}"]


def test_a_disk_that_hangs_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, write = threading.Event(), os.write

    def slow(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name == "stepscope-health-store":
            answers.wait(_SECONDS)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    with HealthStore(tmp_path) as store:
        store.stored(_SECONDS)
        began = time.monotonic()
        assert not store.wait(store.put({"n": 0}, [{"id": 0}]), 0.2)
        for n in range(1, 1000):
            assert not store.wait(store.put({"n": n}, [{"id": n}]), 10.0)
        assert time.monotonic() - began < 5.0
        answers.set()
        store.put({"n": 1000}, [{"id": 1000}])
        while not store.wait(store.put({"n": 1000}), _SECONDS):
            assert time.monotonic() - began < _SECONDS
            time.sleep(0.01)
    found = _stored(tmp_path)
    assert found.state == {"n": 1000}
    assert [one["id"] for one in found.ended][-1] == 1000
    assert len(found.ended) <= MAX_KEPT_EVENTS


def test_a_file_that_cannot_be_read_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def slow(_: Path) -> StoredHealth:
        answers.wait(_SECONDS)
        return StoredHealth({"n": 1})

    monkeypatch.setattr("stepscope.agent.health.health_store._read", slow)
    with HealthStore(tmp_path) as store:
        assert store.stored(0.1) == StoredHealth()
        answers.set()
        assert not store.wait(store.put({"n": 2}), _SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        f"health is not kept: {tmp_path / HEALTH_FILE} does not answer"
    ]
    assert not (tmp_path / HEALTH_FILE).exists()


def test_without_the_lock_it_only_reads(tmp_path: Path) -> None:
    _put(tmp_path, 1)
    before = (tmp_path / HEALTH_FILE).read_bytes()
    assert not _put(tmp_path, 2, may_write=lambda: False)
    assert (tmp_path / HEALTH_FILE).read_bytes() == before
    assert _stored(tmp_path, may_write=lambda: False).state == {"n": 1}


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    for _ in range(20):
        with HealthStore(tmp_path) as store:
            for n in range(30):
                store.put({"n": n})
        assert _stored(tmp_path).state == {"n": 29}
