"""What does a GPU spend its time on, by its counters? From a window of samples to a class with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analyzer.fleet.hanging import hang_evidence
from stepscope.analyzer.fleet.host_side import judge_host
from stepscope.analyzer.fleet.limits import LIMITS, Limits
from stepscope.analyzer.fleet.samples import GpuFacts, HostUse, Sample
from stepscope.analyzer.fleet.shares import communicates, divide
from stepscope.analyzer.fleet.throttling import throttle_of
from stepscope.analyzer.fleet.window import Window, window_of
from stepscope.core.analysis import Evidence
from stepscope.core.causes import Cause, Reason
from stepscope.core.fleet_class import Counters, FleetClass, TimeShares
from stepscope.core.words import cause_phrase, reason_words

_TRUST = {Counters.SM: 0.9, Counters.PIPES: 0.7, Counters.POWER: 0.5, Counters.NONE: 0.5}
"""Confidence at best; benchmarks/fleet_class_accuracy.py tells how often each is right on recorded runs."""
_NOT_KNOWN = 0.0
"""Confidence where nothing is claimed: there is no cause to be sure of."""
_CLEAR = 0.3
"""A share this much over (or under) what decides is clear; at the threshold half the confidence is left."""
_STATE_WRITTEN = 1e9
"""Bytes to the host in one window from which it is a state that is saved, not figures that are logged."""
_ONE_WAY = 5.0
_HARDLY = 0.1

Said = tuple[Cause, tuple[Reason, ...], float, list[Evidence]]
"""Cause, reasons, confidence, evidence."""


def classify(
    samples: Sequence[Sample], facts: GpuFacts | None = None, host: HostUse | None = None, limits: Limits = LIMITS
) -> FleetClass:
    """The class of one GPU over a window.

    Args:
        samples: in the order of their time, some seconds to minutes of them; 30 to 60 s tell most.
        facts: of the GPU's kind.
        host: of its processes, over the same window.
        limits: thresholds.

    Raises:
        ValueError: there is no sample.
    """
    window = window_of(samples, facts or GpuFacts(), host or HostUse(), limits)
    shares, counters = divide(window, limits)
    cause, reasons, confidence, evidence = _said(window, shares, counters, limits)
    return FleetClass(
        cause,
        reasons,
        round(confidence, 2),
        _summary(cause, reasons, shares, evidence),
        (*evidence, *_doubts(window)),
        shares,
        counters,
        window.samples[0].time_ns,
        window.samples[-1].time_ns,
        len(window.samples),
    )


def _said(window: Window, shares: TimeShares | None, counters: Counters, limits: Limits) -> Said:
    if window.is_contradictory:
        return _unknown(window)
    hanging = hang_evidence(window, limits)
    if hanging is not None:
        return Cause.HANG, (), hanging[0], hanging[1]
    idle = _idle(window, shares, limits)
    if idle is not None:
        return idle
    throttled = throttle_of(window, limits)
    if throttled is not None:
        return Cause.THROTTLED, (throttled[0],), _TRUST[Counters.SM], throttled[1]
    if shares is None:
        return _unknown(window)
    loss = _loss(window, shares, counters, limits)
    if loss is not None:
        return loss
    if shares.computing is None:
        return _unknown(window)
    return _healthy(window, shares.computing, counters, limits)


def _idle(window: Window, shares: TimeShares | None, limits: Limits) -> Said | None:
    """No kernels, no copies, and no power that speaks against it."""
    draws = window.power is not None and window.power >= limits.high_power
    held = (Reason.HELD,) if window.is_held else ()
    if shares is None:
        return None
    busy = shares.busy
    if draws or busy >= limits.idle_busy or shares.copying >= limits.named_loss or _never_rests(window, limits):
        return None
    evidence = [Evidence("busy_ratio", busy, "ratio", limits.idle_busy)]
    if window.power is not None:
        evidence.append(Evidence("power_of_limit_ratio", window.power, "ratio", limits.high_power))
    # counters alone may be silent: power or the other source must agree for full confidence
    sources = (window.mean.engine, window.mean.utilization, window.power)
    return Cause.IDLE, held, 0.95 if sum(source is not None for source in sources) > 1 else 0.6, evidence


def _never_rests(window: Window, limits: Limits) -> bool:
    """Whether a GPU that a process has runs something all the time, however small: one at rest tells exactly 0."""
    activity = [sample.engine for sample in window.samples]
    return bool(window.is_held) and all(busy is not None and busy >= limits.tiny_busy for busy in activity)


def _loss(window: Window, shares: TimeShares, counters: Counters, limits: Limits) -> Said | None:
    """The largest loss, where it is large enough to be named."""
    host_side = shares.empty + shares.copying
    # where waiting is not known, it may be all the time with kernels
    largest_wait = shares.busy if shares.waiting is None else shares.waiting
    if shares.waiting is not None and shares.waiting > host_side:
        if counters is Counters.POWER and _launches_little(shares):
            small = Evidence("busy_without_power_ratio", shares.waiting, "ratio", limits.named_loss)
            return Cause.HOST_BOUND, (Reason.TINY_KERNELS,), _TRUST[counters], [small]
        return _communication(window, shares.waiting, counters, limits)
    if host_side < max(limits.named_loss, largest_wait):
        return None
    # to see that nothing runs takes no power: utilisation tells
    trust = _trusted(max(_TRUST[counters], _TRUST[Counters.PIPES]), host_side, limits)
    empty = Evidence("empty_ratio", host_side, "ratio", limits.named_loss)
    copied = _copied(window, shares, limits)
    if copied is not None:
        cause, evidence = copied
        return cause, (), 0.8 * trust, [empty, evidence]
    cause, reasons, clues, agreement = judge_host(window, shares.busy, limits)
    if cause is Cause.INSUFFICIENT_EVIDENCE:
        return cause, (), _NOT_KNOWN, [empty]
    return cause, reasons, trust * agreement, [empty, *clues]


def _launches_little(shares: TimeShares) -> bool:
    """Whether what looks like waiting is tiny kernels, which nvidia-smi takes for more than they are: a GPU that waits
    for peers computes in between, and has hardly a pause."""
    return (shares.computing or 0.0) < _HARDLY * shares.busy and shares.busy < 1 - _HARDLY / 2


def _communication(window: Window, waited: float, counters: Counters, limits: Limits) -> Said | None:
    if waited < limits.named_loss:
        return None
    waiting = Evidence("waiting_ratio", waited, "ratio", limits.named_loss)
    if communicates(window, limits) is None:
        # small kernels look the same: without any figure of a link nobody knows
        return Cause.INSUFFICIENT_EVIDENCE, (), _NOT_KNOWN, [waiting]
    evidence = [waiting]
    for name, value in (
        ("nvlink_bytes_per_second", window.mean.link_bytes),
        ("network_bytes_per_second", window.host.network_bytes),
    ):
        if value is not None and value >= limits.link_traffic:
            evidence.append(Evidence(name, value, "bytes_per_second", limits.link_traffic))
    return Cause.COMMUNICATION, (), _trusted(_TRUST[counters], waited, limits), evidence


def _copied(window: Window, shares: TimeShares, limits: Limits) -> tuple[Cause, Evidence] | None:
    """Whether the time without kernels went into copies: one way to the host it is a state that is saved."""
    sent, received = window.mean.pcie_transmit, window.mean.pcie_receive
    if sent is None or received is None:
        return None
    written = sent * window.seconds
    if sent >= limits.copy_bytes and sent >= _ONE_WAY * received and written >= _STATE_WRITTEN:
        return Cause.CHECKPOINT, Evidence("pcie_transmit_bytes", written, "bytes", _STATE_WRITTEN)
    if shares.copying >= limits.named_loss and shares.copying >= 0.5 * shares.empty:
        return Cause.COPY, Evidence("copying_ratio", shares.copying, "ratio", limits.named_loss)
    return None


def _healthy(window: Window, share: float, counters: Counters, limits: Limits) -> Said:
    """No loss is large: what bounds the kernels, which computed for this share of the time?"""
    mean, computing = window.mean, max(share, limits.idle_busy)
    trust = _trusted(_TRUST[counters], 2 * limits.named_loss - (1 - share), limits)
    if mean.dram is not None:
        dram = mean.dram / computing
        tensor = (mean.tensor or 0.0) / computing
        vector = (mean.vector or 0.0) / computing
        evidence = [
            Evidence("dram_while_computing_ratio", dram, "ratio", limits.memory_dram),
            Evidence("tensor_while_computing_ratio", tensor, "ratio", limits.tensor_roof),
        ]
        if dram >= limits.memory_dram and dram / limits.dram_roof > tensor / limits.tensor_roof:
            return Cause.MEMORY_BOUND, (), trust, evidence
        if mean.sm is not None and mean.sm < limits.small_kernels and max(tensor, vector) < limits.small_kernels:
            small = Evidence("sm_active_ratio", mean.sm, "ratio", limits.small_kernels)
            return Cause.LATENCY_BOUND, (Reason.TINY_KERNELS,), trust, [small]
        return Cause.COMPUTE_BOUND, (), trust, evidence
    if mean.memory_busy is not None and mean.utilization:
        share = mean.memory_busy / mean.utilization
        cause = Cause.MEMORY_BOUND if share >= limits.memory_busy else Cause.COMPUTE_BOUND
        return cause, (), trust, [Evidence("memory_busy_while_busy_ratio", share, "ratio", limits.memory_busy)]
    return _unknown(window)


def _unknown(window: Window) -> Said:
    known = [
        Evidence(name, value, "ratio")
        for name, value in (("utilization_ratio", window.mean.utilization), ("power_of_limit_ratio", window.power))
        if value is not None
    ]
    return Cause.INSUFFICIENT_EVIDENCE, (), _NOT_KNOWN, known


def _doubts(window: Window) -> list[Evidence]:
    """What was not believed."""
    doubts = []
    if window.is_silent:
        doubts.append(Evidence("profiling_silent", 1.0, ""))
    if window.is_stuck:
        doubts.append(Evidence("utilization_stuck", 1.0, ""))
    if window.is_contradictory:
        doubts.append(Evidence("profiling_or_utilization_wrong", 1.0, ""))
    return doubts


def _trusted(best: float, share: float, limits: Limits) -> float:
    """Less than the best where the share is near the threshold."""
    clear = min(1.0, max(0.0, (share - limits.named_loss) / _CLEAR))
    return best * (0.5 + 0.5 * clear)


def _summary(cause: Cause, reasons: Sequence[Reason], shares: TimeShares | None, evidence: Sequence[Evidence]) -> str:
    words = f"{cause_phrase(cause)} ({', '.join(map(reason_words, reasons))})" if reasons else cause_phrase(cause)
    if shares is None or cause in (Cause.IDLE, Cause.INSUFFICIENT_EVIDENCE):
        numbers = ", ".join(f"{one.metric} {one.value:.3g}" for one in evidence)
        return f"{words}: {numbers}" if numbers else words
    parts = [("copying", shares.copying), ("empty", shares.empty)]
    if shares.computing is None or shares.waiting is None:
        parts.insert(0, ("busy", shares.busy))
    else:
        parts[:0] = [("computing", shares.computing), ("waiting", shares.waiting)]
    told = ", ".join(f"{share:.0%} {name}" for name, share in parts if share >= 0.01)
    return f"{words}: {told}"
