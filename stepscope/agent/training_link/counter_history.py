"""Samples of the last minute of each GPU and the host, and the counters message of one process made from them.

Without I/O. A process gets the GPUs on which the driver's own list has its process id: not those that it names itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from stepscope.agent.polling import SourceState
from stepscope.collectors.host.cgroups import cgroup_with_parents
from stepscope.core.metrics.readings import CGROUP, GPU, HOST, PROCESS, MissingReason, Reading
from stepscope.core.protocol.counters import (
    COUNTERS_SECONDS,
    GPU_COUNTERS,
    MAX_OTHERS,
    MAX_SAMPLES,
    Counters,
    GpuCounters,
    HostCounters,
    OtherProcess,
    Samples,
)
from stepscope.core.protocol.messages import encode_message

_KEPT_NS = 60 * 10**9
_NAME_OF_GPU = {GPU + name: name for name in GPU_COUNTERS}
_REASON, _HELD = GPU + "throttle_reason", GPU + "process_memory_bytes"
_TRAFFIC = {
    f"{HOST}{network}_{direction}_bytes_total": f"{network}_{direction}_bytes_total"
    for network in ("network", "infiniband")
    for direction in ("receive", "transmit")
}
_TRAFFIC |= {
    HOST + "network_receive_errors_total": "network_errors_total",
    HOST + "network_transmit_errors_total": "network_errors_total",
    HOST + "infiniband_errors_total": "infiniband_errors_total",
}
"""Added up over all ports and interfaces but the loopback."""
_NAME_OF_HOST = {
    HOST + name: name
    for name in ("cpus", "memory_available_bytes", "swapped_in_bytes_total", "swapped_out_bytes_total")
}
_NAME_OF_PROCESS = {
    PROCESS + name: f"process_{name}"
    for name in ("cpu_seconds_total", "run_queue_seconds_total", "major_page_faults_total", "read_bytes_total")
}
_CPU, _PRESSURE, _OF_PROCESS = HOST + "cpu_seconds_total", "pressure_seconds_total", PROCESS + "info"
_STOPPED, _LIMIT = CGROUP + "cpu_throttled_seconds_total", CGROUP + "cpu_limit_cpus"
_HOST_NAMES = frozenset({*_TRAFFIC, *_NAME_OF_HOST, *_NAME_OF_PROCESS, _CPU, _OF_PROCESS, _STOPPED, _LIMIT})
_ALWAYS_OF_HOST = ("cpu_iowait_seconds_total", "pressure_io_some_seconds_total", "cgroup_cpu_throttled_seconds_total")
_LOOPBACK = ("device", "lo")
UidOf = Callable[[int], int | None]
_Slot = tuple[str, str]
"""NVML's index of a GPU, and the id of the MIG instance on it, empty for the GPU."""


@dataclass(slots=True)
class _Gpu:
    """One GPU or MIG instance: its samples, and what the driver's list of processes has of it.

    Attributes:
        place: of its source in the order of their trust.
        held: memory by pid; None where the driver does not report it.
    """

    place: int
    uuid: str = ""
    samples: deque[tuple[int, dict[str, float], dict[str, float]]] = field(default_factory=deque)
    read_ns: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    held: dict[str, float | None] = field(default_factory=dict)
    knows_reasons: bool = False

    def add(self, readings: Iterable[Reading], now_ns: int) -> None:
        """Add a sample of what has been read since the last."""
        values: dict[str, float] = {}
        reasons: dict[str, float] = {}
        newest = 0
        for reading in readings:
            is_reason = reading.metric == _REASON
            name = dict(reading.labels)["reason"] if is_reason else _NAME_OF_GPU[reading.metric]
            key = f"{_REASON} {name}" if is_reason else name
            if reading.time_ns <= now_ns and self.read_ns.get(key) != reading.time_ns:
                self.read_ns[key] = reading.time_ns
                newest = max(newest, reading.time_ns)
                (reasons if is_reason else values)[name] = reading.value
                self.knows_reasons |= is_reason
        if newest and (not self.samples or newest > self.samples[-1][0]):
            self.samples.append((newest, values, reasons))
        while self.samples and self.samples[0][0] < now_ns - _KEPT_NS:
            self.samples.popleft()

    def counters(self, pid: str, since_ns: int, now_ns: int, uid: int | None, uid_of: UidOf) -> GpuCounters:
        samples = [one for one in self.samples if one[0] > since_ns][-MAX_SAMPLES:]
        held = {name for _, _, reasons in samples for name, value in reasons.items() if value}
        values = _columns([values for _, values, _ in samples])
        others = [memory for other, memory in self.held.items() if other != pid]
        return GpuCounters(
            self.uuid,
            tuple(time_ns for time_ns, _, _ in samples),
            values,
            {name: tuple(reasons.get(name) for _, _, reasons in samples) for name in sorted(held)}
            if self.knows_reasons
            else None,
            max(now_ns - self.samples[-1][0], 0) / 1e6 if self.samples else None,
            len(others),
            None if None in others else sum(filter(None, others)),
            {name: reason for name, reason in sorted(self.missing.items()) if name not in values},
            tuple(self._others_of_user(pid, uid, uid_of)),
            self.held.get(pid),
        )

    def _others_of_user(self, pid: str, uid: int | None, uid_of: UidOf) -> Iterable[OtherProcess]:
        """The other processes of this user, those with most memory first; who is another user's stays unnamed."""
        others = sorted(self.held.items(), key=lambda item: -(item[1] or 0.0))
        named = (
            OtherProcess(int(other), uid, memory)
            for other, memory in others
            if uid is not None and other != pid and other.isdecimal() and uid_of(int(other)) == uid
        )
        return islice(named, MAX_OTHERS)


