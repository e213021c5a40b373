"""What becomes of memory that an analysis lets go of? It is kept for the next column instead of given back.

glibc gives a large array's pages back when it is freed and gets new ones for the next, which the system has to clear:
of all that an analysis takes these were half. The verbs that read traces end soon, so for them nothing is lost by it.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h"""
_KEPT_BYTES = 128 * 1024 * 1024
_LARGEST_ON_HEAP_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes; larger arrays come and go with their pages as before."""


def keep_freed_memory() -> None:
    """For the rest of this process and those it forks; nothing happens where the C library is another."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGEST_ON_HEAP_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
