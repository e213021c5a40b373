"""How much may be used? So much at once, and what comes back with time. Of CPU seconds, of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Budget:
    """Amounts that may be spent: so many at once, refilled with time; may be asked by many threads.

    Args:
        burst: at once.
        share: comes back each second.
        clock: seconds.
    """

    def __init__(self, burst: float, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._share, self._clock = burst, share, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def has_any(self) -> bool:
        """Whether anything is left; what is then spent may be more and is owed."""
        with self._lock:
            self._refill()
            return self._left > 0

    def spend(self, amount: float) -> None:
        """Take off what was used."""
        with self._lock:
            self._left -= amount

    def take(self, amount: float) -> bool:
        """Take it off if it is there."""
        with self._lock:
            self._refill()
            if self._left < amount:
                return False
            self._left -= amount
            return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._share)
        self._at = now