@dataclass(slots=True)
class _HostSample:
    """The host at one moment: values of the machine, of processes by pid, and of cgroups by path."""

    time_ns: int
    machine: dict[str, float] = field(default_factory=dict)
    processes: dict[str, dict[str, float]] = field(default_factory=dict)
    cgroups: dict[str, dict[str, float]] = field(default_factory=dict)
    cgroup_of: dict[str, str] = field(default_factory=dict)

    def of(self, pid: str) -> dict[str, float]:
        """What a process may know."""
        values = self.machine | self.processes.get(pid, {})
        groups = [self.cgroups[one] for one in cgroup_with_parents(self.cgroup_of.get(pid, "")) if one in self.cgroups]
        stopped = [group["stopped"] for group in groups if "stopped" in group]
        limits = [group["limit"] for group in groups if "limit" in group]
        if stopped:  # a limit may be set at any level, and each counts its own
            values["cgroup_cpu_throttled_seconds_total"] = sum(stopped)
        if limits:
            values["cgroup_cpu_limit_cpus"] = min(limits)
        if groups:
            values |= {f"cgroup_{name}": value for name, value in groups[0].items() if name.startswith("pressure_")}
        return values

    def add(self, reading: Reading) -> None:
        """Add a reading of the host."""
        metric, value = reading.metric, reading.value
        if metric in _NAME_OF_HOST:
            self.machine[_NAME_OF_HOST[metric]] = value
            return
        labels = dict(reading.labels)
        if metric in _TRAFFIC:
            if _LOOPBACK not in reading.labels:
                self.machine[_TRAFFIC[metric]] = self.machine.get(_TRAFFIC[metric], 0.0) + value
        elif metric == _CPU:
            if labels["mode"] == "iowait":
                self.machine["cpu_iowait_seconds_total"] = value
        elif metric == HOST + _PRESSURE:
            self.machine[_pressure_name(labels)] = value
        elif metric == CGROUP + _PRESSURE:
            self.cgroups.setdefault(labels["cgroup"], {})[_pressure_name(labels)] = value
        elif metric in (_STOPPED, _LIMIT):
            name = "stopped" if metric == _STOPPED else "limit"
            self.cgroups.setdefault(labels["cgroup"], {})[name] = value
        elif metric == _OF_PROCESS:
            self.cgroup_of[labels["pid"]] = labels["cgroup"]
        elif metric in _NAME_OF_PROCESS:
            values = self.processes.setdefault(labels["pid"], {})
            name = _NAME_OF_PROCESS[metric]
            values[name] = values.get(name, 0.0) + value


