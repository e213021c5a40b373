"""Does a GPU hang: a kernel that polls for ever, at 100 % utilisation, without power, arithmetic or bytes?"""

from __future__ import annotations

from stepscope.analyzer.fleet.limits import Limits
from stepscope.analyzer.fleet.samples import Sample
from stepscope.analyzer.fleet.shares import FULL, is_counted, spins
from stepscope.analyzer.fleet.window import Window, share_of
from stepscope.core.analysis import Evidence

_ALWAYS = 0.99
_MOSTLY_COUNTED = 0.9
"""Share of samples with profiling counters that makes a window counted: the first of an agent has none."""
_LONG = 5
"""Times the least, after which there is no doubt."""


def hang_evidence(window: Window, limits: Limits) -> tuple[float, list[Evidence]] | None:
    """Confidence and evidence; None where it does not hang or nobody can tell.

    A collective whose peers never come keeps its kernel on the GPU. All that is known must agree: kernels all the time,
    power low and flat, no bytes over links, network or both ways over PCIe, no tensor or memory activity where that is
    counted.
    """
    if window.seconds < limits.hang_seconds or window.is_held is False:
        return None
    if not all(spins(one, limits) if is_counted(one) else _may_spin(one, limits) for one in window.samples):
        return None
    if _moves_bytes(window, limits):
        return None
    counted = share_of(window.samples, is_counted) >= _MOSTLY_COUNTED
    powers = [sample.power_watts for sample in window.samples if sample.power_watts is not None]
    limit = window.facts.power_limit_watts
    if not limit or not powers or window.power is None or window.power >= limits.high_power:
        return None
    spread = (max(powers) - min(powers)) / limit
    if spread > limits.hang_spread:
        return None
    evidence = [
        Evidence("busy_ratio", window.busy or 0.0, "ratio", FULL if counted else _ALWAYS),
        Evidence("power_of_limit_ratio", window.power, "ratio", limits.high_power),
        Evidence("power_spread_of_limit_ratio", spread, "ratio", limits.hang_spread),
        Evidence("seconds", window.seconds, "seconds", limits.hang_seconds),
    ]
    if counted:
        evidence.append(Evidence("tensor_active_ratio", window.mean.tensor or 0.0, "ratio", limits.spin_activity))
    evidence += [
        Evidence(name, rate, "bytes_per_second", limit)
        for name, rate, limit in _moved(window, limits)
        if rate is not None
    ]
    lasting = min(1.0, window.seconds / (_LONG * limits.hang_seconds))
    return (0.9 if counted else 0.6) * (0.4 + 0.6 * lasting), evidence


def _moves_bytes(window: Window, limits: Limits) -> bool:
    """Whether what is waited for is on its way: all-reduces over a slow network take minutes."""
    return any(rate is not None and rate >= limit for _, rate, limit in _moved(window, limits))


def _moved(window: Window, limits: Limits) -> list[tuple[str, float | None, float]]:
    """Name, bytes/s and how many of them are no hang, of each way to peers."""
    mean = window.mean
    both_ways = None
    if mean.pcie_transmit is not None and mean.pcie_receive is not None:
        both_ways = min(mean.pcie_transmit, mean.pcie_receive)
    return [
        ("nvlink_bytes_per_second", mean.link_bytes, limits.link_traffic),
        ("pcie_both_ways_bytes_per_second", both_ways, limits.hang_bytes),
        ("network_bytes_per_second", window.host.network_bytes, limits.hang_bytes),
    ]


def _may_spin(sample: Sample, limits: Limits) -> bool:
    """Whether kernels ran all the time, and nothing that is known says that they did any work."""
    busy = sample.busy
    if busy is None or busy < _ALWAYS or (sample.memory_busy or 0.0) > limits.idle_busy:
        return False
    return max(sample.tensor or 0.0, sample.dram or 0.0) <= limits.spin_activity
