"""Detectors for a step's figures, and for trends over many steps. One event per episode.

| kind | event |
| --- | --- |
| `loss_spike` | loss above its median of 128 steps by 20 sigma and 20% at once, or by 6 sigma and 5% for 3 steps |
| `loss_not_finite` | loss is NaN or infinite |
| `gradient_explosion` | the same for a gradient norm's logarithm: 10 times the usual at once, 3 times for 3 steps |
| `gradient_not_finite` | a gradient norm is NaN or infinite without a loss scale, which would make that expected |
| `loss_scale_collapse` | loss scale below 1, or 256 times lower than within 1000 steps, after it has settled |
| `memory_growth` | a memory figure grows, block by block, over the later two thirds of the run |
| `step_time_change` | the median of 16 steps leaves that of the blocks before, twice in a row |

sigma is estimated from the median absolute deviation. An episode ends after 16 normal steps.

Rates of false alarms on noise: benchmarks/accuracy/anomaly_noise.py, and docs/explanation/accuracy.md for the figures.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

NUM_REMEMBERED = 128
NUM_NEEDED = 32
SIGMAS = (20.0, 6.0)
"""Above the median: at once, and for NUM_LASTING steps."""

NUM_LASTING = 3
NUM_IN_ORDER = 16
"""Steps in order that end an episode."""

LOSS_RATIO = (0.2, 0.05)
"""Smallest rise, relative to the loss, that is a spike however steady the loss was."""

EXPLOSION = (math.log(10.0), math.log(3.0))

SMALLEST_SCALE = 1.0
"""torch.amp.GradScaler's documentation: below 1, something is likely wrong."""

COLLAPSE_RATIO = 256.0
COLLAPSE_STEPS = 1000
NUM_TO_FIND_SCALE = 100
"""Steps without a fall after which the search that begins every run is over."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An anomaly in the figures of a training step, such as a loss spike.

    Attributes:
        kind: a kind of the table above.
        figure: name of the step's figure that is anomalous.
        value: its value; None when it is not a number. For memory_growth, bytes per step.
        usual: what it was before; None where nothing was known.
        limit: what it would have had to stay within; None where any value would have been too much.
    """

    kind: str
    figure: str
    value: float | None
    usual: float | None
    limit: float | None


class Detector(Protocol):
    """Anomaly detector of one figure, which sees its value step after step."""

    def see(self, value: float) -> Anomaly | None:
        """The event that the next value makes known."""


class AnomalyEpisodes:
    """Episodes of an anomaly: of several steps out of order, the first counts."""

    def __init__(self) -> None:
        self._num_in_order = NUM_IN_ORDER

    @property
    def is_open(self) -> bool:
        """Whether an open episode needs further steps."""
        return self._num_in_order < NUM_IN_ORDER

    def begins(self, is_out_of_order: bool) -> bool:
        """Whether this step begins an episode."""
        if not is_out_of_order:
            self._num_in_order += 1
            return False
        began, self._num_in_order = self._num_in_order >= NUM_IN_ORDER, 0
        return began


class NotFiniteDetector:
    """Anomaly detector for NaN or infinity."""

    def __init__(self, kind: str, figure: str) -> None:
        self._kind = kind
        self._figure = figure
        self._episodes = AnomalyEpisodes()

    def see(self, value: float) -> Anomaly | None:
        if self._episodes.begins(not math.isfinite(value)):
            return Anomaly(self._kind, self._figure, None, None, None)
        return None


