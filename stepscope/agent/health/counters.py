"""By how much did a counter grow in the last while? One that begins anew (the driver was reloaded) did not shrink."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_MOST_STEPS = 4096


class Sample(NamedTuple):
    """A value of one source.

    Attributes:
        value: as read.
        time_ns: when, ns since the epoch.
        source: who read it.
    """

    value: float
    time_ns: int
    source: str


class CounterWindow:
    """One counter over some time. Growth between two samples is spread evenly over the time between them."""

    def __init__(self, seconds: float) -> None:
        self._window_ns = int(seconds * 1e9)
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_MOST_STEPS)
        self._last: Sample | None = None

    def add(self, sample: Sample | None) -> bool:
        """Take the newest sample; whether it tells of growth: it is new, and there is one before it.

        A lower value, another source or a time before the last one begin anew.
        """
        last = self._last
        if sample is None or sample == last:
            return False
        self._last = sample
        restarts = last is None or sample.source != last.source or sample.value < last.value
        if last is None or restarts or sample.time_ns <= last.time_ns:
            self._steps.clear()
            return False
        if sample.value > last.value:
            self._steps.append((last.time_ns, sample.time_ns, sample.value - last.value))
        while self._steps and self._steps[0][1] <= sample.time_ns - self._window_ns:
            self._steps.popleft()
        return True

    @property
    def growth(self) -> float:
        """By how much it grew in the window that ends with the newest sample; 0 where nothing is known."""
        if self._last is None:
            return 0.0
        begin_ns = self._last.time_ns - self._window_ns
        return sum(
            amount * (end - max(begin, begin_ns)) / (end - begin)
            for begin, end, amount in self._steps
            if end > begin_ns
        )
