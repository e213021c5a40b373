"""How long may a disk that does not answer hold up the end of a run?"""

from __future__ import annotations

import threading
from collections.abc import Callable

_AGAIN_SECONDS = 0.5

_late: list[threading.Thread] = []
"""What has not come back yet; while anything has not, nothing else is waited for at length."""


def within(seconds: float, work: Callable[[], None], what: str) -> None:
    """Do `work` on another thread and wait for it so long; it goes on behind, and the process does not wait for it.

    Args:
        what: is written, for the error.

    Raises:
        TimeoutError: it is not over.
        Exception: what it raised.
    """
    failed: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="stepscope-last-writes", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python is about to end and starts no thread any more
        work()
        return
    _late[:] = [each for each in _late if each.is_alive()]
    thread.join(min(seconds, _AGAIN_SECONDS) if _late else seconds)
    if thread.is_alive():
        _late.append(thread)
        raise TimeoutError(f"the disk does not answer; not written: {what}")
    if failed:
        raise failed[0]
