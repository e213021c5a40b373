"""What if an output is no file, but a device, a pipe, or what the shell has opened?"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/self/fd)/(\d+)\Z")


def leads_elsewhere(path: Path) -> bool:
    """Whether what is written to the path goes somewhere else, and the path stays what it is.

    Raises:
        OSError: it cannot be told.
    """
    if _descriptor(path) is not None:
        return True
    return path.is_fifo() or path.is_char_device() or path.is_block_device()


def write_through(path: Path, content: bytes) -> None:
    """Write to what the path leads to.

    Raises:
        OSError: it cannot be written.
    """
    number = _descriptor(path)
    if number is None:
        with os.fdopen(os.open(path, os.O_WRONLY), "wb") as stream:
            stream.write(content)
        return
    for printed in (sys.stdout, sys.stderr):  # stands before, also where both end in one file
        if printed is not None:
            printed.flush()
    with os.fdopen(os.dup(number), "wb") as stream:  # with its own place in the file: opened anew, it begins at 0
        stream.write(content)


def _descriptor(path: Path) -> int | None:
    """Of a path that stands for a file that is open already."""
    match = _DESCRIPTOR.match(str(path))
    return int(match[1]) if match else _STANDARD.get(str(path))
