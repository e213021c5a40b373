"""History of the last minutes: samples of each GPU, joined from all sources, and rates of the processes on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from math import inf

from stepscope.agent.polling import STALE_SECONDS, SourceState
from stepscope.analyzer.fleet import GpuFacts, GpuSample, HostUse
from stepscope.analyzer.fleet.samples import SAMPLE_FIELDS, VECTOR_METRICS, largest_known
from stepscope.collectors.host.cgroups import cgroup_with_parents
from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.hardware.gpu_catalogue import board_power_watts
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import CGROUP, GPU, HOST, PROCESS, Labels, ReadingSelection, labels_of

_STALE_NS = int(STALE_SECONDS * 1e9)
_FACTS_AND_SUMS = (
    "power_limit_watts",
    "sm_clock_max_hertz",
    "memory_total_bytes",
    "mig_enabled",
    *VECTOR_METRICS,
    "nvlink_transmit_bytes_per_second",
    "nvlink_receive_bytes_per_second",
    "nvlink_data_bytes_per_second",
)
"""Metrics that a GPU has once, and that are no fields of a sample."""
_NAMES = {GPU + metric: metric for metric in (*SAMPLE_FIELDS, *_FACTS_AND_SUMS)}
_DIRECTIONS = ("transmit", "receive")
_COUNTERS = frozenset(
    f"{GPU}{link}_{direction}_bytes_total" for link in ("nvlink", "pcie") for direction in _DIRECTIONS
)
_INFO, _REASON, _PROCESSES, _LINKS = (GPU + name for name in ("info", "throttle_reason", "processes", "nvlink_links"))
_LABEL_OF = {_INFO: "name", _REASON: "reason", _LINKS: "state", _PROCESSES: ""}
"""Labels that say what such a reading is of."""


@dataclass(slots=True)
class GpuValues:
    """Newest values of one GPU or MIG instance for its fleet class; of what two sources report, the first counts.

    Attributes:
        values: of metrics that it has once, by name without prefix.
        counters: bytes since the driver was loaded and when they were read, by name.
        reasons: throttle reasons that hold; None if no source reports any.
        num_processes, num_links: None if no source reports them.
        processes_by: the source that counted the processes.
    """

    device: Device
    values: dict[str, float] = field(default_factory=dict)
    counters: dict[str, tuple[float, int]] = field(default_factory=dict)
    reasons: set[str] | None = None
    num_processes: float | None = None
    num_links: float | None = None
    processes_by: str = ""
    name: str = ""
    newest_ns: int = 0

    def facts(self, idle_watts: float | None) -> GpuFacts:
        """Facts of the device that do not change."""
        limit = self.values.get("power_limit_watts") or board_power_watts(self.name)
        links = None if self.num_links is None else self.num_links > 0
        return GpuFacts(
            self.name,
            limit,
            self.values.get("sm_clock_max_hertz"),
            self.values.get("memory_total_bytes"),
            idle_watts,
            links,
        )

    def sample(self, rates: Mapping[str, float]) -> GpuSample:
        """The newest sample; `rates` of counters (bytes/s by name) are for what no source reports as a rate."""
        fields = {name: self.values.get(metric) for metric, name in SAMPLE_FIELDS.items()}
        for direction in _DIRECTIONS:
            if fields[f"pcie_{direction}"] is None:
                fields[f"pcie_{direction}"] = rates.get(f"pcie_{direction}_bytes_total")
        now = largest_known(self.values, [f"nvlink_{direction}_bytes_per_second" for direction in _DIRECTIONS])
        if now is None:
            now = largest_known(rates, [f"nvlink_{direction}_bytes_total" for direction in _DIRECTIONS])
        both = self.values.get("nvlink_data_bytes_per_second")
        return GpuSample(
            self.newest_ns,
            throttle_reasons=None if self.reasons is None else _one_of(frozenset(self.reasons)),
            vector=largest_known(self.values, VECTOR_METRICS),
            link_bytes=both / 2 if now is None and both is not None else now,
            num_processes=self.num_processes,
            **fields,
        )


@lru_cache(maxsize=256)
def _one_of(reasons: frozenset[str]) -> frozenset[str]:
    """The first of equal sets: minutes of samples have few."""
    return reasons


def gpu_values_by_device(states: Sequence[SourceState], until_ns: float = inf) -> dict[Device, GpuValues]:
    """Newest values of each GPU for its fleet class; of one that is split, of its MIG instances instead.

    Args:
        states: the sources, in the order of their trust.
        until_ns: newer values were read before the clock was set back, and are left out.
    """
    join = DeviceJoin()
    found: dict[Device, GpuValues] = {}
    for state in states:
        if state.collected_ns is not None:
            _add_source(found, state, join.source(state.collection), state.collected_ns - _STALE_NS, until_ns)
    split = {device.index for device in found if device.instance}
    return {
        device: values
        for device, values in found.items()
        if device.instance or not (values.values.get("mig_enabled") or device.index in split)
    }


def _use_of_gpu(metric: str, labels: Labels) -> tuple[Device, str] | None:
    """The device of a reading that fleet classes have once, and its name there."""
    device = device_of(labels) if metric in _NAMES else None
    return None if device is None else (device, _NAMES[metric])


def _other_use_of_gpu(metric: str, labels: Labels) -> tuple[Device, tuple[str, str]] | None:
    """The device of another reading that fleet classes need, the metric, and what its labels say."""
    device = device_of(labels) if metric in _LABEL_OF or metric in _COUNTERS else None
    if device is None:
        return None
    label = _label(labels, _LABEL_OF.get(metric, ""))
    return None if metric == _LINKS and label != "up" else (device, (metric, label))


_VALUES, _OTHERS = ReadingSelection(_use_of_gpu), ReadingSelection(_other_use_of_gpu)


def _add_source(
    found: dict[Device, GpuValues],
    state: SourceState,
    first: Callable[[Device], Device],
    oldest_ns: int,
    until_ns: float,
) -> None:
    """Add the values of one source that are neither older nor newer than these times."""

    def of(named: Device) -> GpuValues:
        device = first(named)
        return found.get(device) or found.setdefault(device, GpuValues(device))

    for named, names, values, time_ns in _VALUES.of(state.collection.readings):
        if oldest_ns < time_ns <= until_ns:
            into = of(named)
            into.values = {**dict(zip(names, values, strict=True)), **into.values}
            into.newest_ns = max(into.newest_ns, time_ns)
    for named, uses, values, time_ns in _OTHERS.of(state.collection.readings):
        if oldest_ns < time_ns <= until_ns:
            into = of(named)
            for (metric, label), value in zip(uses, values, strict=True):
                _add_other(into, metric, label, value, time_ns, state.name)


def _add_other(into: GpuValues, metric: str, label: str, value: float, time_ns: int, source: str) -> None:
    if metric == _REASON:
        into.reasons = into.reasons or set()
        if value:
            into.reasons.add(label)
    elif metric in _COUNTERS:
        into.counters.setdefault(metric.removeprefix(GPU), (value, time_ns))
    elif metric == _INFO:
        into.name = into.name or label
    elif metric == _LINKS:
        into.num_links = value
    elif into.processes_by in ("", source):
        into.processes_by = source
        into.num_processes = (into.num_processes or 0.0) + value


def _label(labels: Labels, name: str) -> str:
    return next((value for label, value in labels if label == name), "")


KEPT_SECONDS = 300.0
_MAX_SAMPLES = 1200
_MAX_IDLE_RATIO = 0.01
_MIN_CLOCK_RATIO = 0.7
_SETTLED_SAMPLES = 5
"""Idle samples with high clocks, after which power has settled."""


class GpuHistory:
    """Samples of one GPU or MIG instance over the last minutes, for its fleet class."""

    def __init__(self) -> None:
        self.facts = GpuFacts()
        self._samples: deque[GpuSample] = deque(maxlen=_MAX_SAMPLES)
        self._counted: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}
        self._num_idle = 0
        self._idle_watts: float | None = None

    @property
    def newest_ns(self) -> int:
        return self._samples[-1].time_ns if self._samples else 0

    def add(self, values: GpuValues) -> None:
        """Add a sample, unless it is the last one again."""
        if values.newest_ns <= self.newest_ns:
            return
        self._count(values)
        sample = values.sample(self._rates)
        self._learn_idle_power(sample)
        self.facts = values.facts(self._idle_watts)
        self._samples.append(sample)
        while sample.time_ns - self._samples[0].time_ns > KEPT_SECONDS * 1e9:
            self._samples.popleft()

    def last(self, seconds: float) -> Sequence[GpuSample]:
        since = self.newest_ns - seconds * 1e9
        newest_first = list(takewhile(lambda sample: sample.time_ns > since, reversed(self._samples)))
        return newest_first[::-1]

    def _count(self, values: GpuValues) -> None:
        """Update the rates of counters, which are read less often: the last rate holds until the next reading."""
        for name, (value, time_ns) in values.counters.items():
            before, before_ns = self._counted.get(name, (value, time_ns))
            self._counted[name] = value, time_ns
            if time_ns > before_ns and value >= before:
                self._rates[name] = (value - before) * 1e9 / (time_ns - before_ns)
        for name in self._rates.keys() - values.counters.keys():
            del self._rates[name], self._counted[name]

    def _learn_idle_power(self, sample: GpuSample) -> None:
        """Learn the power of an idle GPU with high clocks, from settled samples: power lags a second behind."""
        busy = max((share for share in (sample.engine, sample.utilization) if share is not None), default=None)
        highest = self.facts.clock_max_hertz
        is_up = sample.clock_hertz is not None and highest and sample.clock_hertz >= _MIN_CLOCK_RATIO * highest
        if busy is None or busy > _MAX_IDLE_RATIO or not is_up or sample.power_watts is None:
            self._num_idle = 0
            return
        self._num_idle += 1
        if self._num_idle > _SETTLED_SAMPLES:
            self._idle_watts = min(sample.power_watts, self._idle_watts or sample.power_watts)


_HOST = "host"
_MAX_KEPT = 90
_CPU, _PROCESS_INFO = PROCESS + "cpu_seconds_total", PROCESS + "info"
_STOPPED = CGROUP + "cpu_throttled_seconds_total"
_WAITS = (CGROUP + "pressure_seconds_total", HOST + "pressure_seconds_total")
_PORTS = {HOST + f"infiniband_{direction}_bytes_total": direction for direction in ("receive", "transmit")}
_HOLDS = GPU + "process_memory_bytes"
_RANK, _STEP, _DATA = (TRAINING + name for name in ("info", "step_seconds", "data_wait_seconds"))
_HOST_METRICS = frozenset({_RANK, _STEP, _DATA, _CPU, _PROCESS_INFO, _STOPPED, *_WAITS, *_PORTS, _HOLDS})


@dataclass(slots=True)
class _HostCounters:
    """Counters of the host at one moment.

    Attributes:
        cpu: CPU seconds of processes by pid.
        stopped, waited: throttled seconds and seconds of waiting for I/O by cgroup; of the machine under "".
        holders: pids by the UUID of the device.
        ranks: pid, and labels run and rank, of training processes by the UUID of the device that they say they have.
        steps, data_waits: seconds of the newest step, and of its wait for data, by run and rank.
    """

    time_ns: int
    cpu: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    ports: dict[str, float] = field(default_factory=dict)
    cgroups: dict[str, str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    ranks: dict[str, list[tuple[str, Labels]]] = field(default_factory=dict)
    steps: dict[Labels, float] = field(default_factory=dict)
    data_waits: dict[Labels, float] = field(default_factory=dict)

    def data_wait_of(self, uuid: str) -> float | None:
        """Share of the newest step of a device's rank that waited for data; None if training does not report it."""
        ranks, holders = self.ranks.get(uuid, []), self.holders.get(uuid, set())
        if holders & self.cpu.keys():  # their pids are those of this machine: a process that is none of them has it not
            ranks = [(pid, labels) for pid, labels in ranks if pid in holders]
        rank = ranks[0][1] if ranks else ()
        step, waited = self.steps.get(rank), self.data_waits.get(rank)
        return min(1.0, waited / step) if step and waited is not None else None


