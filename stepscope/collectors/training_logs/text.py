"""Text of a log: lines of plain and compressed files, without terminal codes; and the times that stand in lines.

A carriage return begins a line, so that every state of a progress bar is one. Prefixes of launchers (ranks, hosts,
times) stay: readers search for their part of a line.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stepscope.collectors.input_files import open_input
from stepscope.core.errors import DataError

_WHAT_NEXT = "give the output of a training job, plain or compressed with gzip, bzip2 or xz"
_MAX_LINE = 1 << 14
"""Characters; the longest line of a trainer's that was seen has two thousand."""
_MAX_UNPACKED, _MAX_COMPRESSION = 1 << 30, 200
"""Bytes, and the ratio beyond: logs shrink to a fortieth, files made to fill memory or time to a thousandth."""
_UTF16 = re.compile(rb"\xff\xfe[^\0]\0|\xfe\xff\0[^\0]", re.DOTALL)
"""As PowerShell writes what is redirected into a file."""
_ARCHIVES = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "unpack it first: zstd -d FILE"),
    (b"PK\x03\x04", "is a zip archive", "unpack it, and give one log"),
)
_TAR_MARK, _TAR_MARK_AT = "ustar", 257


def log_lines(path: Path) -> Iterator[str]:
    """Lines of a log.

    Raises:
        DataError: it cannot be read, its compression is damaged, or it unpacks to far more than a log does.
    """
    where = str(path)
    with open_input(path, what_next=_WHAT_NEXT) as file:
        begin = file.read(6)
        num_bytes = file.seek(0, 2)
        file.seek(0)
        for mark, what, what_next in _ARCHIVES:
            if begin.startswith(mark):
                raise DataError(what, where=where, what_next=what_next)
        unpacked = _unpacked(file, begin)
        encoding = "utf-16" if _UTF16.match(begin) else "utf-8"
        max_bytes = _MAX_UNPACKED + _MAX_COMPRESSION * num_bytes
        try:
            with closing(TextIOWrapper(unpacked, encoding, errors="replace")) as text:
                num_characters = 0
                is_first = True
                while line := text.readline(_MAX_LINE):
                    num_characters += len(line)
                    if num_characters > max_bytes:
                        raise DataError(f"unpacks to more than {max_bytes:,} bytes", where=where, what_next=_WHAT_NEXT)
                    if is_first and line[_TAR_MARK_AT:].startswith(_TAR_MARK):
                        raise DataError("is a tar archive", where=where, what_next="unpack it, and give one log")
                    is_first = False
                    yield without_terminal_codes(line.rstrip("\n"))
        except (EOFError, OSError, UnicodeError, zlib.error, lzma.LZMAError) as error:
            raise DataError(f"cannot be read ({error})", where=where, what_next="check the file") from None


def _unpacked(file: BinaryIO, begin: bytes) -> BinaryIO | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile:
    if begin.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if begin.startswith(b"BZh"):
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if begin == b"\xfd7zXZ\x00" else file


_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MAIMED_COLOUR = re.compile(r"(?:\\(?:u001b|x1b|033|e)|\^\[)?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m", re.IGNORECASE)
"""A colour whose escape character is written out, or lost, as collectors of logs do."""


def without_terminal_codes(line: str) -> str:
    """The line without colours and movements of the cursor."""
    if "\x1b" in line:
        line = _TERMINAL_CODE.sub("", line)
    return _MAIMED_COLOUR.sub("", line) if "[3" in line or "[0m" in line else line


class Stamp(NamedTuple):
    """A time in a line.

    Attributes:
        ns: since the epoch, taking the time as UTC: only differences count.
        is_fine: it has fractions of a second.
    """

    ns: int
    is_fine: bool


_STAMP = re.compile(
    r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?!\d)",
)


def last_stamp(text: str) -> Stamp | None:
    """The last time in a text, of those with fractions if there are any; None without one."""
    found = None
    for match in _STAMP.finditer(text):
        *calendar, fraction = match.groups()
        try:
            seconds = int(datetime(*map(int, calendar), tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]
        except ValueError:
            continue
        stamp = Stamp(seconds * 10**9 + int((fraction or "").ljust(9, "0")), fraction is not None)
        if found is None or stamp.is_fine >= found.is_fine:
            found = stamp
    return found
