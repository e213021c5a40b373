"""What was a GPU like in the last minutes? Samples, and rates of what is only counted; a bounded number of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stepscope.agent.fleet.sampling import Told
from stepscope.workflow.fleet_class import GpuFacts, Sample

KEPT_SECONDS = 300.0
_MOST_SAMPLES = 1200
_AT_REST = 0.01
_CLOCK_UP = 0.7
_SETTLED = 5
"""Samples at rest with clocks up, after which power says what that costs."""


class GpuHistory:
    """Samples of one GPU or MIG instance."""

    def __init__(self) -> None:
        self.facts = GpuFacts()
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._counted: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}
        self._rested = 0
        self._idle_watts: float | None = None

    @property
    def newest_ns(self) -> int:
        """Time of the newest sample; 0 without one."""
        return self._samples[-1].time_ns if self._samples else 0

    def add(self, told: Told) -> None:
        """One more sample, unless it is the last one again."""
        if told.newest_ns <= self.newest_ns:
            return
        self._count(told)
        sample = told.sample(self._rates)
        self._rest(sample)
        self.facts = told.facts(self._idle_watts)
        self._samples.append(sample)
        while sample.time_ns - self._samples[0].time_ns > KEPT_SECONDS * 1e9:
            self._samples.popleft()

    def last(self, seconds: float) -> Sequence[Sample]:
        """The samples of the last seconds before the newest."""
        since = self.newest_ns - seconds * 1e9
        return [sample for sample in self._samples if sample.time_ns > since]

    def _count(self, told: Told) -> None:
        """Rates of counters. They are read more seldom than the rest: the last rate stays until the next reading."""
        for name, (value, time_ns) in told.counters.items():
            before, before_ns = self._counted.get(name, (value, time_ns))
            self._counted[name] = value, time_ns
            if time_ns > before_ns and value >= before:
                self._rates[name] = (value - before) * 1e9 / (time_ns - before_ns)
        for name in self._rates.keys() - told.counters.keys():
            del self._rates[name], self._counted[name]

    def _rest(self, sample: Sample) -> None:
        """Learn what power a GPU at rest draws with clocks up; it lags a second behind, so the first are left out."""
        busy = max((share for share in (sample.engine, sample.utilization) if share is not None), default=None)
        highest = self.facts.clock_max_hertz
        is_up = sample.clock_hertz is not None and highest and sample.clock_hertz >= _CLOCK_UP * highest
        if busy is None or busy > _AT_REST or not is_up or sample.power_watts is None:
            self._rested = 0
            return
        self._rested += 1
        if self._rested > _SETTLED:
            self._idle_watts = min(sample.power_watts, self._idle_watts or sample.power_watts)
