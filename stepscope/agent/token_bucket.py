"""Token buckets: limits on requests, bytes and CPU seconds that refill with time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """Budget that refills with time; thread-safe.

    Args:
        burst: largest amount that can be spent at once.
        refill_per_second: amount that comes back each second.
    """

    def __init__(self, burst: float, refill_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._refill_per_second, self._clock = burst, refill_per_second, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def has_any(self) -> bool:
        """Whether anything is left; more may then be spent, which leaves a debt."""
        with self._lock:
            self._refill()
            return self._left > 0

    def spend(self, amount: float) -> None:
        """Subtract an amount that was used, also when less is left."""
        with self._lock:
            self._left -= amount

    def take(self, amount: float) -> bool:
        """Subtract an amount if so much is left; whether it was."""
        with self._lock:
            self._refill()
            if self._left < amount:
                return False
            self._left -= amount
            return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._refill_per_second)
        self._at = now


class PacingBucket:
    """Budget that may be overdrawn and computes how long to wait until the debt is paid; the caller passes the time.

    Args:
        start: amount at the start; default: full.
    """

    def __init__(self, max_amount: float, now: float, *, start: float | None = None) -> None:
        self._max_amount = max_amount
        self._left = max_amount if start is None else start
        self._at = now

    def use(self, amount: float) -> None:
        """Subtract an amount, also when less is left."""
        self._left -= amount

    def wait_seconds(self, per_second: float, now: float) -> float:
        """Seconds until the debt is paid, 0 without one; `per_second` is the refill rate since the last call."""
        self._left = min(self._left + (now - self._at) * per_second, self._max_amount)
        self._at = now
        return max(-self._left / per_second, 0.0)
