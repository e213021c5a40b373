"""The GPU waits for its host: for data, or for launches? Several weak clues, each with its number."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyzer.fleet.limits import Limits
from stepscope.analyzer.fleet.shares import filled_by_power
from stepscope.analyzer.fleet.window import Window
from stepscope.core.analysis import Evidence
from stepscope.core.causes import Cause, Reason

_STOPPED = 0.1
_DISK_WAIT = 0.2
_ASLEEP, _AWAKE = 0.3, 0.7
"""Of the time without kernels, CPUs in use by the process: a thread that launches never sleeps, one that waits for a
batch does."""
_DENSE = 0.5
_TOLD_BY_POWER = 0.2
"""Busy share from which power tells how well kernels fill the GPU: under it a few watts decide."""
_CERTAIN = 6.0
"""Twice the weight of clues that leaves nothing to ask for: two strong ones, or a strong and a weak one."""


@dataclass(frozen=True, slots=True)
class _Clue:
    cause: Cause
    weight: float
    evidence: Evidence
    reason: Reason | None = None


def judge_host(window: Window, busy: float, limits: Limits) -> tuple[Cause, tuple[Reason, ...], list[Evidence], float]:
    """Cause, its reasons, what speaks for it, and how sure that is (0.25..1).

    Without any clue, or with as much for as against, the evidence is insufficient.
    """
    clues = _clues(window, busy, limits)
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


def _clues(window: Window, busy: float, limits: Limits) -> list[_Clue]:
    host = window.host
    clues = []
    if host.stopped_cpus is not None and host.stopped_cpus >= _STOPPED:
        evidence = Evidence("stopped_cpus", host.stopped_cpus, "", _STOPPED)
        clues.append(_Clue(Cause.HOST_BOUND, 3.0, evidence, Reason.CPU_LIMITED))
    if host.data_wait is not None and host.data_wait >= limits.named_loss:
        evidence = Evidence("data_wait_ratio", host.data_wait, "ratio", limits.named_loss)
        clues.append(_Clue(Cause.DATA_LOADING, 6.0, evidence, Reason.STARVED))
    if host.io_wait is not None and host.io_wait >= _DISK_WAIT:
        evidence = Evidence("io_wait_ratio", host.io_wait, "ratio", _DISK_WAIT)
        clues.append(_Clue(Cause.DATA_LOADING, 2.0, evidence, Reason.STARVED))
    if host.cpus is not None and busy < 1:
        # a thread that waits for the device polls: only what is over that is the host's own work
        own = max(0.0, host.cpus - busy) / (1 - busy)
        if own <= _ASLEEP:
            clues.append(_Clue(Cause.DATA_LOADING, 2.0, Evidence("process_cpus_while_empty", own, "", _ASLEEP)))
        elif own >= _AWAKE:
            clues.append(_Clue(Cause.HOST_BOUND, 2.0, Evidence("process_cpus_while_empty", own, "", _AWAKE)))
    clues += _kernel_clues(window, busy, limits)
    if window.bursts is not None and window.mean.pcie_transmit is not None:
        # pauses of whole samples are no slow launches; unless what went to the host is known, they may be checkpoints
        evidence = Evidence("empty_samples_ratio", window.bursts.empty, "ratio")
        clues.append(_Clue(Cause.DATA_LOADING, 1.0, evidence, Reason.BURSTY if window.bursts.period_seconds else None))
    return clues


def _kernel_clues(window: Window, busy: float, limits: Limits) -> list[_Clue]:
    """Large kernels keep the queue full, however slow the host launches; small ones are gone before the next comes."""
    mean = window.mean
    if mean.sm is not None and mean.engine:
        name, density = "sm_per_engine_ratio", mean.sm / mean.engine
    elif mean.tensor is not None and mean.dram is not None and busy > 0:
        name = "pipes_per_engine_ratio"
        density = min(1.0, max(mean.tensor / limits.compute_tensor, mean.dram / limits.compute_dram) / busy)
    elif busy >= _TOLD_BY_POWER and (filled := filled_by_power(window, busy, limits)) is not None:
        name, density = "filled_by_power_ratio", filled / busy
    else:
        return []
    if density >= _DENSE:
        return [_Clue(Cause.DATA_LOADING, 1.0, Evidence(name, density, "ratio", _DENSE))]
    if density <= limits.small_kernels:
        return [_Clue(Cause.HOST_BOUND, 1.5, Evidence(name, density, "ratio", limits.small_kernels))]
    return []
