"""What is usual for a figure, and how far does it scatter? From its last values, whatever a few of them are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

MAD_TO_SIGMA = 1.4826
"""Standard deviation of normal noise / its median absolute deviation."""

_TENTH_SIGMAS = 1.2816
"""How far above the median the highest tenth of normal noise begins, in standard deviations."""

_REFRESHED_EVERY = 32  # sorting the window costs some 30 us, so not at every step


class RollingBaseline:
    """Median and scatter of the last values of a figure, a few steps old.

    Args:
        window: how many values it remembers.
        at_least: how many it needs.
    """

    def __init__(self, window: int, at_least: int) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._at_least = self._num_left = at_least
        self.is_known = False
        self.usual = 0.0
        self.sigma = 0.0

    def add(self, value: float) -> bool:
        """Remember a finite value; whether `usual` and `sigma` have changed."""
        self._values.append(value)
        self._num_left -= 1
        if self._num_left > 0:
            return False
        self._num_left = _REFRESHED_EVERY
        self.usual, self.sigma = median_and_upward_sigma(self._values)
        self.is_known = True
        return True

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._num_left = self._at_least
        self.is_known = False


def median(values: Sequence[float] | deque[float]) -> float:
    """The middle one of at least one value, the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


def median_and_sigma(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """The median of at least one value, and the standard deviation that the median distance from it tells."""
    middle = median(values)
    return middle, MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def median_and_upward_sigma(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """The same, and the larger of what the median distance and the highest tenth tell.

    Noise that is skewed upwards, or takes few values, would seem quieter above than it is by its median distance alone.
    """
    in_order = sorted(values)
    middle = in_order[(len(in_order) - 1) // 2]
    sigma = MAD_TO_SIGMA * median([abs(value - middle) for value in in_order])
    return middle, max(sigma, (in_order[len(in_order) * 9 // 10] - middle) / _TENTH_SIGMAS)
