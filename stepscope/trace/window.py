"""Which text is read and not yet cut? One piece of memory, filled again and again, so that text is hardly copied."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from stepscope.trace.text import TraceText

_FOR_A_CUT_EVENT_BYTES = 64 * 1024
"""Most blocks end within an event, whose beginning is kept for the next one."""
_OPENING, _CLOSING = b"[]"

Decoded = TypeVar("Decoded")


class TextWindow:
    """The text from the first event that nobody has taken yet to the end of what is read.

    Views of it, and what is decoded from it in place, hold until `fill` is called.
    """

    def __init__(self, source: TraceText, beginning: bytes) -> None:
        self._source = source
        self._buffer = bytearray(1) + beginning  # one byte before it always, for a bracket
        self._begin, self._end = 1, len(self._buffer)

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def begins_at_byte(self) -> int:
        """Where in the source's text it begins; holes of zeros before it blur the place."""
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
        return len(self) > left

    def view(self, size: int) -> memoryview:
        """So many bytes from its beginning."""
        return memoryview(self._buffer)[self._begin : self._begin + size]

    def text(self, size: int) -> bytes:
        """A copy of so many bytes from its beginning."""
        return bytes(self.view(size))

    def decoded(self, size: int, decode: Callable[[memoryview], Decoded | None]) -> tuple[Decoded | None, memoryview]:
        """What the first `size` bytes hold as the items of a JSON array, and that array's text.

        Both brackets are written into the window: where `decode` finds something, the byte behind is lost.
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
        """Where it holds these bytes last, or -1."""
        return max(-1, self._buffer.rfind(wanted, self._begin, self._end) - self._begin)

    def matches(self, pattern: re.Pattern[bytes], start: int) -> list[tuple[int, int]]:
        """(begin, end) of all places from `start` on that match."""
        found = pattern.finditer(self._buffer, self._begin + start, self._end)
        return [(match.start() - self._begin, match.end() - self._begin) for match in found]

    def take(self, size: int) -> None:
        """Leave so many bytes behind."""
        self._begin += size
