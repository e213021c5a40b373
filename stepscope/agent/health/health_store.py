"""File that keeps health over a restart of the agent: a journal of whole states, written by a thread of its own.

Each line is a checksum and a JSON document with its schema: the state as of then, and the events that ended since the
line before. The last whole line counts, so that a kill at any moment costs at most the line that was being written. The
file is written anew once it is large. A disk that is slow, full or read-only delays no health check: the newest state
waits in memory, and replaces the one that waited before it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.text.numbers import counted

_log = logging.getLogger(__name__)

HEALTH_FILE = "health.jsonl"
_SCHEMA_NAME, _SCHEMA_NUMBER = "stepscope.health-store", 1
HEALTH_STORE_SCHEMA = f"{_SCHEMA_NAME}/{_SCHEMA_NUMBER}"
MAX_KEPT_EVENTS = 256
"""Number of ended events in the file."""
MAX_AGE_NS = 30 * 86400 * 10**9
"""Age from which an ended event is left out when the file is written anew."""
_REWRITE_BYTES = 1 << 20
_MAX_BYTES = 16 << 20
"""A larger file is not ours."""
_RETRY_SECONDS = 60.0
_CLOSE_SECONDS = 3.0

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredHealth:
    """What the file of an earlier agent holds.

    Attributes:
        state: the last one; None: there is none.
        ended: events that are over, the oldest first.
    """

    state: Document | None = None
    ended: tuple[Document, ...] = ()


class _ForeignFileError(Exception):
    """The file is not a health store of this version; it must not be overwritten if `is_newer`."""

    def __init__(self, what: str, *, is_newer: bool = False) -> None:
        self.is_newer = is_newer
        super().__init__(what)


@dataclass(slots=True)
class _Waiting:
    """What is to be written next."""

    state: Document
    ended: list[Document]
    is_urgent: bool


class HealthStore:
    """Journal of health states in the agent's state directory. A context manager: the thread runs while it is open.

    Args:
        directory: the state directory, which another agent does not use.
        may_write: asked once it is opened; False only reads: another agent may use the directory.
        rewrite_bytes: size from which the file is written anew.

    Attributes:
        is_kept: whether the last state that was put is in the file; None: none was put yet.
    """

    def __init__(
        self,
        directory: Path,
        *,
        may_write: Callable[[], bool] = lambda: True,
        rewrite_bytes: int = _REWRITE_BYTES,
    ) -> None:
        self._file = directory / HEALTH_FILE
        self._may_write = may_write
        self._is_writable = False
        self._rewrite_bytes = rewrite_bytes
        self._changed = threading.Condition()
        self._stored: StoredHealth | None = None
        self._waiting: _Waiting | None = None
        self._num_put = self._num_done = 0
        self._num_late = 0
        self._is_closing = False
        self.is_kept: bool | None = None
        # of the writer's thread
        self._descriptor = -1
        self._size = 0
        self._ended: deque[Document] = deque(maxlen=MAX_KEPT_EVENTS)
        self._needs_rewrite = True
        self._retry_at = 0.0
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="stepscope-health-store", daemon=True)

    def __enter__(self) -> HealthStore:
        self._is_writable = self._may_write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits; a disk that does not answer is not waited for any longer."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def stored(self, seconds: float) -> StoredHealth:
        """What an earlier agent left; nothing where the file cannot be read within some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._stored is not None, seconds)
            if self._stored is None:
                self._is_writable = False
                _log.warning("health is not kept: %s does not answer", self._file)
                return StoredHealth()
            return self._stored

    def put(self, state: Document, ended: Iterable[Document] = (), *, is_urgent: bool = False) -> int:
        """Have a state written; its number. Never waits.

        Args:
            ended: events that ended since the last state.
            is_urgent: it shall also outlive a power failure.
        """
        with self._changed:
            before = self._waiting
            kept = [*(before.ended if before else ()), *ended][-MAX_KEPT_EVENTS:]
            self._waiting = _Waiting(state, kept, is_urgent or (before is not None and before.is_urgent))
            self._num_put += 1
            self._changed.notify_all()
            return self._num_put

    def wait(self, number: int, seconds: float) -> bool:
        """Wait until the state of this number is in the file; whether it is. Where a state was waited for in vain, none
        is waited for until the disk answers again.
        """
        with self._changed:
            if self._num_late > self._num_done:
                return False
            if not self._changed.wait_for(lambda: self._num_done >= number, seconds):
                self._num_late, self.is_kept = number, False
                return False
            return self.is_kept is True

    def _run(self) -> None:
        stored = self._loaded()
        with self._changed:
            self._stored = stored
            self._changed.notify_all()
        while (taken := self._take()) is not None:
            waiting, number, is_last = taken
            is_kept = self._write(waiting, is_last=is_last)
            with self._changed:
                self._num_done, self.is_kept = number, is_kept
                self._changed.notify_all()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _take(self) -> tuple[_Waiting, int, bool] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._is_closing)
            waiting, self._waiting = self._waiting, None
            return None if waiting is None else (waiting, self._num_put, self._is_closing)

    def _loaded(self) -> StoredHealth:
        try:
            stored = _read(self._file)
        except FileNotFoundError:
            return StoredHealth()
        except _ForeignFileError as error:
            self._set_aside(error)
            return StoredHealth()
        except OSError as error:
            self._is_writable = False
            _log.warning("health is not kept: %s: %s", self._file, error.strerror or error)
            return StoredHealth()
        self._ended.extend(stored.ended)
        return stored

    def _set_aside(self, error: _ForeignFileError) -> None:
        """Make room for a new file; the one of a newer version stays, and nothing is kept."""
        aside = self._file.with_suffix(".damaged")
        what_next = f"health begins anew; it is now {aside.name}"
        if error.is_newer or not self._is_writable:
            self._is_writable, what_next = False, "health begins anew and is not kept"
        else:
            try:
                os.replace(self._file, aside)
            except OSError:
                self._is_writable, what_next = False, "health begins anew and is not kept"
        _log.warning("%s %s; %s", self._file, error, what_next)

    def _write(self, waiting: _Waiting, *, is_last: bool) -> bool:
        self._ended.extend(waiting.ended)
        if not self._is_writable or (time.monotonic() < self._retry_at and not is_last):
            return False
        try:
            if self._needs_rewrite or self._size > self._rewrite_bytes:
                self._rewrite(waiting.state)
            else:
                self._append(_line(waiting.state, waiting.ended))
            if waiting.is_urgent:
                os.fdatasync(self._descriptor)
        except OSError as error:
            self._needs_rewrite, self._retry_at = True, time.monotonic() + _RETRY_SECONDS
            if not self._has_warned:
                _log.warning("health is not kept: %s: %s", self._file, error.strerror or error)
            self._has_warned = True
            return False
        if self._has_warned:
            _log.warning("health is kept again: %s", self._file)
        self._has_warned = False
        return True

    def _rewrite(self, state: Document) -> None:
        """Replace the file by one with the last state alone: under its name it is always whole."""
        times = [int(one.get("ended_ns") or 0) for one in self._ended]
        oldest_ns = min(time.time_ns(), max(times, default=0)) - MAX_AGE_NS  # a clock that is ahead removes nothing
        ended = [one for one, ended_ns in zip(self._ended, times, strict=True) if ended_ns >= oldest_ns]
        partial = self._file.with_suffix(".partial")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor, self._size = os.open(partial, flags, 0o600), 0
        self._append(_line(state, ended))
        os.fdatasync(self._descriptor)
        os.replace(partial, self._file)
        self._needs_rewrite = False

    def _append(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.write(self._descriptor, data[written:])
        self._size += len(data)


def _line(state: Document, ended: Sequence[Document]) -> bytes:
    document = {"schema": HEALTH_STORE_SCHEMA, "state": state, "ended": ended}
    text = json.dumps(document, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(file: Path) -> StoredHealth:
    """The last state and the ended events of a file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        _ForeignFileError: it is something else.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except IsADirectoryError:
        raise _ForeignFileError("is a folder") from None
    with open(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _ForeignFileError("is not a file")
        if found.st_size > _MAX_BYTES:
            raise _ForeignFileError(f"has more than {_MAX_BYTES >> 20} MiB")
        content = opened.read(_MAX_BYTES + 1)
    *lines, _ = content.split(b"\n")  # what follows the last line end was cut short by a kill
    whole = [document for line in lines if (document := _document(line)) is not None]
    if not whole:
        raise _ForeignFileError("is damaged, or not a store of health")
    numbers = [_schema_number(document) for document in whole]
    if numbers[-1] != _SCHEMA_NUMBER:
        raise _ForeignFileError("is of another version of stepscope", is_newer=numbers[-1] > _SCHEMA_NUMBER)
    if len(whole) < len(lines):
        num_damaged = counted(len(lines) - len(whole), "line is", "lines are")
        _log.warning("%s: %s damaged; the last whole one is used", file, num_damaged)
    ended = deque[Document](maxlen=MAX_KEPT_EVENTS)
    for document, number in zip(whole, numbers, strict=True):
        if number == _SCHEMA_NUMBER:
            ended.extend(document["ended"])
    return StoredHealth(whole[-1]["state"], tuple(ended))


def _document(line: bytes) -> Document | None:
    """A line's document; None of one that is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(document, dict) and _schema_number(document) > 0
    return document if is_ours and isinstance(document.get("state"), dict) and _is_list_of_objects(document) else None


def _is_list_of_objects(document: Document) -> bool:
    ended = document.get("ended")
    return isinstance(ended, list) and all(isinstance(one, dict) for one in ended)


def _schema_number(document: Document) -> int:
    name, _, number = str(document.get("schema")).partition("/")
    return int(number) if name == _SCHEMA_NAME and number.isascii() and number.isdecimal() and len(number) < 9 else 0
