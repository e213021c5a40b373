"""Do two sources say of one GPU what cannot both be?

Profiling counters go silent: DCGM exports 0 after an Xid 31 or after weeks (NVIDIA/DCGM#303, dcgm-exporter#662), while
the GPU works. And the utilisation that nvidia-smi shows sticks at 100 % (a latch in Blackwell's firmware) while no
process holds the GPU. One sample proves nothing: the values are averages over different times. Counters that were
found silent are not believed until one of them counts, also while the GPU rests: unknown is never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.collectors.silent_counters import ACTIVITY, SILENT, SilentCounters, zeros_of
from stepscope.core.gpu_metrics import GPU, PROFILING_METRICS
from stepscope.core.readings import Collection, Finding, Labels

_SAMPLES = 10
"""In a row before it is said."""
_STUCK = 0.95
_ASLEEP = 0.01
_EMPTY = 0.02
"""Share of the memory: whoever works holds more, also a process of another container, which is not listed."""
_UTILIZATION, _POWER, _POWER_LIMIT = GPU + "utilization_ratio", GPU + "power_watts", GPU + "power_limit_watts"
_MEMORY_USED, _MEMORY_TOTAL = GPU + "memory_used_bytes", GPU + "memory_total_bytes"
_PROCESSES = GPU + "processes"
_LOOKED_AT = frozenset(
    {_UTILIZATION, _POWER, _POWER_LIMIT, _MEMORY_USED, _MEMORY_TOTAL, _PROCESSES, *PROFILING_METRICS},
)
_GPU_LABELS = frozenset({"gpu", "uuid"})
_ADVICE = "restart this agent"
"""Beside what is missing: it reads NVML's counters itself, nv-hostengine does nothing there. The event that health
makes of a finding has its own."""


@dataclass(slots=True)
class Contradictions:
    """Watches GPUs for what cannot be. Feed it every sample of all GPUs, whatever the source."""

    _streaks: dict[tuple[str, Labels], int] = field(default_factory=dict)
    _silent: SilentCounters = field(default_factory=SilentCounters)

    def observe(self, collection: Collection, time_ns: int) -> list[Finding]:
        """What has been contradicting itself for some samples.

        Args:
            collection: one sample of all GPUs.
            time_ns: now, ns since the epoch.
        """
        findings = []
        streaks: dict[tuple[str, Labels], int] = {}
        gpus = _by_gpu(collection)
        silent = set()
        for labels, values in gpus.items():
            for code, message in _wrong_of(values):
                streak = streaks[code, labels] = self._streaks.get((code, labels), 0) + 1
                if code == SILENT and (streak >= _SAMPLES or labels in self._silent):
                    silent.add(labels)
                elif code != SILENT and streak >= _SAMPLES:
                    findings.append(Finding(code, message, labels, time_ns))
        said = self._silent.observe(gpus, silent)
        findings += [Finding(SILENT, message, labels, time_ns) for labels, message in said.items()]
        self._streaks = streaks
        return findings

    def without_silent(self, collection: Collection) -> Collection:
        """The collection with the counters that were found silent as missing.

        Args:
            collection: of the same GPUs, with all their readings.
        """
        return self._silent.without(collection, _ADVICE)


def _by_gpu(collection: Collection) -> dict[Labels, dict[str, float]]:
    """Values of whole GPUs; the processes of all kinds are added up."""
    gpus: dict[Labels, dict[str, float]] = {}
    for reading in collection.readings:
        if reading.metric not in _LOOKED_AT:
            continue
        further = {name for name, _ in reading.labels} - _GPU_LABELS
        if not further:
            gpus.setdefault(reading.labels, {})[reading.metric] = reading.value
        elif reading.metric == _PROCESSES and further == {"kind"}:
            labels = tuple(pair for pair in reading.labels if pair[0] != "kind")
            values = gpus.setdefault(labels, {})
            values[_PROCESSES] = values.get(_PROCESSES, 0.0) + reading.value
    return gpus


def _wrong_of(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Code and line of each contradiction. What is not known contradicts nothing."""
    wrong = []
    busy, processes = values.get(_UTILIZATION), values.get(_PROCESSES)
    counters = [values[name] for name in ACTIVITY if name in values]
    if busy is None:
        return []
    zeros = zeros_of(values)
    if zeros is not None and zeros.are_silent:
        wrong.append((SILENT, zeros.silence))
    used, total = values.get(_MEMORY_USED), values.get(_MEMORY_TOTAL)
    is_empty = processes == 0 and used is not None and total is not None and used < _EMPTY * total
    if busy >= _STUCK and is_empty and not any(value > _ASLEEP for value in counters):
        wrong.append(
            (
                "busy_without_process",
                f"{busy:.0%} utilisation, but no process holds the GPU: the driver's figure is stuck",
            )
        )
    return wrong
