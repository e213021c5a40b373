"""Stamps of trace files, which tell whether a file is still the one that a view was made from.

A stamp holds the file's size, its times, its inode and the SHA-256 of its whole content, taken as the trace was read. A
file of the same size, times and inode is the same without being opened: every write changes its change time, which no
program can set. A file whose times or inode differ (a copy of the run) is hashed again, at a tenth of the cost of
reading it. A change within the resolution of those times is not missed either: `is_settled`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from stepscope.workflow.inputs.archives import split_address
from stepscope.workflow.inputs.object_stores import store_errors

SETTLED_NS = 2_000_000_000
"""The coarsest file systems count times in steps of two seconds."""
_BLOCK_BYTES = 1 << 20
_STORE_KEYS = ("ETag", "etag", "md5Hash", "content_md5", "generation", "LastModified", "last_modified", "mtime")
"""What the stores' drivers call their own stamps; the first that a file has counts."""


@dataclass(frozen=True, slots=True)
class TraceStamp:
    """Stamp of a trace file.

    Attributes:
        num_bytes: size of the file, or of the archive that the trace is in.
        modified_ns, changed_ns, inode: of a local file.
        digest: SHA-256 of its content; empty where the content was not read from front to back.
        of_store: the store's own stamp of an object, "ETag=..."; empty for a local file.
    """

    num_bytes: int
    modified_ns: int = 0
    changed_ns: int = 0
    inode: int = 0
    digest: str = ""
    of_store: str = ""

    def with_digest(self, digest: str) -> TraceStamp:
        """The stamp with that of the content."""
        return replace(self, digest=digest)

    def is_of_state(self, now: TraceStamp) -> bool:
        """Whether a file in the state `now` has not been written since, by its size, times and inode alone."""
        return self.with_digest("") == now.with_digest("")

    def is_settled(self, looked_ns: int) -> bool:
        """Whether a write after `looked_ns`, when the content was read, would have changed the stamp."""
        return bool(self.of_store) or self.changed_ns + SETTLED_NS < looked_ns


def stamp_of(address: str) -> TraceStamp | None:
    """Stamp of a file, a URL or an address in an archive as it is now, without its content; None where it has none."""
    source, _ = split_address(address)
    if "://" in source:
        return _stamp_of_url(source)
    try:
        return _stamp_of_state(os.stat(source))
    except OSError:
        return None


def stamp_of_open(stream: BinaryIO) -> TraceStamp | None:
    """Stamp of an open local file."""
    return _stamp_of_state(os.fstat(stream.fileno()))


def digest_of(path: str) -> str | None:
    """SHA-256 of a local file's content; None where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            hashing = HashingStream(stream)
            return hashing.finish()
    except OSError:
        return None


class HashingStream:
    """A stream that hashes what is read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """The next `size` bytes, fewer at the end."""
        content = self._stream.read(size)
        self._digest.update(content)
        return content

    def readinto(self, room: memoryview, /) -> int:
        """Fill the room with the next bytes; return how many."""
        count: int = self._stream.readinto(room) or 0  # type: ignore[attr-defined]  # files have it
        self._digest.update(room[:count])
        return count

    def finish(self) -> str:
        """SHA-256 of the whole stream; reads what is left of it."""
        while self.read(_BLOCK_BYTES):
            pass
        return self._digest.hexdigest()


def _stamp_of_state(state: os.stat_result) -> TraceStamp | None:
    if not stat.S_ISREG(state.st_mode):
        return None
    return TraceStamp(state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)


def _stamp_of_url(url: str) -> TraceStamp | None:
    import fsspec

    try:
        store, path = fsspec.core.url_to_fs(url)
        known: Mapping[str, Any] = store.info(path)
    except store_errors():
        return None
    size = known.get("size")
    key = next((key for key in _STORE_KEYS if known.get(key)), None)
    is_weak = key is not None and str(known[key]).startswith("W/")
    if not isinstance(size, int) or key is None or is_weak:
        return None
    return TraceStamp(size, of_store=f"{key}={known[key]}")
