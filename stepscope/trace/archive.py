"""Members of tar, tar.gz and zip archives, read one at a time from a stream; nothing is written to disk.

Names of members are compared and shown, never used as paths. The tar reader is our own: Python's reads extended headers
of any size into memory and needs to seek.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from typing import BinaryIO, NamedTuple, Protocol

from stepscope.core.errors import DataError
from stepscope.trace.inflating import Inflated, Readable, check_inflation

HEAD_BYTES = 4096
MAX_MEMBERS = 100_000
MAX_MEMBER_BYTES = 2**40
_MAX_NAME_BYTES = 4096
_MAX_HEADER_BYTES = 64 * 1024
"""Of an extended tar header, which holds names and times."""
_UNPACK = "unpack it, and give the folder"


class OpenMember(Readable, Protocol):
    """The content of a file in an archive."""

    num_bytes: int


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    num_bytes: int


class ArchiveContents(NamedTuple):
    """The files in an archive, each name once.

    Attributes:
        is_whole: False where the archive ends early; the last member may then be cut.
    """

    members: list[Member]
    is_whole: bool


def is_archive(head: bytes) -> bool:
    """Whether a file with these first HEAD_BYTES is a tar, tar.gz or zip archive."""
    return _is_zip(head) or _is_tar_header(Inflated(BytesIO(head)).read(_BLOCK))


def list_members(stream: BinaryIO, *, path: str) -> ArchiveContents:
    """List the files in an archive; directories, links and devices are left out.

    Raises:
        DataError: the archive cannot be read, or its sizes are absurd.
    """
    head = stream.read(_BLOCK)
    sizes: dict[str, int] = {}
    is_whole = True
    if _is_zip(head):
        with _opened_zip(stream, path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    sizes[info.filename] = info.file_size
    else:
        reader = _TarReader(stream, head, path)
        for member in reader.members():
            sizes[member.name] = member.num_bytes
            if len(sizes) > MAX_MEMBERS:
                break
        is_whole = reader.is_whole
    if len(sizes) > MAX_MEMBERS:
        raise DataError(f"holds over {MAX_MEMBERS:,} files: refused", where=path, what_next=_UNPACK)
    return ArchiveContents([Member(name, size) for name, size in sizes.items()], is_whole)


@contextmanager
def open_member(stream: BinaryIO, name: str, *, path: str) -> Iterator[OpenMember]:
    """Open the last file of this name, which is what unpacking leaves, for reading from front to back.

    Raises:
        DataError: the archive has none, or it cannot be read.
    """
    head = stream.read(_BLOCK)
    where = f"{path}: {name}"
    if not _is_zip(head):
        num_found = sum(member.name == name for member in _TarReader(stream, head, path).members())
        if not num_found:
            raise DataError("is not in the archive", where=where, what_next="check the name")
        stream.seek(0)
        reader = _TarReader(stream, stream.read(_BLOCK), path)
        found = (member for member in reader.members() if member.name == name)
        next(islice(found, num_found - 1, None))
        yield reader
        return
    with _opened_zip(stream, path) as archive:
        try:
            info = archive.getinfo(name)
        except KeyError:
            raise DataError("is not in the archive", where=where, what_next="check the name") from None
        _check_size(info.file_size, where)
        check_inflation(info.file_size, info.compress_size, where)
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError("is encrypted, or not packed by deflate", where=where, what_next=_UNPACK)
        try:
            opened = archive.open(info)
        except _ZIP_ERRORS as error:
            raise DataError(f"cannot be unpacked ({error})", where=where, what_next=_UNPACK) from error
        with opened:
            yield _ZipMember(opened, info.file_size, where)


def _is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError, OverflowError,
)  # fmt: skip


@contextmanager
def _opened_zip(stream: BinaryIO, path: str) -> Iterator[zipfile.ZipFile]:
    try:
        stream.seek(0)
        archive = zipfile.ZipFile(stream)
    except _ZIP_ERRORS as error:
        raise DataError(f"is a damaged zip archive ({error})", where=path, what_next="copy it again") from error
    with archive:
        yield archive


class _ZipMember:
    """A file in a zip archive, whose errors are DataErrors."""

    def __init__(self, opened: Readable, num_bytes: int, where: str) -> None:
        self.num_bytes = num_bytes
        self._opened = opened
        self._where = where

    def read(self, size: int) -> bytes:
        try:
            return self._opened.read(size)
        except _ZIP_ERRORS as error:
            raise DataError(f"cannot be unpacked ({error})", where=self._where, what_next="copy it again") from error


_BLOCK = 512
_SKIPPED_BYTES = 1024 * 1024
_NAME, _SIZE, _CHECKSUM, _KIND, _PREFIX = (
    slice(0, 100),
    slice(124, 136),
    slice(148, 156),
    slice(156, 157),
    slice(345, 500),
)
_FILES = (b"0", b"\0", b"7")
_LONG_NAME, _EXTENDED = b"L", b"x"
_SPARSE = b"S"


def _is_tar_header(block: bytes) -> bool:
    """Whether the block's checksum is right."""
    if len(block) < _BLOCK:
        return False
    blank = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    return _octal(block[_CHECKSUM]) == sum(blank)


