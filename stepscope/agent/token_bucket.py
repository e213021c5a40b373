"""Token buckets: limits on requests, bytes and CPU seconds that refill with time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TokenBucket:
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


class PacingBucket:
    """Fills up with time, and may be overdrawn: then it is to wait until that is made good."""

    def __init__(self, most: float, now: float, *, start: float | None = None) -> None:
        """
        Args:
            most: that it may hold.
            start: that it holds now; full unless told.
        """
        self._most = most
        self._left = most if start is None else start
        self._at = now

    def use(self, amount: float) -> None:
        """Take it away, also when less is left."""
        self._left -= amount

    def wait_seconds(self, per_second: float, now: float) -> float:
        """How long to wait until nothing is owed; 0 for not at all.

        Args:
            per_second: how fast it fills, from the last call on.
        """
        self._left = min(self._left + (now - self._at) * per_second, self._most)
        self._at = now
        return max(-self._left / per_second, 0.0)
