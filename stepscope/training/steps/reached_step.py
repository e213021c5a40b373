"""The last step that a run's rank 0 has ended, in shared memory, where it outlives a kill.

Lines of steps reach the disk up to some seconds later, and a process that SIGKILL ends writes none of them. The next
attempt on the same host finds here how far the killed one had come. Only memory is written: no disk can hold a step up.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

SHARED_MEMORY = Path("/dev/shm")
_NUM_BYTES = mmap.PAGESIZE
_VERSION = 1

LAST_STEP, LAST_STEP_NS, OFFSET_NS, _FIRST_STEP_NS, _ATTEMPT, _FORMAT = range(6)
"""Places: the last step that has ended, its end by the monotonic clock, and what is added to that for ns since the
epoch; start of the attempt's first step, ns since the epoch; its number; version of this layout."""

NUM_PLACES = 6


class Places(Protocol):
    """Whole numbers of 64 bits: a list, or shared memory."""

    def __getitem__(self, place: int, /) -> int: ...

    def __setitem__(self, place: int, value: int, /) -> None: ...


class Reached(NamedTuple):
    """How far an attempt had come. Times are ns since the epoch."""

    attempt: int
    first_step_ns: int
    last_step: int
    last_step_ns: int


class ReachedStep:
    """Shared memory of one run on this host: what an earlier attempt left is taken, then it is this attempt's.

    Attributes:
        places: what the training thread writes to at the end of each step.
        before: what an earlier attempt left that ended no step orderly; None without.
    """

    def __init__(self, run_directory: Path, folder: Path = SHARED_MEMORY) -> None:
        name = hashlib.sha256(os.fsencode(run_directory.resolve())).hexdigest()[:24]
        self._path = folder / f"stepscope-{os.getuid()}-{name}"
        self._memory: mmap.mmap | None = None
        self.before: Reached | None = None
        self.places: Places = [0] * NUM_PLACES
        with suppress(OSError, ValueError):  # no shared memory: then nothing outlives a kill
            self._open()

    def begin(self, attempt: int, first_step: int, now_ns: int) -> None:
        """The attempt begins, with its first step."""
        self.places[LAST_STEP], self.places[LAST_STEP_NS] = first_step - 1, 0
        self.places[_FIRST_STEP_NS], self.places[_ATTEMPT] = now_ns, attempt
        self.places[_FORMAT] = _VERSION

    def close(self) -> None:
        """The attempt has ended in order, its lines are written, and nobody writes to `places`: nothing is left."""
        memory, self._memory = self._memory, None
        if memory is not None and isinstance(self.places, memoryview):
            self.places.release()
            self.places = [0] * NUM_PLACES
            memory.close()
            with suppress(OSError):
                self._path.unlink()

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                return
            os.posix_fallocate(descriptor, 0, _NUM_BYTES)  # else a full /dev/shm kills at the first write
            memory = mmap.mmap(descriptor, _NUM_BYTES)
        finally:
            os.close(descriptor)
        with memoryview(memory) as whole:
            places = whole.cast("q")
        self._memory = memory
        self.before = _reached(places)
        places[_FORMAT] = 0
        self.places = places


def _reached(places: Places) -> Reached | None:
    """What an attempt left; None where it ended no step."""
    is_ours = places[_FORMAT] == _VERSION and places[LAST_STEP_NS] > 0 and places[_FIRST_STEP_NS] > 0
    last_step_ns = places[LAST_STEP_NS] + places[OFFSET_NS]
    if not is_ours or places[LAST_STEP] < 0 or last_step_ns < places[_FIRST_STEP_NS]:
        return None
    return Reached(places[_ATTEMPT], places[_FIRST_STEP_NS], places[LAST_STEP], last_step_ns)
