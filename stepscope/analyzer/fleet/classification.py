"""Classification of a GPU by its window of samples, and of a job by its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepscope.analyzer.fleet.evidence import communicates, hang_evidence, judge_host, throttle_of, time_shares
from stepscope.analyzer.fleet.samples import (
    LIMITS,
    FleetThresholds,
    GpuFacts,
    GpuSample,
    HostUse,
    SampleWindow,
    sample_window,
)
from stepscope.core.documents.jobs import Counters, FleetClass, TimeShares
from stepscope.core.text.numbers import counted
from stepscope.core.text.wording import cause_phrase, reason_words
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Evidence, Reason

_TRUST = {Counters.SM: 0.9, Counters.PIPES: 0.7, Counters.POWER: 0.5, Counters.NONE: 0.5}
"""Highest confidence; benchmarks/fleet_class/accuracy.py measures how often each is right on recorded runs."""
_NO_CONFIDENCE = 0.0
"""Confidence without a claim."""
_CLEAR = 0.3
"""Distance of a share from its threshold at which confidence is full; at the threshold it is half."""
_STATE_WRITTEN = 1e9
"""Bytes to the host in one window from which it is a saved state and not logged figures."""
_ONE_WAY = 5.0
_HARDLY = 0.1

Classified = tuple[Cause, tuple[Reason, ...], float, list[Evidence]]
"""Cause, reasons, confidence, evidence."""


def classify_gpu(
    samples: Sequence[GpuSample],
    facts: GpuFacts | None = None,
    host: HostUse | None = None,
    limits: FleetThresholds = LIMITS,
) -> FleetClass:
    """Fleet class of one GPU over a window of samples in order of time, ideally 30 to 60 s of them.

    Raises:
        ValueError: there is no sample.
    """
    window = sample_window(samples, facts or GpuFacts(), host or HostUse(), limits)
    shares, counters = time_shares(window)
    cause, reasons, confidence, evidence = _classified(window, shares, counters)
    doubts = {
        "profiling_silent": window.is_silent,
        "utilization_stuck": window.is_stuck,
        "profiling_or_utilization_wrong": window.is_contradictory,
    }
    return FleetClass(
        cause,
        reasons,
        round(confidence, 2),
        _summary(cause, reasons, shares, evidence),
        (*evidence, *(Evidence(name, 1.0, "") for name, is_doubtful in doubts.items() if is_doubtful)),
        shares,
        counters,
        window.samples[0].time_ns,
        window.samples[-1].time_ns,
    )


def _classified(window: SampleWindow, shares: TimeShares | None, counters: Counters) -> Classified:
    if window.is_contradictory:
        return _unknown(window)
    hanging = hang_evidence(window)
    if hanging is not None:
        return Cause.HANG, (), hanging[0], hanging[1]
    idle = _idle(window, shares)
    if idle is not None:
        return idle
    throttled = throttle_of(window)
    if throttled is not None:
        return Cause.THROTTLED, (throttled[0],), _TRUST[Counters.SM], throttled[1]
    if shares is None:
        return _unknown(window)
    loss = _loss(window, shares, counters)
    if loss is not None:
        return loss
    if shares.computing is None:
        return _unknown(window)
    return _healthy(window, shares.computing, counters)


def _idle(window: SampleWindow, shares: TimeShares | None) -> Classified | None:
    """Idle class: no kernels, no copies, and power does not contradict."""
    limits = window.limits
    draws = window.power is not None and window.power >= limits.high_power
    held = (Reason.HELD,) if window.is_held else ()
    if shares is None:
        return None
    busy = shares.busy
    # a GPU held by a process that runs something all the time, however small; an idle one reports exactly 0
    never_rests = window.is_held and all((one.engine or 0.0) >= limits.tiny_busy for one in window.samples)
    if draws or busy >= limits.idle_busy or shares.copying >= limits.min_loss or never_rests:
        return None
    evidence = [Evidence("busy_ratio", busy, "ratio", limits.idle_busy)]
    if window.power is not None:
        evidence.append(Evidence("power_of_limit_ratio", window.power, "ratio", limits.high_power))
    # counters alone may be silent: power or the other source must agree for full confidence
    sources = (window.mean.engine, window.mean.utilization, window.power)
    return Cause.IDLE, held, 0.95 if sum(source is not None for source in sources) > 1 else 0.6, evidence


def _loss(window: SampleWindow, shares: TimeShares, counters: Counters) -> Classified | None:
    """Class of the largest loss, if it is above the threshold."""
    limits = window.limits
    host_side = shares.empty + shares.copying
    # unknown waiting may be all of the time with kernels
    largest_wait = shares.busy if shares.waiting is None else shares.waiting
    if shares.waiting is not None and shares.waiting > host_side:
        # nvidia-smi reports tiny kernels as longer than they are: a GPU that waits for peers computes in between
        computes_little = (shares.computing or 0.0) < _HARDLY * shares.busy
        if counters is Counters.POWER and computes_little and shares.busy < 1 - _HARDLY / 2:
            small = Evidence("busy_without_power_ratio", shares.waiting, "ratio", limits.min_loss)
            return Cause.HOST_BOUND, (Reason.TINY_KERNELS,), _TRUST[counters], [small]
        return _communication(window, shares.waiting, counters)
    if host_side < max(limits.min_loss, largest_wait):
        return None
    # that nothing runs is known without power, from utilisation
    trust = _trusted(max(_TRUST[counters], _TRUST[Counters.PIPES]), host_side, window)
    empty = Evidence("empty_ratio", host_side, "ratio", limits.min_loss)
    copied = _copied(window, shares)
    if copied is not None:
        cause, evidence = copied
        return cause, (), 0.8 * trust, [empty, evidence]
    cause, reasons, clues, agreement = judge_host(window, shares.busy)
    if cause is Cause.INSUFFICIENT_EVIDENCE:
        return cause, (), _NO_CONFIDENCE, [empty]
    return cause, reasons, trust * agreement, [empty, *clues]


def _communication(window: SampleWindow, waited: float, counters: Counters) -> Classified | None:
    limits = window.limits
    if waited < limits.min_loss:
        return None
    waiting = Evidence("waiting_ratio", waited, "ratio", limits.min_loss)
    if communicates(window) is None:
        # small kernels look the same, and no link counter can tell
        return Cause.INSUFFICIENT_EVIDENCE, (), _NO_CONFIDENCE, [waiting]
    evidence = [waiting]
    for name, value in (
        ("nvlink_bytes_per_second", window.mean.link_bytes),
        ("network_bytes_per_second", window.host.network_bytes),
    ):
        if value is not None and value >= limits.link_traffic:
            evidence.append(Evidence(name, value, "bytes_per_second", limits.link_traffic))
    return Cause.COMMUNICATION, (), _trusted(_TRUST[counters], waited, window), evidence


def _copied(window: SampleWindow, shares: TimeShares) -> tuple[Cause, Evidence] | None:
    """Whether the time without kernels went into copies; one-way copies to the host are a checkpoint."""
    limits = window.limits
    sent, received = window.mean.pcie_transmit, window.mean.pcie_receive
    if sent is None or received is None:
        return None
    written = sent * window.seconds
    if sent >= limits.copy_bytes and sent >= _ONE_WAY * received and written >= _STATE_WRITTEN:
        return Cause.CHECKPOINT, Evidence("pcie_transmit_bytes", written, "bytes", _STATE_WRITTEN)
    if shares.copying >= limits.min_loss and shares.copying >= 0.5 * shares.empty:
        return Cause.COPY, Evidence("copying_ratio", shares.copying, "ratio", limits.min_loss)
    return None


def _healthy(window: SampleWindow, share: float, counters: Counters) -> Classified:
    """Class without a large loss: what bounds the kernels, which computed for this share of the time."""
    limits = window.limits
    mean, computing = window.mean, max(share, limits.idle_busy)
    trust = _trusted(_TRUST[counters], 2 * limits.min_loss - (1 - share), window)
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


def _unknown(window: SampleWindow) -> Classified:
    known = [
        Evidence(name, value, "ratio")
        for name, value in (("utilization_ratio", window.mean.utilization), ("power_of_limit_ratio", window.power))
        if value is not None
    ]
    return Cause.INSUFFICIENT_EVIDENCE, (), _NO_CONFIDENCE, known


def _trusted(best: float, share: float, window: SampleWindow) -> float:
    """Confidence, lower near the threshold."""
    clear = min(1.0, max(0.0, (share - window.limits.min_loss) / _CLEAR))
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
    numbers = ", ".join(f"{share:.0%} {name}" for name, share in parts if share >= 0.01)
    return f"{words}: {numbers}"


_FAR_LESS = 1 / 3
"""Share of the longest wait below which a GPU does not wait for the same thing."""
_CAUSE_IF_AWAITED = {Cause.IDLE: Cause.HOST_BOUND} | dict.fromkeys(HEALTHY_CAUSES, Cause.STRAGGLER)
"""Cause of a GPU that others wait for, if it alone would be fine."""
_OFTEN = 0.5
_STILL = (Cause.HANG, Cause.IDLE, Cause.INSUFFICIENT_EVIDENCE)
_WORST_FIRST = (Counters.NONE, Counters.POWER, Counters.PIPES, Counters.SM)


def classify_job(classes: Sequence[FleetClass]) -> FleetClass:
    """Fleet class of a job from those of its GPUs; evidence refers to GPUs by their position.

    GPUs in a collective wait for the last one. So if some wait and others hardly do, the job's cause is that of the
    others, and `straggler` if they compute. If all wait, it is the communication itself, or a GPU of another node. The
    job hangs only if none of its GPUs works: one that saves its state for minutes is merely waited for.

    Raises:
        ValueError: there is no GPU.
    """
    if not classes:
        raise ValueError("a job without GPUs has no class")
    hanging = [at for at, one in enumerate(classes) if one.cause is Cause.HANG]
    working = [at for at, one in enumerate(classes) if one.cause not in _STILL]
    if hanging and not working:
        return _class_of_some(classes, Cause.HANG, hanging, ())
    waits = [one.shares.waiting for one in classes if one.shares is not None and one.shares.waiting is not None]
    if len(waits) == len(classes) and max(waits) >= LIMITS.min_loss:
        last = [at for at, wait in enumerate(waits) if wait <= _FAR_LESS * max(waits)]
        longest = Evidence("waiting_ratio", max(waits), "ratio", LIMITS.min_loss, [waits.index(max(waits))])
        if not last:
            return _class_of_some(classes, Cause.COMMUNICATION, range(len(classes)), (longest,))
        cause = _most([classes[at].cause for at in last])
        return _class_of_some(classes, _CAUSE_IF_AWAITED.get(cause, cause), last, (longest,))
    cause = _most([one.cause for one in classes])
    return _class_of_some(classes, cause, [at for at, one in enumerate(classes) if one.cause is cause], ())


def _most(causes: Sequence[Cause]) -> Cause:
    return Counter(causes).most_common(1)[0][0]


def _class_of_some(
    classes: Sequence[FleetClass], cause: Cause, which: Sequence[int], evidence: tuple[Evidence, ...]
) -> FleetClass:
    """Class of the job for which some of its GPUs stand."""
    chosen = [classes[at] for at in which]
    agreeing = [one for one in chosen if one.cause is cause] or chosen
    reasons: tuple[Reason, ...] = tuple(dict.fromkeys(reason for one in agreeing for reason in one.reasons))
    shares = _shares(classes)
    are_all = len(which) == len(classes)
    where = counted(len(classes), "GPU") if are_all else f"GPU {', '.join(map(str, which))} of {len(classes)}"
    return FleetClass(
        cause,
        () if cause is Cause.STRAGGLER else reasons,
        round(_mean([one.confidence for one in agreeing]) * (1.0 if len(chosen) > _OFTEN * len(classes) else 0.8), 2),
        f"{cause_phrase(cause)}: {where}",
        (Evidence("gpus", len(which), "", None, list(which)), *evidence, *agreeing[0].evidence),
        shares,
        min((one.counters for one in classes), key=_WORST_FIRST.index),
        min(one.begin_ns for one in classes),
        max(one.end_ns for one in classes),
    )


def _shares(classes: Sequence[FleetClass]) -> TimeShares | None:
    """Mean shares; None if those of one GPU are unknown."""
    known = [one.shares for one in classes if one.shares is not None]
    if len(known) < len(classes):
        return None
    computing = [share.computing for share in known if share.computing is not None]
    waiting = [share.waiting for share in known if share.waiting is not None]
    whole = len(computing) == len(waiting) == len(classes)
    return TimeShares(
        _mean(computing) if whole else None,
        _mean(waiting) if whole else None,
        _mean([share.copying for share in known]),
        _mean([share.empty for share in known]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
