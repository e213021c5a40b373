"""Contradictions between GPU counters: profiling counters that are 0 because they stopped, stuck utilization.

Profiling counters can go silent: DCGM exports 0 after an Xid 31 or after weeks while the GPU works (NVIDIA/DCGM#303,
NVIDIA/dcgm-exporter#662, NVIDIA/gpu-monitoring-tools#189). A GPU that was busy cannot have an engine that was never
active, so one of the two values is wrong, and power decides which. Without an engine counter, zeros may be true: a
kernel that spins uses neither tensor cores nor memory. The utilization that nvidia-smi shows can also stick at 100% (a
latch in Blackwell's firmware) while no process holds the GPU.

Two ways to judge. `ContradictionWatch` compares all sources over several samples, because their values are averages
over different times and one sample proves nothing. `contradiction_of` judges a single dcgm-exporter page, whose values
are of one moment and whose zeros must never be read as idleness. `SilentCounters` keeps counters that were found silent
as missing until one of them counts again, also while the GPU is idle: unknown is never zero.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field

from stepscope.core.metrics.gpu import GPU, PROFILING_METRICS
from stepscope.core.metrics.readings import Collection, Finding, Labels, Missing, MissingReason

_NUM_SAMPLES = 10
"""In a row before it is said."""
_STUCK_RATIO = 0.95
_ASLEEP_RATIO = 0.01
_EMPTY_MEMORY_RATIO = 0.02
"""Share of the memory: whoever works holds more, also a process of another container, which is not listed."""
_UTILIZATION, _POWER, _POWER_LIMIT = GPU + "utilization_ratio", GPU + "power_watts", GPU + "power_limit_watts"
_MEMORY_USED, _MEMORY_TOTAL = GPU + "memory_used_bytes", GPU + "memory_total_bytes"
_PROCESSES = GPU + "processes"
_WATCHED_METRICS = frozenset(
    {_UTILIZATION, _POWER, _POWER_LIMIT, _MEMORY_USED, _MEMORY_TOTAL, _PROCESSES, *PROFILING_METRICS},
)
_GPU_LABELS = frozenset({"gpu", "uuid"})
_RESTART_AGENT = "restart this agent"
"""Beside what is missing: it reads NVML's counters itself, nv-hostengine does nothing there. The event that health
makes of a finding has its own."""


@dataclass(slots=True)
class SilentCounters:
    """GPUs whose counters were found silent. They are not believed until one of them moves, also while the GPU rests:
    unknown is never zero. Counters that are told no more are no silent ones."""

    _silent: dict[Labels, tuple[ZeroCounters, str]] = field(default_factory=dict)
    """Of each what was found, and what is said of it."""

    def __contains__(self, labels: Labels) -> bool:
        return labels in self._silent

    def observe(self, gpus: Mapping[Labels, Mapping[str, float]], silent: Set[Labels]) -> dict[Labels, str]:
        """What is to be said of those whose counters are not believed.

        Args:
            gpus: values of each GPU, by metric.
            silent: those of them whose counters were found silent now.
        """
        for labels, values in gpus.items():
            counters = [values[name] for name in PROFILING_METRICS if name in values]
            zeros = zeros_of(values) if labels in silent else None
            if zeros is not None:
                self._silent[labels] = zeros, zeros.silence
            elif any(counters) or not counters:
                self._silent.pop(labels, None)
            elif labels in self._silent:
                before, _ = self._silent[labels]
                self._silent[labels] = before, before.silence_since
        return {labels: self._silent[labels][1] for labels in gpus if labels in self._silent}

    def without(self, collection: Collection, advice: str) -> Collection:
        """The collection with these counters as missing.

        Args:
            collection: of the same GPUs, with all their readings.
            advice: what is to be done.
        """
        if not self._silent:
            return collection
        readings, missing = [], list(collection.missing)
        for reading in collection.readings:
            whole = tuple(pair for pair in reading.labels if pair[0] in _WHOLE)
            if reading.metric in PROFILING_METRICS and whole in self._silent:
                detail = f"{self._silent[whole][1]}; {advice}"
                missing.append(Missing(reading.metric, reading.labels, MissingReason.UNREADABLE, detail))
            else:
                readings.append(reading)
        return Collection(tuple(readings), tuple(missing), collection.findings)

    def forget_all_but(self, gpus: Container[Labels]) -> None:
        """Only these are still there."""
        self._silent = {labels: found for labels, found in self._silent.items() if labels in gpus}


@dataclass(slots=True)
class ContradictionWatch:
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
            for code, message in _contradictions_in(values):
                streak = streaks[code, labels] = self._streaks.get((code, labels), 0) + 1
                if code == SILENT and (streak >= _NUM_SAMPLES or labels in self._silent):
                    silent.add(labels)
                elif code != SILENT and streak >= _NUM_SAMPLES:
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
        return self._silent.without(collection, _RESTART_AGENT)


def _by_gpu(collection: Collection) -> dict[Labels, dict[str, float]]:
    """Values of whole GPUs; the processes of all kinds are added up."""
    gpus: dict[Labels, dict[str, float]] = {}
    for reading in collection.readings:
        if reading.metric not in _WATCHED_METRICS:
            continue
        further = {name for name, _ in reading.labels} - _GPU_LABELS
        if not further:
            gpus.setdefault(reading.labels, {})[reading.metric] = reading.value
        elif reading.metric == _PROCESSES and further == {"kind"}:
            labels = tuple(pair for pair in reading.labels if pair[0] != "kind")
            values = gpus.setdefault(labels, {})
            values[_PROCESSES] = values.get(_PROCESSES, 0.0) + reading.value
    return gpus


def _contradictions_in(values: Mapping[str, float]) -> list[tuple[str, str]]:
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
    is_empty = processes == 0 and used is not None and total is not None and used < _EMPTY_MEMORY_RATIO * total
    if busy >= _STUCK_RATIO and is_empty and not any(value > _ASLEEP_RATIO for value in counters):
        wrong.append(
            (
                "busy_without_process",
                f"{busy:.0%} utilisation, but no process holds the GPU: the driver's figure is stuck",
            )
        )
    return wrong


SILENT = "profiling_silent"
"""The finding's code."""
_WHOLE = frozenset({"gpu", "uuid"})
"""Labels of a GPU; instances have further ones."""
_ENGINE = (GPU + "graphics_engine_active_ratio", GPU + "sm_active_ratio")
ACTIVITY = (*_ENGINE, GPU + "tensor_active_ratio", GPU + "dram_active_ratio")
"""How active a GPU and its parts are."""
_BUSY_RATIO = 0.5
"""Utilisation over which some engine must have been active."""
_POWER_SHARE = 0.3
"""Of the limit: idle GPUs with a context draw up to a fifth (140 of 700 W on recorded H100s)."""
_POWER_WATTS = 200.0
"""The same where the limit is not known, as on a dcgm-exporter's default page. Above what any GPU draws idle, so that
small ones (T4: 70 W at most) are not judged by power there."""


