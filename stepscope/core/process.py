"""Process-wide switches: safe forking, parent-death signal, and the C accelerators (which change speed, never results).

Garbage that the parent has not collected before a fork, such as a process group, may need threads that the child does
not have: if the child collected it, its destructor would wait for them forever.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def about_to_fork() -> Iterator[None]:
    """Freeze the garbage collector around a fork, so that the child never collects the parent's objects.

    The parent unfreezes afterwards, unless its own code had frozen objects before.
    """
    parent, is_frozen = os.getpid(), gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if os.getpid() == parent and not is_frozen:
            gc.unfreeze()


_PR_SET_PDEATHSIG = 1


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone, even killed; only Linux can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


PURE_VARIABLE = "STEPSCOPE_PURE"
"""Environment: 1 turns the C accelerators off."""


def may_accelerate() -> bool:
    """Whether the C accelerators may be used, by the environment."""
    return os.environ.get(PURE_VARIABLE, "0") in ("", "0")
