"""Evidence for a GPU's class: shares of its time, throttling, hangs, a slow host.

A communication kernel occupies a few SMs and polls until its peers arrive; kernels that compute fill most SMs. So
engine activity is the time with any kernel, and SM activity over it is the share of kernels that compute. Without SM
activity, tensor, memory and power stand in for it: a polling kernel uses none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyzer.fleet.samples import FleetThresholds, GpuSample, SampleWindow, share_of_samples
from stepscope.core.documents.jobs import Counters, TimeShares
from stepscope.core.vocabulary import Cause, Evidence, Reason

FULL = 0.9
"""Engine activity of a sample with kernels all the time."""
_MOSTLY_EMPTY = 0.5
_SPINS = 0.1
"""Share of samples with only polling kernels from which a GPU communicates, whatever its links report."""
_BOTH_WAYS = 4.0
"""Largest ratio of the two PCIe directions for traffic between peers."""


def time_shares(window: SampleWindow) -> tuple[TimeShares | None, Counters]:
    """Shares of a GPU's time by its counters, and which counters separate computing from waiting; None if unknown."""
    busy = window.busy
    if busy is None or window.is_contradictory:
        return None, Counters.NONE
    busy = min(1.0, busy)
    copying = min(1.0 - busy, sum(_copies(sample, window.limits) for sample in window.samples) / len(window.samples))
    empty = max(0.0, 1.0 - busy - copying)
    filled, counters = _filled(window, busy)
    if filled is None:
        return TimeShares(None, None, copying, empty), counters
    computing = busy if communicates(window) is False else min(busy, filled)
    return TimeShares(computing, busy - computing, copying, empty), counters


def _filled(window: SampleWindow, busy: float) -> tuple[float | None, Counters]:
    """Share of time in which kernels filled the GPU."""
    limits = window.limits
    mean = window.mean
    if mean.sm is not None and mean.engine is not None:
        spread = limits.compute_density - limits.waiting_density
        return max(0.0, (mean.sm - limits.waiting_density * busy) / spread), Counters.SM
    by_power = _filled_by_power(window, busy)
    if mean.tensor is not None and mean.dram is not None:
        by_pipes = max(mean.tensor / limits.compute_tensor, mean.dram / limits.compute_dram)
        return max(by_pipes, by_power or 0.0, mean.sm or 0.0), Counters.PIPES
    if by_power is not None:
        return by_power, Counters.POWER
    return None, Counters.NONE


def _filled_by_power(window: SampleWindow, busy: float) -> float | None:
    """`_filled` from power alone; None if that is unknown, or averaged over more than the window."""
    limits = window.limits
    if window.dynamic_power is None or window.seconds < limits.power_seconds:
        return None
    return max(0.0, window.dynamic_power - limits.waiting_power * busy) / (limits.compute_power - limits.waiting_power)


def is_polling(sample: GpuSample, limits: FleetThresholds) -> bool:
    """Whether a GPU sample contains only polling kernels; unknown counters are no sign of it."""
    if sample.engine is None or sample.tensor is None or sample.dram is None:
        return False
    return sample.engine >= FULL and sample.tensor <= limits.spin_activity and sample.dram <= limits.spin_activity


def _has_profiling_counters(sample: GpuSample) -> bool:
    return sample.engine is not None and sample.tensor is not None and sample.dram is not None


def communicates(window: SampleWindow) -> bool | None:
    """Whether a GPU communicates with others, by its counters; None without link counters."""
    limits = window.limits
    mean, network = window.mean, window.host.network_bytes
    if share_of_samples(window.samples, lambda sample: is_polling(sample, limits)) >= _SPINS:
        return True
    rates = [rate for rate in (mean.link_bytes, network) if rate is not None]
    if any(rate >= limits.link_traffic for rate in rates):
        return True
    if mean.pcie_transmit is None or mean.pcie_receive is None:
        return None
    low, high = sorted((mean.pcie_transmit, mean.pcie_receive))
    if low >= limits.peer_bytes and high <= _BOTH_WAYS * low:
        return True
    return False if mean.link_bytes is not None or window.facts.has_links is False else None


def _copies(sample: GpuSample, limits: FleetThresholds) -> float:
    """Share of time in which the host link was active without a kernel."""
    busy = sample.busy
    rate = max(sample.pcie_transmit or 0.0, sample.pcie_receive or 0.0)
    if busy is None or busy >= _MOSTLY_EMPTY:  # otherwise the copies may overlap kernels
        return 0.0
    return 1.0 - busy if rate >= limits.copy_bytes * (1.0 - busy) else 0.0


