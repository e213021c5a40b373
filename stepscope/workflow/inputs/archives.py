"""Traces inside archives: their addresses, `ARCHIVE::MEMBER`, and reading them without unpacking to disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stepscope.core.errors import from_os_error
from stepscope.core.vocabulary import Notice
from stepscope.trace.archive import HEAD_BYTES, OpenMember, is_archive, list_members, open_member

SEPARATOR = "::"
ARCHIVE_NAME = re.compile(r"\.(?:tar|tar\.gz|tgz|zip)$", re.IGNORECASE)
_URL_OF_MEMBER = re.compile(rf"(\w+://.*?\.(?:tar|tar\.gz|tgz|zip)){SEPARATOR}(?!.*://)(.+)", re.IGNORECASE)


def split_address(address: str) -> tuple[str, str | None]:
    """The path or URL of an address, and the member if it is in an archive."""
    if "://" in address:
        match = _URL_OF_MEMBER.fullmatch(address)
        return (match[1], match[2]) if match else (address, None)
    path, found, member = address.partition(SEPARATOR)
    is_member = found and member and not os.path.exists(address) and os.path.isfile(path)
    return (path, member) if is_member else (address, None)


def absolute(address: str) -> str:
    """The address with an absolute path of its file; the member's name stays as it is."""
    path, member = split_address(address)
    return os.path.abspath(path) + ("" if member is None else f"{SEPARATOR}{member}")


def is_archive_file(path: str) -> bool:
    """Whether a local file is an archive by its content.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            return is_archive(stream.read(HEAD_BYTES))
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=path) from error


def file_names(stream: BinaryIO, path: str, notices: list[Notice]) -> list[str]:
    """Names of the files in an archive; a notice says that it ends early.

    Raises:
        DataError: it cannot be read.
    """
    contents = list_members(stream, path=path)
    if not contents.is_whole:
        notices.append(Notice("cut_archive", f"{path}: ends early; files behind its end are missing"))
    return [member.name for member in contents.members]


@contextmanager
def opened_member(stream: BinaryIO, address: str) -> Iterator[OpenMember]:
    """The member of an address in the archive's open stream.

    Raises:
        DataError: it is not there or cannot be read.
    """
    path, member = split_address(address)
    with open_member(stream, member or "", path=path) as opened:
        yield opened
