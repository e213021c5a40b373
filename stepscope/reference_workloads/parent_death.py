"""Parent-death signal: no process of a run outlives the one that started it, even when that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing import get_start_method

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, so that a killed parent leaves no orphans."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_rank(rank: int, _worker: int) -> None:
    """The same for a loader's worker, which may be inside an item for long; `rank` is the process of its rank.

    A fork server, where Python puts one between the two, ends with the rank and is the parent that counts.
    """
    die_with(os.getppid() if get_start_method() == "forkserver" else rank)
