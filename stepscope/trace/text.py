"""Which text does a trace file hold? Inflates by content, not by name, and saves what a damaged file still gives."""

from __future__ import annotations

import logging
import re
from typing import BinaryIO

from isal import isal_zlib

_LOG = logging.getLogger(__name__)

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
"""zlib's code for a gzip header and the largest window"""
_UTF8_MARK = b"\xef\xbb\xbf"
_RAW_BYTES = 64 * 1024
_HOLE = re.compile(rb"\x00{32,}")
"""Zeros that a crashed writer or file system left; shorter runs may be characters of a name."""


class TraceText:
    """The inflated text of one trace, block by block.

    Attributes:
        block_bytes: how much is read at a time.
        num_bytes: text handed out so far, holes included.
        hole_bytes: zeros left out of it; one zero stays in each one's place.
        truncated: the compressed stream ended early or broke.
        broken: it broke.
    """

    def __init__(self, stream: BinaryIO, *, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.num_bytes = 0
        self.hole_bytes = 0
        self.truncated = False
        self.broken = False
        self._stream = stream
        self._raw = stream.read(min(_RAW_BYTES, max(block_bytes, len(_GZIP_MAGIC))))
        is_gzip = bool(self._raw) and _GZIP_MAGIC.startswith(self._raw[: len(_GZIP_MAGIC)])  # also one cut to a byte
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW) if is_gzip else None
        self._at_start = True
        self._ended = False

    def read(self) -> bytes:
        """One block of text, less than that only at the end and where holes are; empty at the end."""
        buffer = bytearray(self.block_bytes)
        return bytes(memoryview(buffer)[: self.read_into(buffer, 0)])

    def read_into(self, buffer: bytearray, begin: int) -> int:
        """Write one block of text where `begin` is in a buffer that has room for it.

        Returns:
            Where it ends; `begin` at the end.
        """
        end, most = begin, begin + self.block_bytes
        with memoryview(buffer) as view:
            while end < most and not self._ended:
                room = view[end:most]
                end += self._inflate(self._inflater, room) if self._inflater else self._plain(room)
            if self._at_start:
                self._at_start = False
                if view[begin : begin + len(_UTF8_MARK)] == _UTF8_MARK:
                    end -= len(_UTF8_MARK)
                    view[begin:end] = view[begin + len(_UTF8_MARK) : end + len(_UTF8_MARK)]
        self.num_bytes += end - begin
        return end if buffer.find(0, begin, end) < 0 else self._without_holes(buffer, begin, end)

    def _plain(self, room: memoryview) -> int:
        count = min(len(self._raw), len(room))
        if count:
            room[:count] = self._raw[:count]
            self._raw = self._raw[count:]
        else:
            count = self._read_stream(room)
            self._ended = not count
        return count

    def _read_stream(self, room: memoryview) -> int:
        read_into = getattr(self._stream, "readinto", None)  # without a copy, where the stream can do that
        if read_into is not None:
            return read_into(room) or 0
        text = self._stream.read(len(room))
        room[: len(text)] = text
        return len(text)

    def _inflate(self, inflater: isal_zlib.Decompress, room: memoryview) -> int:
        if not self._raw:
            self._raw = self._stream.read(_RAW_BYTES)
            if not self._raw:
                self._ended = True
                self.truncated = not inflater.eof
                return 0
        try:
            text: bytes = inflater.decompress(self._raw, len(room))
        except isal_zlib.error as error:  # type: ignore[misc]  # the stubs take the class for an instance
            _LOG.warning("the compressed stream breaks after %d bytes of text: %s", self.num_bytes, error)
            self._ended = self.truncated = self.broken = True
            return 0
        if inflater.eof:
            self._next_member(inflater.unused_data)
        else:
            self._raw = inflater.unconsumed_tail
        room[: len(text)] = text
        return len(text)

    def _next_member(self, rest: bytes) -> None:
        """Gzip files may be written one after another; padding after the last one is not a member."""
        self._raw = rest or self._stream.read(_RAW_BYTES)
        if self._raw.startswith(_GZIP_MAGIC):
            self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        else:
            self._ended = True

    def _without_holes(self, buffer: bytearray, begin: int, end: int) -> int:
        shorter = _HOLE.sub(b"\x00", buffer[begin:end])
        self.hole_bytes += end - begin - len(shorter)
        buffer[begin : begin + len(shorter)] = shorter
        return begin + len(shorter)