class SpikeDetector:
    """Anomaly detector for spikes: a value very far above what is usual, or far for several steps; finite values only.

    Args:
        in_logarithms: whether ratios count instead of differences; what is not positive is passed over then.
        least_rise: least rise that counts at once, and least that counts when it lasts.
        least_ratio: the same as shares of the usual size.
    """

    def __init__(
        self,
        kind: str,
        figure: str,
        *,
        in_logarithms: bool = False,
        least_rise: tuple[float, float] = (0.0, 0.0),
        least_ratio: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._kind = kind
        self.figure = figure
        self._in_logarithms = in_logarithms
        self._least_rise = least_rise
        self._least_ratio = least_ratio
        self._baseline = RollingBaseline(NUM_REMEMBERED, NUM_NEEDED)
        self._episodes = AnomalyEpisodes()
        self._num_far = 0
        self._at_once = self._lasting = math.inf

    def see(self, value: float) -> Anomaly | None:
        level = value
        if self._in_logarithms and 0 < value < math.inf:
            level = math.log(value)
        elif self._in_logarithms or not math.isfinite(value):
            return None
        if level <= self._lasting:
            self._num_far = 0
            if self._episodes.is_open:
                self._episodes.begins(False)
            if self._baseline.add(level):
                self._set_limits()
            return None
        return self._far(value, level)

    def _far(self, value: float, level: float) -> Anomaly | None:
        self._num_far += 1
        is_event = (level > self._at_once or self._num_far >= NUM_LASTING) and self._episodes.begins(True)
        usual, limit = self._baseline.usual, self._at_once if level > self._at_once else self._lasting
        if self._num_far >= NUM_REMEMBERED:  # this is what is usual now
            self._baseline.clear()
            self._set_limits()
            self._num_far = 0
        return Anomaly(self._kind, self.figure, value, *self._back(usual, limit)) if is_event else None

    def _set_limits(self) -> None:
        baseline = self._baseline
        self._at_once, self._lasting = (
            baseline.usual + max(sigmas * baseline.sigma, least_rise, least_ratio * abs(baseline.usual))
            if baseline.is_known
            else math.inf
            for sigmas, least_rise, least_ratio in zip(SIGMAS, self._least_rise, self._least_ratio, strict=True)
        )

    def _back(self, *levels: float) -> list[float]:
        return [math.exp(level) for level in levels] if self._in_logarithms else list(levels)


class ScaleCollapseDetector:
    """Anomaly detector for a loss scale that falls and falls: gradients stay infinite, and small ones vanish."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()  # falling: the highest of the last steps is the first
        self._num_seen = 0
        self._num_without_fall = 0
        self._last = 0.0
        self._is_found = False
        self._episodes = AnomalyEpisodes()

    def see(self, value: float) -> Anomaly | None:
        if not math.isfinite(value):
            return None
        self._num_without_fall = 0 if value < self._last else self._num_without_fall + 1
        self._last = value
        if not self._is_found and self._num_without_fall >= NUM_TO_FIND_SCALE:
            self._is_found = True
            self._recent.clear()
        self._remember(value)
        highest = self._recent[0][1]
        limit = max(highest / COLLAPSE_RATIO, SMALLEST_SCALE) if self._is_found else SMALLEST_SCALE
        if self._episodes.begins(value < limit):
            return Anomaly("loss_scale_collapse", "loss_scale", value, highest, limit)
        return None

    def _remember(self, value: float) -> None:
        while self._recent and self._recent[-1][1] <= value:
            self._recent.pop()
        self._recent.append((self._num_seen, value))
        while self._recent[0][0] <= self._num_seen - COLLAPSE_STEPS:
            self._recent.popleft()
        self._num_seen += 1


def loss_spike_detector() -> SpikeDetector:
    """Anomaly detector for spikes of the loss."""
    return SpikeDetector("loss_spike", "loss", least_ratio=LOSS_RATIO)


def gradient_explosion_detector(figure: str) -> SpikeDetector:
    """Anomaly detector for spikes of a gradient norm."""
    return SpikeDetector("gradient_explosion", figure, in_logarithms=True, least_rise=EXPLOSION)


MAD_TO_SIGMA = 1.4826
"""Standard deviation of normal noise / its median absolute deviation."""

_TENTH_SIGMAS = 1.2816
"""How far above the median the highest tenth of normal noise begins, in standard deviations."""

_REFRESHED_EVERY = 32  # sorting the window costs some 30 us, so not at every step


class RollingBaseline:
    """Baseline of an anomaly detector: median and scatter of a figure's last values, a few steps old."""

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
        self._values.clear()
        self._num_left = self._at_least
        self.is_known = False


median = statistics.median_low


def median_and_sigma(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Baseline of an anomaly: median of at least one value, and standard deviation by the median distance to it."""
    middle = median(values)
    return middle, MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def median_and_upward_sigma(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Baseline of an anomaly: median and standard deviation, the larger by median distance and by the highest tenth.

    Noise that is skewed upwards, or takes few values, would seem quieter above than it is by its median distance alone.
    """
    in_order = sorted(values)
    middle = in_order[(len(in_order) - 1) // 2]
    sigma = MAD_TO_SIGMA * median([abs(value - middle) for value in in_order])
    return middle, max(sigma, (in_order[len(in_order) * 9 // 10] - middle) / _TENTH_SIGMAS)


NUM_BLOCKS = 32
FIRST_BLOCK = 16
LEAST_TAU = 0.9


class MemoryGrowthDetector:
    """Anomaly detector for the growth of one memory figure, as by a leak.

    The minimum of each block of samples is kept; when there are many blocks, neighbours are merged, so that slow leaks
    are found too and nothing is forgotten. A test looks at the later two thirds, as every run grows while it warms up:
    at least 95% of all pairs of blocks must have grown (Kendall's tau 0.9), and the growth (Theil-Sen slope) must
    matter. Independent blocks pass it once in 10^8 tests; there are two tests per doubling of the run's length. A
    random walk upwards, or a cache that fills for longer than the test looks back, counts as growth while it lasts.

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
NUM_BLOCKS_BEFORE = 8
NUM_BLOCKS_NEEDED = 4
LEAST_CHANGE_RATIO = 0.05
CHANGE_SIGMAS = 6.0
CHANGE_RANGES = 2.0
_MEDIAN_SCATTER = 1.2533 / BLOCK_STEPS**0.5
"""Standard deviation of the median of a block / that of its steps, for normal noise."""


class StepTimeChangeDetector:
    """Anomaly detector for changes of the step time, in any unit.

    Medians of 16 steps are compared with those of the 8 blocks before. Two in a row must be on the same side, by 5%, by
    twice the range of the medians before, and by 6 times the scatter of a median of independent steps. A few slow steps
    change no median.

    Args:
        least: a change that is never one, in that unit.
    """

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least
        self._block: list[float] = []
        self._before: deque[tuple[float, float]] = deque(maxlen=NUM_BLOCKS_BEFORE)  # median, sigma of the steps
        self._changed: tuple[float, float] | None = None

    def see(self, duration: float) -> Anomaly | None:
        """The event that the next step makes known."""
        self._block.append(duration)
        if len(self._block) < BLOCK_STEPS:
            return None
        block, self._block = median_and_sigma(self._block), []
        if len(self._before) < NUM_BLOCKS_NEEDED:
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
        independent = CHANGE_SIGMAS * _MEDIAN_SCATTER * median([sigma for _, sigma in self._before])
        return usual, max(
            self._least, LEAST_CHANGE_RATIO * usual, CHANGE_RANGES * (max(medians) - min(medians)), independent
        )
