"""Contradictions between GPU counters: profiling counters that are 0 because they stopped, stuck utilization.

Profiling counters can go silent: DCGM exports 0 after an Xid 31 or after weeks while the GPU works (NVIDIA/DCGM#303,
NVIDIA/dcgm-exporter#662, NVIDIA/gpu-monitoring-tools#189). A GPU that was busy cannot have an engine that was never
active, so one of the two values is wrong, and power decides which. Without an engine counter, zeros may be true: a
kernel that spins uses neither tensor cores nor memory. The utilization that nvidia-smi shows can also stick at 100% (a
latch in Blackwell's firmware) while no process holds the GPU.

`ContradictionWatch` compares all sources over several samples, because their values are averages over different times
and one sample proves nothing. `contradiction_of` judges a single dcgm-exporter page, whose values are of one moment and
whose zeros must never be read as idleness. `SilentCounters` keeps counters that were found silent as missing until one
of them counts again, also while the GPU is idle: unknown is never zero.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field

from stepscope.core.metrics.gpu import PROFILING_METRICS
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, Missing, MissingReason, ReadingSelection

_NUM_SAMPLES = 10
"""In a row before a contradiction is reported."""
_STUCK_RATIO = 0.95
_ASLEEP_RATIO = 0.01
_EMPTY_MEMORY_RATIO = 0.02
"""Share of the memory: a GPU at work holds more, also for a process of another container, which is not listed."""
_UTILIZATION, _POWER, _POWER_LIMIT = GPU + "utilization_ratio", GPU + "power_watts", GPU + "power_limit_watts"
_MEMORY_USED, _MEMORY_TOTAL = GPU + "memory_used_bytes", GPU + "memory_total_bytes"
_PROCESSES = GPU + "processes"
_WATCHED_METRICS = frozenset(
    {_UTILIZATION, _POWER, _POWER_LIMIT, _MEMORY_USED, _MEMORY_TOTAL, _PROCESSES, *PROFILING_METRICS},
)
_WHOLE_GPU = frozenset({"gpu", "uuid"})
"""Labels of a whole GPU; instances have further ones."""
_RESTART_AGENT = "restart this agent"
"""Advice beside missing counters, which the agent reads from NVML itself, without nv-hostengine. The event that health
makes of a finding has its own."""


@dataclass(slots=True)
class SilentCounters:
    """GPUs whose profiling counters were found silent. Their zeros are ignored until a counter moves, also while idle:
    unknown is never zero. A GPU without any counter is not silent."""

    _silent: dict[Labels, tuple[ZeroCounters, str]] = field(default_factory=dict)
    """By GPU: what was found, and the sentence about it."""

    def __contains__(self, labels: Labels) -> bool:
        return labels in self._silent

    def observe(self, gpus: Mapping[Labels, Mapping[str, float]], silent: Set[Labels]) -> dict[Labels, str]:
        """The sentence about each GPU whose counters are ignored; `silent` are GPUs found silent now."""
        for labels, values in gpus.items():
            counters = [values[name] for name in PROFILING_METRICS if name in values]
            zeros = _zero_counters_of(values) if labels in silent else None
            if zeros is not None:
                self._silent[labels] = zeros, zeros.silence
            elif any(counters) or not counters:
                self._silent.pop(labels, None)
            elif labels in self._silent:
                before, _ = self._silent[labels]
                self._silent[labels] = before, before.silence_since
        return {labels: self._silent[labels][1] for labels in gpus if labels in self._silent}

    def without(self, collection: Collection, advice: str) -> Collection:
        """The collection, of the same GPUs with all their readings, with these counters as missing."""
        if not self._silent:
            return collection
        readings, missing = [], list(collection.missing)
        for reading in collection.readings:
            whole = tuple(pair for pair in reading.labels if pair[0] in _WHOLE_GPU)
            if reading.metric in PROFILING_METRICS and whole in self._silent:
                detail = f"{self._silent[whole][1]}; {advice}"
                missing.append(Missing(reading.metric, reading.labels, MissingReason.UNREADABLE, detail))
            else:
                readings.append(reading)
        return Collection(tuple(readings), tuple(missing), collection.findings)

    def forget_all_but(self, gpus: Container[Labels]) -> None:
        self._silent = {labels: found for labels, found in self._silent.items() if labels in gpus}


@dataclass(slots=True)
class ContradictionWatch:
    """Finds contradictions of GPU counters that last for some samples. Takes every sample of all GPUs and sources."""

    _streaks: dict[tuple[str, Labels], int] = field(default_factory=dict)
    _silent: SilentCounters = field(default_factory=SilentCounters)

    def observe(self, collection: Collection, time_ns: int) -> list[Finding]:
        """Findings about contradictions that have lasted for some samples, of which this is one of all GPUs."""
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
        messages = self._silent.observe(gpus, silent)
        findings += [Finding(SILENT, message, labels, time_ns) for labels, message in messages.items()]
        self._streaks = streaks
        return findings

    def without_silent(self, collection: Collection) -> Collection:
        """The collection, of the same GPUs with all their readings, with silent counters as missing."""
        return self._silent.without(collection, _RESTART_AGENT)


def _gpu_and_metric(metric: str, labels: Labels) -> tuple[Labels, str] | None:
    """The whole GPU and the metric of a reading that is watched; processes of all kinds are those of their GPU."""
    if metric not in _WATCHED_METRICS:
        return None
    further = {name for name, _ in labels} - _WHOLE_GPU
    if not further:
        return labels, metric
    is_of_kind = metric == _PROCESSES and further == {"kind"}
    return (tuple([pair for pair in labels if pair[0] != "kind"]), _PROCESSES) if is_of_kind else None


_WATCHED = ReadingSelection(_gpu_and_metric)


def _by_gpu(collection: Collection) -> dict[Labels, dict[str, float]]:
    """Values of whole GPUs; processes of all kinds are added up."""
    gpus: dict[Labels, dict[str, float]] = {}
    for labels, metrics, values, _ in _WATCHED.of(collection.readings):
        of_gpu = gpus.setdefault(labels, {})
        processes = of_gpu.get(_PROCESSES, 0.0)
        of_gpu.update(zip(metrics, values, strict=True))
        if _PROCESSES in metrics:
            counts = [value for metric, value in zip(metrics, values, strict=True) if metric == _PROCESSES]
            of_gpu[_PROCESSES] = processes + sum(counts)
    return gpus


def _contradictions_in(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Code and message of each contradiction. A missing value contradicts nothing."""
    found = []
    busy, processes = values.get(_UTILIZATION), values.get(_PROCESSES)
    counters = [values[name] for name in ACTIVITY if name in values]
    if busy is None:
        return []
    zeros = _zero_counters_of(values)
    if zeros is not None and zeros.are_silent:
        found.append((SILENT, zeros.silence))
    used, total = values.get(_MEMORY_USED), values.get(_MEMORY_TOTAL)
    is_empty = processes == 0 and used is not None and total is not None and used < _EMPTY_MEMORY_RATIO * total
    if busy >= _STUCK_RATIO and is_empty and not any(value > _ASLEEP_RATIO for value in counters):
        message = f"{busy:.0%} utilisation, but no process holds the GPU: the driver's figure is stuck"
        found.append(("busy_without_process", message))
    return found