class HostHistory:
    """The host's counters over the last minutes, for the fleet classes."""

    def __init__(self) -> None:
        self._history: deque[_HostCounters] = deque(maxlen=_MAX_KEPT)

    def observe(self, states: Sequence[SourceState], until_ns: float = inf) -> None:
        """Add the counters, unless the host's source has nothing new.

        Args:
            until_ns: a later collection was made before the clock was set back, and is left out.
        """
        time_ns = next((state.collected_ns for state in states if state.name == _HOST), None)
        if time_ns is None or time_ns > until_ns or (self._history and time_ns <= self._history[-1].time_ns):
            return
        counters = _HostCounters(time_ns)
        for state in states:
            for pairs, metrics, values, _ in _OF_HOST.of(state.collection.readings):
                for metric, value in zip(metrics, values, strict=True):
                    _take_host_reading(counters, metric, pairs, value)
        self._history.append(counters)

    def use_of(self, uuid: str, seconds: float) -> HostUse:
        """Use of the host by the processes on a device in the last seconds; None for what is not known."""
        if len(self._history) < 2:
            return HostUse()
        last = self._history[-1]
        first = next(counters for counters in self._history if last.time_ns - counters.time_ns <= seconds * 1e9)
        elapsed = (last.time_ns - first.time_ns) / 1e9
        if elapsed <= 0:
            return HostUse()
        pids = last.holders.get(uuid, set()) & first.holders.get(uuid, set())
        groups = {group for pid in pids for group in cgroup_with_parents(last.cgroups.get(pid, ""))}
        cpus = _grown(first.cpu, last.cpu, pids)
        stopped = _grown(first.stopped, last.stopped, groups)
        waited = _grown(first.waited, last.waited, groups) or _grown(first.waited, last.waited, [""])
        waits = [
            wait
            for counters in self._history
            if counters.time_ns >= first.time_ns and (wait := counters.data_wait_of(uuid)) is not None
        ]
        ports = _grown(first.ports, last.ports, last.ports)
        return HostUse(
            cpus=sum(cpus) / len(cpus) / elapsed if cpus else None,
            stopped_cpus=max(stopped) / elapsed if stopped else None,
            io_wait=min(1.0, max(waited) / elapsed) if waited else None,
            network_bytes=max(ports) / elapsed if ports else None,
            data_wait=sum(waits) / len(waits) if waits else None,
        )


