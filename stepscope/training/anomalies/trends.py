"""Detectors for trends over many steps: memory growth and changes of the step time.

Memory growth: the minimum of each block of samples is kept; when there are many blocks, neighbours are merged, so that
slow leaks are found too and nothing is forgotten. A test looks at the later two thirds, as every run grows while it
warms up: at least 95% of all pairs of blocks must have grown (Kendall's tau 0.9), and the growth (Theil-Sen slope) must
matter. Independent blocks pass it once in 10^8 tests; there are two tests per doubling of the run's length. A random
walk upwards, or a cache that fills for longer than the test looks back, counts as growth while it lasts.

Step time: medians of 16 steps are compared with those of the 8 blocks before. Two in a row must be on the same side,
by 5%, by twice the range of the medians before, and by 6 times the scatter of a median of independent steps. A few slow
steps change no median.
"""

from __future__ import annotations

from collections import deque

from stepscope.training.anomalies.detectors import Anomaly, median, median_and_sigma

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
