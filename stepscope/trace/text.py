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
        num_bytes: text handed out so far, holes included.
        hole_bytes: zeros left out of it; one zero stays in each one's place.
        truncated: the compressed stream ended early or broke.
    """

    def __init__(self, stream: BinaryIO, *, block_bytes: int) -> None:
        self.num_bytes = 0
        self.hole_bytes = 0
        self.truncated = False
        self._stream = stream
        self._block_bytes = block_bytes
        self._raw = stream.read(min(_RAW_BYTES, max(block_bytes, len(_GZIP_MAGIC))))
        is_gzip = self._raw.startswith(_GZIP_MAGIC)
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW) if is_gzip else None
        self._at_start = True
        self._ended = False

    def read(self) -> bytes:
        """About one block of text; empty at the end."""
        block = b""
        while len(block) < self._block_bytes and not self._ended:
            block += self._inflate(self._inflater) if self._inflater else self._plain()
        if self._at_start:
            self._at_start = False
            block = block.removeprefix(_UTF8_MARK)
        self.num_bytes += len(block)
        return self._without_holes(block)

    def _plain(self) -> bytes:
        block, self._raw = self._raw, b""
        block += self._stream.read(self._block_bytes)
        self._ended = not block
        return block

    def _inflate(self, inflater: isal_zlib.Decompress) -> bytes:
        if not self._raw:
            self._raw = self._stream.read(_RAW_BYTES)
            if not self._raw:
                self._ended = True
                self.truncated = not inflater.eof
                return b""
        try:
            text: bytes = inflater.decompress(self._raw, self._block_bytes)
        except isal_zlib.error as error:  # type: ignore[misc]  # the stubs take the class for an instance
            _LOG.warning("the compressed stream breaks after %d bytes of text: %s", self.num_bytes, error)
            self._ended = self.truncated = True
            return b""
        if inflater.eof:
            self._next_member(inflater.unused_data)
        else:
            self._raw = inflater.unconsumed_tail
        return text

    def _next_member(self, rest: bytes) -> None:
        """Gzip files may be written one after another; padding after the last one is not a member."""
        self._raw = rest or self._stream.read(_RAW_BYTES)
        if self._raw.startswith(_GZIP_MAGIC):
            self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        else:
            self._ended = True

    def _without_holes(self, block: bytes) -> bytes:
        if b"\x00" not in block:
            return block
        shorter = _HOLE.sub(b"\x00", block)
        self.hole_bytes += len(block) - len(shorter)
        return shorter