_OF_HOST = ReadingSelection(lambda metric, labels: (labels, metric) if metric in _HOST_METRICS else None)


def _take_host_reading(counters: _HostCounters, metric: str, pairs: Labels, value: float) -> None:
    labels = dict(pairs)
    pid, group = labels.get("pid", ""), labels.get("cgroup", "")
    if metric == _CPU:
        counters.cpu[pid] = counters.cpu.get(pid, 0.0) + value
    elif metric == _PROCESS_INFO:
        counters.cgroups[pid] = group
    elif metric == _STOPPED:
        counters.stopped[group] = value
    elif metric in _WAITS and labels.get("resource") == "io" and labels.get("share") == "some":
        counters.waited[group] = value
    elif metric in _PORTS:
        direction = _PORTS[metric]
        counters.ports[direction] = counters.ports.get(direction, 0.0) + value
    elif metric == _RANK:
        rank = labels_of(run=labels.get("run", ""), rank=labels.get("rank", ""))
        counters.ranks.setdefault(labels.get("uuid", ""), []).append((pid, rank))
    elif metric == _STEP:
        counters.steps[pairs] = value
    elif metric == _DATA:
        counters.data_waits[pairs] = value
    elif metric == _HOLDS:
        counters.holders.setdefault(labels.get("uuid", ""), set()).add(pid)


def _grown(first: dict[str, float], last: dict[str, float], keys: Iterable[str]) -> list[float]:
    """Growth of the counters that are in both and were not reset."""
    return [last[key] - first[key] for key in keys if key in first and key in last and last[key] >= first[key]]
