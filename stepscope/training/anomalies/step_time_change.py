"""Do steps take longer, or less long, from some step on?

Medians of 16 steps are compared with those of the 8 blocks before. Two in a row have to lie on the same side, by 5 %,
by twice the range of the medians before, and by 6 times what the median of independent steps scatters. A few slow
steps change no median.
"""

from __future__ import annotations

from collections import deque

from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.anomalies.robust import median, median_and_sigma

BLOCK_STEPS = 16
NUM_BEFORE = 8
NUM_NEEDED = 4
LEAST_RATIO = 0.05
SIGMAS = 6.0
RANGES = 2.0
_MEDIAN_SCATTER = 1.2533 / BLOCK_STEPS**0.5
"""Standard deviation of the median of a block / that of its steps, for normal noise."""


class StepTimeChange:
    """Looks at step times, one after another, in any unit.

    Args:
        least: a change that is never one, in that unit.
    """

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least
        self._block: list[float] = []
        self._before: deque[tuple[float, float]] = deque(maxlen=NUM_BEFORE)  # median, sigma of the steps
        self._changed: tuple[float, float] | None = None

    def see(self, duration: float) -> Anomaly | None:
        """The event that the next step makes known."""
        self._block.append(duration)
        if len(self._block) < BLOCK_STEPS:
            return None
        block, self._block = median_and_sigma(self._block), []
        if len(self._before) < NUM_NEEDED:
            self._before.append(block)
            return None
        usual, allowed = self._usual()
        change = block[0] - usual
        if abs(change) <= allowed:
            self._before += [block] if self._changed is None else [self._changed, block]
            self._changed = None
            return None
        earlier, self._changed = self._changed, block
        if earlier is None or (earlier[0] > usual) != (change > 0):
            return None
        self._before.clear()
        self._before += [earlier, block]
        self._changed = None
        limit = usual + (allowed if change > 0 else -allowed)
        return Anomaly("step_time_change", "step_ms", median([earlier[0], block[0]]), usual, limit)

    def _usual(self) -> tuple[float, float]:
        """Of the blocks before: the median of their medians, and by how much the next may differ."""
        medians = [middle for middle, _ in self._before]
        usual = median(medians)
        independent = SIGMAS * _MEDIAN_SCATTER * median([sigma for _, sigma in self._before])
        return usual, max(self._least, LEAST_RATIO * usual, RANGES * (max(medians) - min(medians)), independent)