SILENT = "profiling_silent"
"""The finding's code."""
_ENGINE = (GPU + "graphics_engine_active_ratio", GPU + "sm_active_ratio")
ACTIVITY = (*_ENGINE, GPU + "tensor_active_ratio", GPU + "dram_active_ratio")
"""Counters of how active a GPU and its parts are."""
_BUSY_RATIO = 0.5
"""Utilisation above which some engine must have been active."""
_POWER_SHARE = 0.3
"""Of the limit: idle GPUs with a context draw up to a fifth (140 of 700 W on recorded H100s)."""
_POWER_WATTS = 200.0
"""The same where the limit is not known, as on a dcgm-exporter's default page. Above what any GPU draws idle, so that
small ones (T4: 70 W at most) are not judged by power there."""


@dataclass(frozen=True, slots=True)
class ZeroCounters:
    """Values of a GPU whose engine counters are 0.

    Attributes:
        busy_ratio, power_watts, limit_watts: None where they are not known.
        others_count: another of its profiling counters moved, as bytes over PCIe also do in idle.
    """

    busy_ratio: float | None
    power_watts: float | None
    limit_watts: float | None
    others_count: bool

    @property
    def may_work(self) -> bool:
        """Whether no value says that it is idle."""
        return self.busy_ratio is None or self.busy_ratio >= _BUSY_RATIO

    @property
    def draws(self) -> bool:
        """Whether it draws more power than an idle GPU."""
        least = _POWER_SHARE * self.limit_watts if self.limit_watts else _POWER_WATTS
        return self.power_watts is not None and self.power_watts >= least

    @property
    def are_silent(self) -> bool:
        """Whether the counters have stopped: they cannot be 0."""
        return self.draws and self.may_work and not self.others_count

    @property
    def facts(self) -> list[str]:
        facts = [] if self.busy_ratio is None else [f"{self.busy_ratio:.0%} utilisation"]
        return facts if self.power_watts is None else [*facts, f"{self.power_watts:.0f} W"]

    @property
    def sentence(self) -> str:
        """The zeros, with utilisation and power."""
        which = "the engine's" if self.others_count else "all profiling"
        return f"{which} counters are 0 at {' and '.join(self.facts)}"

    @property
    def silence(self) -> str:
        """Message of the finding."""
        return f"{self.sentence}: they are not counting"

    @property
    def silence_since(self) -> str:
        """Message while the GPU is idle again."""
        facts = ", ".join(self.facts)
        return f"all profiling counters were 0 when it last worked ({facts}); not known until they count"


def _zero_counters_of(values: Mapping[str, float]) -> ZeroCounters | None:
    """Collectors: zero counters of one GPU; None where its engine was active, or has no counter.

    With MIG the highest values of its instances count.
    """
    if any(values.get(name) for name in ACTIVITY) or not any(name in values for name in _ENGINE):
        return None
    busy, power, limit = (values.get(GPU + name) for name in ("utilization_ratio", "power_watts", "power_limit_watts"))
    return ZeroCounters(busy, power, limit, others_count=any(values.get(name) for name in PROFILING_METRICS))


RESTART_HOSTENGINE = "restart nv-hostengine"
"""Advice where the counters of a page have stopped."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two values of a GPU's counters that cannot both be true.

    Attributes:
        advice: what to do, beside missing metrics; the event that health makes of the finding has its own.
        doubted: metrics that are missing because of it.
    """

    code: str
    message: str
    advice: str
    doubted: frozenset[str]

    @property
    def detail(self) -> str:
        return f"{self.message}; {self.advice}"


def contradiction_of(values: Mapping[str, float]) -> Contradiction | None:
    """Collectors: contradiction of zero profiling counters with utilisation or power; None where they may be true.

    With MIG the highest values of its instances count. A missing value contradicts nothing.
    """
    zeros = _zero_counters_of(values)
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
        return Contradiction("utilization_stuck", message, "reset the GPU", frozenset({_UTILIZATION}))
    message = f"{zeros.sentence}: either they are not counting or the utilisation is stuck"
    advice = f"{RESTART_HOSTENGINE}, and reset the GPU where that changes nothing"
    return Contradiction("profiling_or_utilization_wrong", message, advice, PROFILING_METRICS | {_UTILIZATION})
