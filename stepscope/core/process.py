"""What this process may do: fork safely, and use the optional accelerators in C.

What a parent has dropped but not collected yet, such as a process group, has threads of the parent behind it that a
forked child lacks: collected there, its destructor waits for them forever. The accelerators change how long things
take, never what comes out.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def about_to_fork() -> Iterator[None]:
    """A child forked inside never collects what is there already.

    This process collects it again afterwards, unless its own code had frozen something before.
    """
    parent, is_frozen = os.getpid(), gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if os.getpid() == parent and not is_frozen:
            gc.unfreeze()


PURE_VARIABLE = "STEPSCOPE_PURE"
"""Set to 1 to do everything in Python."""


def may_accelerate() -> bool:
    """Whether the environment leaves the accelerators on."""
    return os.environ.get(PURE_VARIABLE, "0") in ("", "0")
