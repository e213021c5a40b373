"""Text of a trace file: inflated if its content is gzip, held in one reused buffer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from stepscope.trace.inflating import Inflated, Readable

_UTF8_MARK = b"\xef\xbb\xbf"
_HOLE = re.compile(rb"\x00{32,}")
"""Zeros that a crashed writer or file system left; shorter runs may be characters of a name."""


class TraceText:
    """The inflated text of one trace, block by block.

    Attributes:
        block_bytes: size of a block.
        num_bytes: text returned so far, holes included.
        hole_bytes: zeros left out of it; each hole is replaced by one zero.
    """

    def __init__(self, stream: Readable, *, block_bytes: int, head: bytes = b"", path: str = "") -> None:
        self.block_bytes = block_bytes
        self.num_bytes = 0
        self.hole_bytes = 0
        self._inflated = Inflated(stream, head=head, where=path)
        self._at_start = True

    @property
    def truncated(self) -> bool:
        """The compressed stream ended early or is corrupt."""
        return self._inflated.truncated

    @property
    def broken(self) -> bool:
        """The compressed stream is corrupt."""
        return self._inflated.broken

    def read(self) -> bytes:
        """One block of text, shorter only at the end and where holes are; empty at the end."""
        buffer = bytearray(self.block_bytes)
        return bytes(memoryview(buffer)[: self.read_into(buffer, 0)])

    def read_into(self, buffer: bytearray, begin: int) -> int:
        """Write one block of text at `begin` of a buffer with room for it; return its end (`begin` if none is left)."""
        with memoryview(buffer) as view:
            end = begin + self._inflated.readinto(view[begin : begin + self.block_bytes])
            if self._at_start:
                self._at_start = False
                if view[begin : begin + len(_UTF8_MARK)] == _UTF8_MARK:
                    end -= len(_UTF8_MARK)
                    view[begin:end] = view[begin + len(_UTF8_MARK) : end + len(_UTF8_MARK)]
        self.num_bytes += end - begin
        return end if buffer.find(0, begin, end) < 0 else self._without_holes(buffer, begin, end)

    def _without_holes(self, buffer: bytearray, begin: int, end: int) -> int:
        shorter = _HOLE.sub(b"\x00", buffer[begin:end])
        self.hole_bytes += end - begin - len(shorter)
        buffer[begin : begin + len(shorter)] = shorter
        return begin + len(shorter)


_FOR_A_CUT_EVENT_BYTES = 64 * 1024
"""Room for the beginning of an event that a block ends in, which is kept for the next block."""
_OPENING, _CLOSING = b"[]"

Decoded = TypeVar("Decoded")


class TextWindow:
    """The text from the first event not yet taken to the end of what has been read.

    Views of it, and objects decoded from it in place, are valid until `fill` is called.

    Attributes:
        is_at_end: less than a block was left to read.
    """

    def __init__(self, source: TraceText, beginning: bytes) -> None:
        self._source = source
        self._buffer = bytearray(1) + beginning  # always one byte before it, for a bracket
        self._begin, self._end = 1, len(self._buffer)
        self.is_at_end = False

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def begins_at_byte(self) -> int:
        """Position in the source's text where it begins; approximate after holes of zeros."""
        return max(0, self._source.num_bytes - len(self))

    def fill(self) -> bool:
        """Read one more block; False at the end of the text."""
        left = len(self)
        if len(self._buffer) <= left + self._source.block_bytes:
            larger = bytearray(1 + left + self._source.block_bytes + max(left, _FOR_A_CUT_EVENT_BYTES))
            larger[1 : 1 + left] = self.view(left)
            self._buffer = larger
        elif self._begin > 1:
            self._buffer[1 : 1 + left] = self._buffer[self._begin : self._end]
        self._begin = 1
        self._end = self._source.read_into(self._buffer, 1 + left)
        self.is_at_end = len(self) - left < self._source.block_bytes
        return len(self) > left

    def view(self, size: int) -> memoryview:
        """The first `size` bytes."""
        return memoryview(self._buffer)[self._begin : self._begin + size]

    def text(self, size: int) -> bytes:
        """A copy of the first `size` bytes."""
        return bytes(self.view(size))

    def decoded(self, size: int, decode: Callable[[memoryview], Decoded | None]) -> tuple[Decoded | None, memoryview]:
        """The first `size` bytes decoded as the items of a JSON array, and that array's text.

        Both brackets are written into the window: where `decode` succeeds, the byte behind is overwritten.
        """
        bracket = self._begin + size
        behind = self._buffer[bracket]
        self._buffer[self._begin - 1], self._buffer[bracket] = _OPENING, _CLOSING
        array_text = memoryview(self._buffer)[self._begin - 1 : bracket + 1]
        decoded = decode(array_text)
        if decoded is None:
            self._buffer[bracket] = behind
        return decoded, array_text

    def rfind(self, wanted: bytes) -> int:
        """Position of the last occurrence of these bytes, or -1."""
        return max(-1, self._buffer.rfind(wanted, self._begin, self._end) - self._begin)

    def holds(self, wanted: bytes, first: int) -> bool:
        """Whether these bytes occur from `first` on."""
        return self._buffer.find(wanted, self._begin + max(0, first), self._end) >= 0

    def matches(self, pattern: re.Pattern[bytes], start: int) -> list[tuple[int, int]]:
        """(begin, end) of all matches from `start` on."""
        found = pattern.finditer(self._buffer, self._begin + start, self._end)
        return [(match.start() - self._begin, match.end() - self._begin) for match in found]

    def take(self, size: int) -> None:
        """Drop the first `size` bytes."""
        self._begin += size
