"""How does a forked process leave alone what only its parent can end?

What the parent has dropped but not collected yet, a process group say, has threads of the parent's behind it that the
child lacks: collected there, its destructor waits for them for ever.
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
