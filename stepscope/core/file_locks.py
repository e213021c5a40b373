"""Locks of files that processes append to: whether another process has one, without taking it."""

from __future__ import annotations

import fcntl
import os
import struct

_LOCK = struct.Struct("@hhqqi")
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


def is_locked_by_another(path: str | os.PathLike[str]) -> bool:
    """Whether another process holds a lock on a file; False where it is not there, or no locks are known.

    Asking takes no lock, which a process that starts could meet. Not to be asked of a file that this process has
    locked: the kernel releases a process's lock when it closes the file once.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe waits
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return False
    return bool(kind != fcntl.F_UNLCK)