_BUSY = 0.5
MOST_CLOCK = 0.9
"""Part of its highest clock up to which a fault slows a GPU down."""
THROTTLE_KINDS = (
    (Reason.HEAT, frozenset({"hardware_thermal", "software_thermal"})),
    (Reason.HARDWARE_SLOWDOWN, frozenset({"hardware_slowdown", "hardware_power_brake"})),
    (Reason.POWER_CAP, frozenset({"software_power_cap"})),
    (Reason.CLOCK_SETTING, frozenset({"application_clocks", "sync_boost", "display_clocks"})),
)
"""Reasons in order of precedence, with the driver's names of them; NVML sets `hardware_slowdown` beside
`hardware_thermal`, so heat comes first."""
FAULTS = (Reason.HEAT, Reason.HARDWARE_SLOWDOWN)


def throttle_of(window: SampleWindow) -> tuple[Reason, list[Evidence]] | None:
    """Reason why a GPU is throttled by its samples, with evidence; None if it is not, or that is unknown.

    Hardware and thermal reasons count with any loss of clock. A power cap is normal under load (recorded: clocks down
    to 0.87 of their maximum), and a configured clock is a setting: both count only at low clocks.
    """
    limits = window.limits
    busy, clock, highest = window.busy, window.mean.clock_hertz, window.facts.clock_max_hertz
    known = [sample.throttle_reasons for sample in window.samples if sample.throttle_reasons is not None]
    if busy is None or busy < _BUSY or not known:
        return None
    ratio = clock / highest if clock is not None and highest else None
    for reason, names in THROTTLE_KINDS:
        share = sum(not names.isdisjoint(reasons) for reasons in known) / len(known)
        is_fault = reason in FAULTS
        least = MOST_CLOCK if is_fault else limits.clock_low
        if share < limits.throttle_share or (ratio is None and not is_fault) or (ratio is not None and ratio > least):
            continue
        evidence = [Evidence(f"throttled_by_{reason}_ratio", share, "ratio", limits.throttle_share)]
        if ratio is not None:
            evidence.append(Evidence("clock_of_highest_ratio", ratio, "ratio", least))
        return reason, evidence
    return None


_ALWAYS = 0.99
_MOSTLY_COUNTED = 0.9
"""Share of samples with profiling counters from which a window has them; an agent's first sample has none."""
_LONG = 5
"""Multiple of the minimum duration from which confidence is full."""


def hang_evidence(window: SampleWindow) -> tuple[float, list[Evidence]] | None:
    """Confidence and evidence of a hang by a GPU's counters alone; None if it does not hang or that is unknown.

    A collective whose peers never arrive keeps its kernel on the GPU. All known counters must agree: kernels all the
    time, low and constant power, no traffic over links, network or both PCIe directions, no tensor or memory activity.
    """
    limits = window.limits
    if window.seconds < limits.hang_seconds or window.is_held is False:
        return None
    if not all(
        is_polling(one, limits) if _has_profiling_counters(one) else _may_be_polling(one, limits)
        for one in window.samples
    ):
        return None
    moved = _moved(window)
    if any(rate is not None and rate >= limit for _, rate, limit in moved):  # all-reduces on slow networks take minutes
        return None
    counted = share_of_samples(window.samples, _has_profiling_counters) >= _MOSTLY_COUNTED
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
    evidence += [Evidence(name, rate, "bytes_per_second", most) for name, rate, most in moved if rate is not None]
    lasting = min(1.0, window.seconds / (_LONG * limits.hang_seconds))
    return (0.9 if counted else 0.6) * (0.4 + 0.6 * lasting), evidence


def _moved(window: SampleWindow) -> list[tuple[str, float | None, float]]:
    """Name, bytes/s and upper limit for a hang, of each path to peers."""
    limits = window.limits
    mean = window.mean
    both_ways = None
    if mean.pcie_transmit is not None and mean.pcie_receive is not None:
        both_ways = min(mean.pcie_transmit, mean.pcie_receive)
    return [
        ("nvlink_bytes_per_second", mean.link_bytes, limits.link_traffic),
        ("pcie_both_ways_bytes_per_second", both_ways, limits.hang_bytes),
        ("network_bytes_per_second", window.host.network_bytes, limits.hang_bytes),
    ]


def _may_be_polling(sample: GpuSample, limits: FleetThresholds) -> bool:
    """Whether kernels ran all the time, and no counter shows that they did work."""
    busy = sample.busy
    if busy is None or busy < _ALWAYS or (sample.memory_busy or 0.0) > limits.idle_busy:
        return False
    return max(sample.tensor or 0.0, sample.dram or 0.0) <= limits.spin_activity