@dataclass(frozen=True, slots=True)
class ZeroCounters:
    """What a GPU told while its engine was never active.

    Attributes:
        busy_ratio, power_watts, limit_watts: None where it is not known.
        others_count: another of its profiling counters moved, as bytes over PCIe do at rest, too.
    """

    busy_ratio: float | None
    power_watts: float | None
    limit_watts: float | None
    others_count: bool

    @property
    def may_work(self) -> bool:
        """Nothing says that it does not."""
        return self.busy_ratio is None or self.busy_ratio >= _BUSY_RATIO

    @property
    def draws(self) -> bool:
        """More power than at rest."""
        least = _POWER_SHARE * self.limit_watts if self.limit_watts else _POWER_WATTS
        return self.power_watts is not None and self.power_watts >= least

    @property
    def are_silent(self) -> bool:
        """The counters do not count: they cannot be 0."""
        return self.draws and self.may_work and not self.others_count

    @property
    def facts(self) -> list[str]:
        """Utilisation and power, in words."""
        facts = [] if self.busy_ratio is None else [f"{self.busy_ratio:.0%} utilisation"]
        return facts if self.power_watts is None else [*facts, f"{self.power_watts:.0f} W"]

    @property
    def sentence(self) -> str:
        """That they are 0, and at what."""
        which = "the engine's" if self.others_count else "all profiling"
        return f"{which} counters are 0 at {' and '.join(self.facts)}"

    @property
    def silence(self) -> str:
        """The line of the finding."""
        return f"{self.sentence}: they are not counting"

    @property
    def silence_since(self) -> str:
        """The same while the GPU does not work any more."""
        facts = ", ".join(self.facts)
        return f"all profiling counters were 0 when it last worked ({facts}); not known until they count"


def zeros_of(values: Mapping[str, float]) -> ZeroCounters | None:
    """None where the engine was active, or no counter of it is told.

    Args:
        values: of one GPU, by metric; with MIG the highest of its instances.
    """
    if any(values.get(name) for name in ACTIVITY) or not any(name in values for name in _ENGINE):
        return None
    busy, power, limit = (values.get(GPU + name) for name in ("utilization_ratio", "power_watts", "power_limit_watts"))
    return ZeroCounters(busy, power, limit, others_count=any(values.get(name) for name in PROFILING_METRICS))


RESTART_HOSTENGINE = "restart nv-hostengine"
"""What is to be done where the counters of a page do not count."""
_UTILIZATION_METRIC = GPU + "utilization_ratio"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two values that cannot both be.

    Attributes:
        code, message: of the finding.
        advice: what is to be done, beside what is missing; the event that health makes of the finding has its own.
        doubted: metrics that are not known therefore.
    """

    code: str
    message: str
    advice: str
    doubted: frozenset[str]

    @property
    def detail(self) -> str:
        """One line on what is missing therefore."""
        return f"{self.message}; {self.advice}"


def contradiction_of(values: Mapping[str, float]) -> Contradiction | None:
    """What cannot be of the zeros of the profiling counters. None where they may be true.

    Args:
        values: of one GPU, by metric; with MIG the highest of its instances. What is missing contradicts nothing.
    """
    zeros = zeros_of(values)
    if zeros is None or not zeros.may_work:
        return None
    if zeros.are_silent:
        return Contradiction(SILENT, zeros.silence, RESTART_HOSTENGINE, PROFILING_METRICS)
    if zeros.busy_ratio is None or zeros.draws:
        return None
    rests = zeros.power_watts is not None and zeros.limit_watts is not None
    if rests or zeros.others_count:
        of_limit = f" of {zeros.limit_watts:.0f} W" if rests else ""
        message = f"{zeros.sentence}{of_limit}: the GPU rests, the utilisation is stuck"
        return Contradiction("utilization_stuck", message, "reset the GPU", frozenset({_UTILIZATION_METRIC}))
    message = f"{zeros.sentence}: either they are not counting or the utilisation is stuck"
    advice = f"{RESTART_HOSTENGINE}, and reset the GPU where that changes nothing"
    return Contradiction("profiling_or_utilization_wrong", message, advice, PROFILING_METRICS | {_UTILIZATION_METRIC})
