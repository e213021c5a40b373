"""Which token has the agent? The one in its file; the first agent that starts there makes it."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import UsageError, from_os_error

_log = logging.getLogger(__name__)

_LEAST, _MOST = 16, 512


def token_in(file: Path, *, is_made: bool = False) -> str:
    """The token.

    Args:
        file: which holds it, and nothing else.
        is_made: make one where there is no file, for the agent's user alone to read.

    Raises:
        UsageError: it cannot be read or made, or is none.
    """
    if is_made:
        try:
            _make(file)
        except OSError as error:
            raise from_os_error(error, "the token cannot be made", where=str(file), kind=UsageError) from None
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(_MOST + 2).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise from_os_error(error, "the token cannot be read", where=str(file), kind=UsageError) from None
    if not _LEAST <= len(text) <= _MOST or not text.isprintable() or not text.isascii() or " " in text:
        raise UsageError(f"is no token: one line of {_LEAST} to {_MOST} letters and digits", where=str(file))
    if is_made and mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("others than the agent's user can read its token; chmod 600 %s", file)
    return text


def _make(file: Path) -> None:
    """Whole or not at all: a token cut short by a full disk would be nobody's for ever."""
    if file.exists():
        return
    descriptor, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # its user alone can read it
    try:
        with open(descriptor, "w") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(beside, file)
        except FileExistsError:
            pass  # another agent was first
        except OSError:  # a file system without links
            if not file.exists():
                os.replace(beside, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)