def _octal(field: bytes) -> int | None:
    digits = field.replace(b"\0", b" ").strip()
    return int(digits, 8) if digits and not digits.strip(b"01234567") else None


class _TarReader:
    """The files of a tar archive, in its order; `read` gives the content of the file that `members` gave last.

    Attributes:
        is_whole: False once the archive was found to end early.
    """

    def __init__(self, stream: BinaryIO, head: bytes, path: str) -> None:
        self.is_whole = True
        self._text = Inflated(stream, head=head, where=path)
        self._path = path
        self.num_bytes = 0
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """The files.

        Raises:
            DataError: the archive is damaged, or its sizes are absurd.
        """
        name: str | None = None
        size: int | None = None
        while (header := self._next_header()) is not None:
            kind = header[_KIND]
            if kind in (_LONG_NAME, _EXTENDED):
                content = self._header_content()
                given = {"path": content.rstrip(b"\0")} if kind == _LONG_NAME else _extended_fields(content)
                name = _name(given["path"]) if "path" in given else name
                size = _decimal(given["size"]) if "size" in given else size
                continue
            if size is not None and kind in _FILES:
                self._begin(size)
            if kind == _SPARSE:
                raise DataError("holds a sparse file, which is not read", where=self._path, what_next=_UNPACK)
            name = _name_of(header) if name is None else name
            if kind in _FILES and not name.endswith("/"):
                yield Member(name, self._left)
            name = size = None

    def read(self, size: int) -> bytes:
        """The next `size` bytes of the file, fewer at its end."""
        text = self._text.read(min(size, self._left))
        self._left -= len(text)
        return text

    def _next_header(self) -> bytes | None:
        """The next header, with its content before the reader; None at the archive's end."""
        self._skip(self._left + self._padding)
        header = self._text.read(_BLOCK)
        if not header.strip(b"\0"):
            self.is_whole = self.is_whole and bool(header) and not self._text.truncated
            return None
        if len(header) < _BLOCK:
            self.is_whole = False
            return None
        size = _size(header[_SIZE])
        if not _is_tar_header(header) or size is None:
            raise DataError("is a damaged tar archive", where=self._path, what_next="copy it again")
        self._begin(size)
        return header

    def _begin(self, size: int) -> None:
        _check_size(size, self._path)
        self.num_bytes = self._left = size
        self._padding = -size % _BLOCK

    def _skip(self, size: int) -> None:
        while size and (text := self._text.read(min(size, _SKIPPED_BYTES))):
            size -= len(text)
        self.is_whole = self.is_whole and not size

    def _header_content(self) -> bytes:
        if self._left > _MAX_HEADER_BYTES:
            raise DataError("has an absurdly large header: refused", where=self._path, what_next="pack it again")
        return self.read(self._left)


def _check_size(num_bytes: int, where: str) -> None:
    if num_bytes > MAX_MEMBER_BYTES:
        what = f"holds a file of {num_bytes / 2**40:,.0f} TiB by its own account: refused"
        raise DataError(what, where=where, what_next=_UNPACK)


def _size(field: bytes) -> int | None:
    if field[:1] == b"\x80":  # base 256, for files over 8 GiB
        return int.from_bytes(field[1:], "big")
    return _octal(field)


def _extended_fields(content: bytes) -> dict[str, bytes]:
    """The fields of an extended header: lines "length key=value", the length counting the whole line."""
    fields: dict[str, bytes] = {}
    while content:
        length, _, _ = content[:20].partition(b" ")
        size = _decimal(length) or len(content)
        key, _, value = content[len(length) + 1 : size].removesuffix(b"\n").partition(b"=")
        fields[key.decode(errors="replace")] = value
        content = content[size:]
    return fields


def _decimal(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) < 20 else None


def _name_of(header: bytes) -> str:
    prefix, name = (header[field].partition(b"\0")[0] for field in (_PREFIX, _NAME))
    is_posix = header[257:263] == b"ustar\0"  # elsewhere the prefix holds times
    return _name(prefix + b"/" + name if prefix and is_posix else name)


def _name(text: bytes) -> str:
    return text[:_MAX_NAME_BYTES].decode(errors="replace")
