"""How much may be used, and how long is it to wait for more? Pure: time is an argument, monotonic seconds."""

from __future__ import annotations


class Budget:
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
