"""How does a forked process leave alone what only its parent can end?

What the parent has dropped but not collected yet, a process group say, has threads of the parent's behind it that the
child lacks: collected in the child, its destructor waits for them for ever. So what a child inherits is never collected
there (as Python's own notes on `gc.freeze` advise); what it makes itself is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def about_to_fork() -> Iterator[None]:
    """Nothing is collected, here or in a child forked inside; the child calls `keep_inherited` first."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_inherited() -> None:
    """In the child: never collect what is there already; collect as usual what comes."""
    gc.freeze()
    gc.enable()