class CounterHistory:
    """Samples of the agent's sources over the last minute."""

    def __init__(self) -> None:
        self._gpus: dict[_Slot, _Gpu] = {}
        self._host: deque[_HostSample] = deque()
        self._seen: dict[str, int | None] = {}
        self._why_no_gpu = MissingReason.NOT_YET

    def observe(self, states: Sequence[SourceState], now_ns: int) -> None:
        """Add what the sources have read since the last call; the first source that has a GPU gives its samples.

        Args:
            now_ns: readings of later times were made before the clock was set back, and are left out.
        """
        new = [one for one in states if one.collected_ns is not None and self._seen.get(one.name) != one.collected_ns]
        self._seen |= {one.name: one.collected_ns for one in new}
        host: list[Reading] = []
        places = {one.name: place for place, one in enumerate(states)}
        for state in new:
            of_gpus: dict[_Slot, list[Reading]] = {}
            held: dict[_Slot, dict[str, float | None]] = {}
            for reading in state.collection.readings:
                metric = reading.metric
                if metric in _NAME_OF_GPU or metric == _REASON:
                    of_gpus.setdefault(_slot(reading.labels), []).append(reading)
                elif metric == _HELD:
                    held.setdefault(_slot(reading.labels), {})[dict(reading.labels)["pid"]] = reading.value
                elif metric in _HOST_NAMES or metric.endswith(_PRESSURE):
                    host.append(reading)
            self._add_gpus(state, places[state.name], of_gpus, held, now_ns)
        if host:
            self._add_host(host, now_ns)

    def _add_gpus(
        self,
        state: SourceState,
        place: int,
        of_gpus: Mapping[_Slot, Sequence[Reading]],
        held: dict[_Slot, dict[str, float | None]],
        now_ns: int,
    ) -> None:
        missing: dict[_Slot, dict[str, str]] = {}
        for absent in state.collection.missing:
            labels = dict(absent.labels)
            if absent.metric == _HELD and "pid" in labels:
                held.setdefault(_slot(absent.labels), {})[labels["pid"]] = None
            elif absent.metric == GPU + "processes" or not (absent.metric or absent.labels):
                self._why_no_gpu = absent.reason
            elif absent.metric in _NAME_OF_GPU and "gpu" in labels:
                missing.setdefault(_slot(absent.labels), {})[_NAME_OF_GPU[absent.metric]] = absent.reason
        for slot, readings in of_gpus.items():
            gpu = self._gpus.setdefault(slot, _Gpu(place))
            if place > gpu.place:
                continue
            gpu.place = place
            gpu.uuid = dict(readings[0].labels).get("uuid", gpu.uuid)
            gpu.missing = missing.get(slot, {})
            gpu.held = held.get(slot, {})
            gpu.add(readings, now_ns)

    def _add_host(self, readings: Sequence[Reading], now_ns: int) -> None:
        newest = max(reading.time_ns for reading in readings)
        if newest > now_ns:
            return
        if not self._host or newest > self._host[-1].time_ns:
            self._host.append(_HostSample(newest))
        for reading in readings:  # those of another source may come a moment later
            self._host[-1].add(reading)
        while self._host[0].time_ns < now_ns - _KEPT_NS:
            self._host.popleft()

    def message(
        self,
        pid: int | None,
        since_ns: int | None,
        now_ns: int,
        *,
        uid: int | None = None,
        uid_of: UidOf = lambda _: None,
    ) -> Counters:
        """The message of a process; after `since_ns`, when its last one was made.

        Args:
            pid: as the kernel reports it; None: what is its own is not known.
            uid: of its user, whose other processes on the GPU are named; None: none are.
            uid_of: whose a process is.
        """
        own = "" if pid is None else str(pid)
        since = now_ns - int(COUNTERS_SECONDS * 1e9) if since_ns is None else since_ns
        gpus = tuple(
            gpu.counters(own, since, now_ns, uid, uid_of) for gpu in self._gpus.values() if own and own in gpu.held
        )
        host = [one for one in self._host if one.time_ns > since][-MAX_SAMPLES:]
        missing: dict[str, str] = {}
        if not gpus:
            missing["gpu"] = MissingReason.NO_PERMISSION if pid is None else self._why_no_gpu
        if not self._host:
            missing["host"] = MissingReason.NOT_YET
        values = _columns([sample.of(own) for sample in host])
        of_host = HostCounters(
            tuple(one.time_ns for one in host),
            values,
            max(now_ns - self._host[-1].time_ns, 0) / 1e6 if self._host else None,
            {name: MissingReason.NOT_SUPPORTED for name in _ALWAYS_OF_HOST if host and name not in values},
        )
        seconds = None if since_ns is None else max(now_ns - since_ns, 0) / 1e9
        return Counters(now_ns, seconds, gpus, of_host if self._host else None, missing=missing)


def bounded_line(message: Counters) -> bytes:
    """The message as one line of the protocol: without its oldest samples where it would be too long."""
    while True:
        try:
            return encode_message(message)
        except ValueError:
            most = max((len(gpu.times_ns) for gpu in message.gpus), default=0)
            if most <= 1:
                return encode_message(replace(message, gpus=(), missing=message.missing | {"gpu": "unreadable"}))
            message = _with_newest(message, most // 2)


def _with_newest(message: Counters, num_samples: int) -> Counters:
    gpus = tuple(
        replace(
            gpu,
            times_ns=gpu.times_ns[-num_samples:],
            values={name: values[-num_samples:] for name, values in gpu.values.items()},
            throttle_reasons=None
            if gpu.throttle_reasons is None
            else {name: values[-num_samples:] for name, values in gpu.throttle_reasons.items()},
        )
        for gpu in message.gpus
    )
    num_left_out = sum(len(gpu.times_ns) for gpu in message.gpus) - sum(len(gpu.times_ns) for gpu in gpus)
    return replace(message, gpus=gpus, num_left_out=message.num_left_out + num_left_out)


def _columns(samples: Sequence[Mapping[str, float]]) -> dict[str, Samples]:
    """Values by name, one a sample."""
    names = sorted({name for sample in samples for name in sample})
    return {name: tuple(sample.get(name) for sample in samples) for name in names[:_MAX_NAMES]}


_MAX_NAMES = 60
"""Below the number of entries that the protocol reads."""


def _slot(labels: Sequence[tuple[str, str]]) -> _Slot:
    named = dict(labels)
    return named.get("gpu", ""), named.get("gpu_instance", "")


def _pressure_name(labels: Mapping[str, str]) -> str:
    return f"pressure_{labels['resource']}_{labels['share']}_seconds_total"