_STOPPED = 0.1
_DISK_WAIT = 0.2
_ASLEEP, _AWAKE = 0.3, 0.7
"""CPUs used by the process in the time without kernels: a launching thread never sleeps, one that waits for a batch
does."""
_DENSE = 0.5
_MIN_BUSY_FOR_POWER = 0.2
"""Busy share from which power shows how well kernels fill the GPU; below it a few watts decide."""
_CERTAIN = 6.0
"""Twice the weight of clues at which agreement is full: two strong ones, or a strong and a weak one."""


@dataclass(frozen=True, slots=True)
class _Clue:
    cause: Cause
    weight: float
    evidence: Evidence
    reason: Reason | None = None


def judge_host(window: SampleWindow, busy: float) -> tuple[Cause, tuple[Reason, ...], list[Evidence], float]:
    """Fleet class: cause of a host too slow for its GPU, by counters: reasons, evidence, certainty (0.25..1).

    Without clues, or with equally strong ones for both causes, the evidence is insufficient.
    """
    clues = _clues(window, busy)
    weights = {cause: sum(clue.weight for clue in clues if clue.cause is cause) for cause in _EITHER}
    total = sum(weights.values())
    cause = max(weights, key=lambda either: weights[either])
    if 2 * weights[cause] == total:
        return Cause.INSUFFICIENT_EVIDENCE, (), [], 0.0
    agreement = weights[cause] / total * min(1.0, 0.5 + total / _CERTAIN)
    speaking = [clue for clue in clues if clue.cause is cause]
    reasons = tuple(dict.fromkeys(clue.reason for clue in speaking if clue.reason is not None))
    return cause, reasons, [clue.evidence for clue in speaking], agreement


_EITHER = (Cause.DATA_LOADING, Cause.HOST_BOUND)


def _clues(window: SampleWindow, busy: float) -> list[_Clue]:
    host = window.host
    clues = []
    if host.stopped_cpus is not None and host.stopped_cpus >= _STOPPED:
        evidence = Evidence("stopped_cpus", host.stopped_cpus, "", _STOPPED)
        clues.append(_Clue(Cause.HOST_BOUND, 3.0, evidence, Reason.CPU_LIMITED))
    if host.data_wait is not None and host.data_wait >= window.limits.min_loss:
        evidence = Evidence("data_wait_ratio", host.data_wait, "ratio", window.limits.min_loss)
        clues.append(_Clue(Cause.DATA_LOADING, 6.0, evidence, Reason.STARVED))
    if host.io_wait is not None and host.io_wait >= _DISK_WAIT:
        evidence = Evidence("io_wait_ratio", host.io_wait, "ratio", _DISK_WAIT)
        clues.append(_Clue(Cause.DATA_LOADING, 2.0, evidence, Reason.STARVED))
    if host.cpus is not None and busy < 1:
        # a thread that waits for the device polls: only more than that is the host's own work
        own = max(0.0, host.cpus - busy) / (1 - busy)
        if own <= _ASLEEP:
            clues.append(_Clue(Cause.DATA_LOADING, 2.0, Evidence("process_cpus_while_empty", own, "", _ASLEEP)))
        elif own >= _AWAKE:
            clues.append(_Clue(Cause.HOST_BOUND, 2.0, Evidence("process_cpus_while_empty", own, "", _AWAKE)))
    clues += _kernel_clues(window, busy)
    if window.bursts is not None and window.mean.pcie_transmit is not None:
        # pauses of whole samples are not slow launches; without PCIe counters they may be checkpoints
        evidence = Evidence("empty_samples_ratio", window.bursts.empty, "ratio")
        clues.append(_Clue(Cause.DATA_LOADING, 1.0, evidence, Reason.BURSTY if window.bursts.period_seconds else None))
    return clues


def _kernel_clues(window: SampleWindow, busy: float) -> list[_Clue]:
    """Clues from the size of kernels: large ones keep the queue full with a slow host, small ones do not."""
    limits = window.limits
    mean = window.mean
    if mean.sm is not None and mean.engine:
        name, density = "sm_per_engine_ratio", mean.sm / mean.engine
    elif mean.tensor is not None and mean.dram is not None and busy > 0:
        name = "pipes_per_engine_ratio"
        density = min(1.0, max(mean.tensor / limits.compute_tensor, mean.dram / limits.compute_dram) / busy)
    elif busy >= _MIN_BUSY_FOR_POWER and (filled := _filled_by_power(window, busy)) is not None:
        name, density = "filled_by_power_ratio", filled / busy
    else:
        return []
    if density >= _DENSE:
        return [_Clue(Cause.DATA_LOADING, 1.0, Evidence(name, density, "ratio", _DENSE))]
    if density <= limits.small_kernels:
        return [_Clue(Cause.HOST_BOUND, 1.5, Evidence(name, density, "ratio", limits.small_kernels))]
    return []
