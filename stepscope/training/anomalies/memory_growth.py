"""Does memory grow step by step, so that it will run out? A trend against noise, over ever longer times.

The least value of each block of samples is kept; when there are many blocks, neighbours become one, so that slow leaks
are seen too and nothing is forgotten. A test looks at the later two thirds, as every run grows while it warms up: at
least 95 % of all pairs of blocks have to have grown (Kendall's tau 0.9), and the growth has to matter. Blocks that do
not depend on each other pass it once in 10^8 tests; there are two tests in each doubling of the run's length.

A random walk upwards, or a cache that fills for longer than the test looks back, is growth while it lasts.
"""

from __future__ import annotations

from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.anomalies.robust import median

NUM_BLOCKS = 32
FIRST_BLOCK = 16
LEAST_TAU = 0.9


class MemoryGrowth:
    """Looks at samples of one memory figure.

    Args:
        least_bytes: growth that matters, within the time looked at.
        least_ratio: the same as a share of the memory held at its beginning.
    """

    def __init__(self, figure: str, *, least_bytes: float, least_ratio: float) -> None:
        self._figure = figure
        self._least_bytes = least_bytes
        self._least_ratio = least_ratio
        self._blocks: list[tuple[float, float]] = []  # step, bytes: where the least was
        self._block_size = FIRST_BLOCK
        self._open: list[tuple[float, float]] = []
        self._is_growing = False

    def see(self, step: int, num_bytes: float) -> Anomaly | None:
        """The event that a sample at the end of `step` makes known."""
        self._open.append((float(step), float(num_bytes)))
        if len(self._open) < self._block_size:
            return None
        self._blocks.append(_least(self._open))
        self._open.clear()
        if len(self._blocks) not in {NUM_BLOCKS * 3 // 4, NUM_BLOCKS}:
            return None
        event = self._test()
        if len(self._blocks) == NUM_BLOCKS:
            self._blocks = [_least(self._blocks[i : i + 2]) for i in range(0, NUM_BLOCKS, 2)]
            self._block_size *= 2
        return event

    def _test(self) -> Anomaly | None:
        later = self._blocks[len(self._blocks) // 3 :]
        slopes = [
            (b_bytes - a_bytes) / (b_step - a_step)
            for i, (a_step, a_bytes) in enumerate(later)
            for b_step, b_bytes in later[i + 1 :]
            if b_step > a_step
        ]
        if not slopes:
            return None
        tau = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
        per_step = median(slopes)  # Theil and Sen's
        (first_step, first_bytes), (last_step, _) = later[0], later[-1]
        least = max(self._least_bytes, self._least_ratio * first_bytes) / (last_step - first_step)
        was_growing, self._is_growing = self._is_growing, tau >= LEAST_TAU and per_step >= least
        if not self._is_growing or was_growing:
            return None
        return Anomaly("memory_growth", self._figure, per_step, 0.0, least)


def _least(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """The middle step of the samples, and their least bytes."""
    return (samples[0][0] + samples[-1][0]) / 2, min(num_bytes for _, num_bytes in samples)
