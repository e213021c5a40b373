"""Inflated text of a stream: its bytes as they are, or what its gzip members hold, in bounded memory."""

from __future__ import annotations

import logging
from typing import Protocol

from isal import isal_zlib

from stepscope.core.errors import DataError

_LOG = logging.getLogger(__name__)

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
"""zlib's code for a gzip header and the largest window"""
_RAW_BYTES = 64 * 1024
MAX_RATIO = 400
"""Text for each byte of the file. Traces deflate to a tenth to a fortieth; deflate's limit is about a thousandth."""
RATIO_COUNTS_FROM_BYTES = 256 * 1024 * 1024


def check_inflation(num_bytes: int, num_raw_bytes: int, where: str) -> None:
    """Check that so much text may come of so few bytes.

    Raises:
        DataError: only something made to exhaust its reader inflates like that.
    """
    if num_bytes > RATIO_COUNTS_FROM_BYTES and num_bytes > MAX_RATIO * num_raw_bytes:
        what = f"inflates to over {MAX_RATIO} times its size: refused"
        raise DataError(what, where=where, what_next="record the trace again, or give the file that it was made of")


class Readable(Protocol):
    """A source of bytes that can be read once, from front to back."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes, fewer at the end."""


class Inflated:
    """The text of a stream, as far as a damaged gzip stream can be inflated.

    Attributes:
        truncated: the compressed stream ended early or is corrupt.
        broken: it is corrupt.
        ended: nothing is left.
    """

    def __init__(self, stream: Readable, *, head: bytes = b"", where: str = "") -> None:
        self.truncated = False
        self.broken = False
        self.ended = False
        self._stream = stream
        self._where = where
        self._raw = head or stream.read(_RAW_BYTES)
        is_gzip = bool(self._raw) and GZIP_MAGIC.startswith(self._raw[: len(GZIP_MAGIC)])  # also one cut to a byte
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW) if is_gzip else None
        self._num_raw_bytes = len(self._raw)
        self._num_bytes = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes of text, fewer at its end."""
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.readinto(memoryview(buffer))])

    def readinto(self, room: memoryview) -> int:
        """Fill the room with text, less than it holds at the end of the text; return how much.

        Raises:
            DataError: it inflates to absurdly more than the file.
        """
        end = 0
        while end < len(room) and not self.ended:
            end += self._inflate(self._inflater, room[end:]) if self._inflater else self._plain(room[end:])
        self._num_bytes += end
        if self._inflater:
            check_inflation(self._num_bytes, self._num_raw_bytes, self._where)
        return end

    def _plain(self, room: memoryview) -> int:
        count = min(len(self._raw), len(room))
        if count:
            room[:count] = self._raw[:count]
            self._raw = self._raw[count:]
        else:
            count = self._read_stream(room)
            self.ended = not count
        return count

    def _read_stream(self, room: memoryview) -> int:
        read_into = getattr(self._stream, "readinto", None)  # avoids a copy where the stream supports it
        if read_into is not None:
            return read_into(room) or 0
        text = self._stream.read(len(room))
        room[: len(text)] = text
        return len(text)

    def _read_raw(self) -> bytes:
        raw = self._stream.read(_RAW_BYTES)
        self._num_raw_bytes += len(raw)
        return raw

    def _inflate(self, inflater: isal_zlib.Decompress, room: memoryview) -> int:
        raw, self._raw = self._raw, b""
        try:
            text: bytes = inflater.decompress(raw, len(room))
        except isal_zlib.error as error:  # type: ignore[misc]  # the stubs take the class for an instance
            _LOG.warning("the compressed stream is corrupt after %d bytes of text: %s", self._num_bytes, error)
            self.ended = self.truncated = self.broken = True
            return 0
        if inflater.eof:
            self._next_member(inflater.unused_data)
        else:
            self._raw = inflater.unconsumed_tail
            if not text and not self._raw:  # nothing is left inside the inflater either
                self._raw = self._read_raw()
                self.ended = self.truncated = not self._raw
        room[: len(text)] = text
        return len(text)

    def _next_member(self, rest: bytes) -> None:
        """Continue with the next member of a multi-member gzip file; padding after the last one is not a member."""
        self._raw = rest or self._read_raw()
        if self._raw.startswith(GZIP_MAGIC):
            self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        else:
            self.ended = True
