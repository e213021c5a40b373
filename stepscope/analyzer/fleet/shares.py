"""Into what does a GPU's time divide: computing, waiting in communication, copying, nothing?

A communication kernel holds its few SMs and polls until its peers come; whatever computes fills most SMs. So engine
activity says how long any kernel ran, and SM activity how much of that was the filling kind. Where SM activity is not
known, tensor, memory and power stand for it: a kernel that polls uses none of them.
"""

from __future__ import annotations

from stepscope.analyzer.fleet.limits import Limits
from stepscope.analyzer.fleet.samples import Sample
from stepscope.analyzer.fleet.window import Window, share_of
from stepscope.core.fleet_class import Counters, TimeShares

FULL = 0.9
"""Engine activity of a sample in which kernels ran all the time."""
_MOSTLY_EMPTY = 0.5
_SPINS = 0.1
"""Share of samples that only polled, from which a GPU communicates, whatever its links say."""
_BOTH_WAYS = 4.0
"""Traffic over PCIe is a peer's when neither direction is more than this many times the other."""


def divide(window: Window, limits: Limits) -> tuple[TimeShares | None, Counters]:
    """The shares, and by what computing was told from waiting; None where nothing says whether kernels ran."""
    busy = window.busy
    if busy is None or window.is_contradictory:
        return None, Counters.NONE
    busy = min(1.0, busy)
    copying = min(1.0 - busy, _copying(window, limits))
    empty = max(0.0, 1.0 - busy - copying)
    filled, counters = _filled(window, busy, limits)
    if filled is None:
        return TimeShares(None, None, copying, empty), counters
    computing = busy if communicates(window, limits) is False else min(busy, filled)
    return TimeShares(computing, busy - computing, copying, empty), counters


def _filled(window: Window, busy: float, limits: Limits) -> tuple[float | None, Counters]:
    """Share of time in which kernels filled the GPU."""
    mean = window.mean
    if mean.sm is not None and mean.engine is not None:
        spread = limits.compute_density - limits.waiting_density
        return max(0.0, (mean.sm - limits.waiting_density * busy) / spread), Counters.SM
    by_power = filled_by_power(window, busy, limits)
    if mean.tensor is not None and mean.dram is not None:
        by_pipes = max(mean.tensor / limits.compute_tensor, mean.dram / limits.compute_dram)
        return max(by_pipes, by_power or 0.0, mean.sm or 0.0), Counters.PIPES
    if by_power is not None:
        return by_power, Counters.POWER
    return None, Counters.NONE


def filled_by_power(window: Window, busy: float, limits: Limits) -> float | None:
    """The same by power; None where that is not known, or the window is too short to have a power of its own."""
    if window.dynamic_power is None or window.seconds < limits.power_seconds:
        return None
    return max(0.0, window.dynamic_power - limits.waiting_power * busy) / (limits.compute_power - limits.waiting_power)


def spins(sample: Sample, limits: Limits) -> bool:
    """Whether a sample saw nothing but kernels that poll. Unknown counters are no sign of it."""
    if sample.engine is None or sample.tensor is None or sample.dram is None:
        return False
    return sample.engine >= FULL and sample.tensor <= limits.spin_activity and sample.dram <= limits.spin_activity


def is_counted(sample: Sample) -> bool:
    """Whether profiling counters say what ran."""
    return sample.engine is not None and sample.tensor is not None and sample.dram is not None


def communicates(window: Window, limits: Limits) -> bool | None:
    """Whether the GPU talks to others; None where no link tells."""
    mean, network = window.mean, window.host.network_bytes
    if share_of(window.samples, lambda sample: spins(sample, limits)) >= _SPINS:
        return True
    told = [rate for rate in (mean.link_bytes, network) if rate is not None]
    if any(rate >= limits.link_traffic for rate in told):
        return True
    if mean.pcie_transmit is None or mean.pcie_receive is None:
        return None
    low, high = sorted((mean.pcie_transmit, mean.pcie_receive))
    if low >= limits.peer_bytes and high <= _BOTH_WAYS * low:
        return True
    return False if mean.link_bytes is not None or window.facts.has_links is False else None


def _copying(window: Window, limits: Limits) -> float:
    """Share of time in which the host's link worked and no kernel ran."""
    return sum(_copies(sample, limits) for sample in window.samples) / len(window.samples)


def _copies(sample: Sample, limits: Limits) -> float:
    busy = sample.busy
    rate = max(sample.pcie_transmit or 0.0, sample.pcie_receive or 0.0)
    if busy is None or busy >= _MOSTLY_EMPTY:  # else the bytes may have come beside kernels
        return 0.0
    return 1.0 - busy if rate >= limits.copy_bytes * (1.0 - busy) else 0.0
