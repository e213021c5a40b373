"""Does a GPU's PCIe link lose packets, or run slower than it can?

An idle link runs at generation 1 to save power, so that only a GPU under load tells. The best that a link can do is
what GPU and slot can both do: NVML's maxima are that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.agent.config.health import Thresholds
from stepscope.agent.health.counters import CounterWindow, Sample
from stepscope.agent.health.observed import ObservedGpu
from stepscope.agent.health.signs import Evidence, Sign, above, bad, good
from stepscope.core.counting import counted
from stepscope.core.health import Action, Severity

_MINUTE = 60.0
_REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""In a minute, by generation (DcgmHealthWatch.cpp)."""
_FASTEST, _WIDEST = 6, 16
_MOST_DOUBLINGS = 8
"""Generations apart: each is twice as fast as the one before. More is no generation, but a wrong value."""
_SETTLED_NS = 5 * 10**9
"""How long a GPU must have been busy for its link to be at speed."""


def replay_limit(generation: int, lanes: int) -> int:
    """Replays that a link may have in a minute: 16 for generation 4 x16, 31 for 5 x16."""
    per_lane = _REPLAYS_PER_LANE.get(generation, _REPLAYS_PER_LANE[_FASTEST])
    return math.ceil(per_lane * lanes)


class PcieChecks:
    """One GPU's."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._replays = CounterWindow(_MINUTE)
        self._busy_since_ns: int | None = None

    def signs(self, gpu: ObservedGpu) -> Iterator[Sign]:
        """What the newest samples say."""
        values = gpu.values
        generation, width = values.get("pcie_link_generation"), values.get("pcie_link_width")
        best_generation = values.get("pcie_link_generation_max")
        best_width = values.get("pcie_link_width_max")
        replays = values.get("pcie_replays_total")
        if self._replays.add(replays) and replays is not None:
            yield self._losing(replays.time_ns, best_generation or generation, width or best_width)
        is_settled = self._is_settled(values.get("utilization_ratio"), generation)
        if generation and width and best_generation and best_width:
            is_best = generation.value >= best_generation.value and width.value >= best_width.value
            if is_best:
                yield good("pcie_downgrade", generation.time_ns)
            elif is_settled:
                doublings = min(max(generation.value - best_generation.value, -_MOST_DOUBLINGS), _MOST_DOUBLINGS)
                share = 2.0**doublings * width.value / best_width.value
                said = (
                    f"PCIe runs at generation {generation.value:.0f} x{width.value:.0f} under load; GPU and slot can "
                    f"both do {best_generation.value:.0f} x{best_width.value:.0f}"
                )
                evidence = Evidence(
                    Severity.WARNING, Action.CHECK_MECHANICALS, said, share, 1.0, "of the link's bandwidth"
                )
                yield bad("pcie_downgrade", generation.time_ns, evidence)

    def _losing(self, time_ns: int, generation: Sample | None, width: Sample | None) -> Sign:
        """By the best generation: the link's own drops while it rests. Where none is known, by the highest limit."""
        of_link = replay_limit(
            int(generation.value) if generation else _FASTEST, int(width.value) if width else _WIDEST
        )
        limit = of_link * self._thresholds.pcie_replays_factor
        growth = self._replays.growth
        said = (
            f"{counted(growth, 'packet')} had to be sent again over PCIe in a minute; "
            f"up to {limit:.0f} a minute is usual"
        )
        evidence = Evidence(Severity.WARNING, Action.CHECK_MECHANICALS, said, growth, limit, "replays per minute")
        return above("pcie_replays", time_ns, evidence, leave=limit / 2, strictly=True, is_new=True)

    def _is_settled(self, utilization: Sample | None, link: Sample | None) -> bool:
        """Whether the GPU had been under load for a while when its link was read."""
        if utilization is None or utilization.value < self._thresholds.busy_ratio:
            self._busy_since_ns = None
        elif self._busy_since_ns is None or utilization.time_ns < self._busy_since_ns:
            self._busy_since_ns = utilization.time_ns
        return (
            link is not None and self._busy_since_ns is not None and link.time_ns - self._busy_since_ns >= _SETTLED_NS
        )
