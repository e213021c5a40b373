"""What did the processes on each GPU do beside it in the last minute? Rates of what the host's collectors count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from stepscope.agent.source_state import SourceState
from stepscope.core.gpu_metrics import GPU
from stepscope.core.host_metrics import CGROUP, HOST, PROCESS
from stepscope.core.readings import Labels, Reading, labels_of
from stepscope.core.training_metrics import TRAINING
from stepscope.workflow.fleet_class import HostUse

_HOST = "host"
_MOST_LOOKS = 90
_CPU, _INFO = PROCESS + "cpu_seconds_total", PROCESS + "info"
_STOPPED = CGROUP + "cpu_throttled_seconds_total"
_WAITS = (CGROUP + "pressure_seconds_total", HOST + "pressure_seconds_total")
_PORTS = {HOST + f"infiniband_{way}_bytes_total": way for way in ("receive", "transmit")}
_HOLDS = GPU + "process_memory_bytes"
_RANK, _STEP, _DATA = (TRAINING + name for name in ("info", "step_seconds", "data_wait_seconds"))
_WANTED = frozenset({_RANK, _STEP, _DATA, _CPU, _INFO, _STOPPED, *_WAITS, *_PORTS, _HOLDS})


@dataclass(slots=True)
class _Look:
    """Counters at one moment.

    Attributes:
        time_ns: of the host's collection.
        cpu: CPU seconds of processes by pid.
        stopped, waited: seconds by cgroup; `waited` of the machine under "".
        ports: bytes by direction, all ports.
        cgroups: of processes by pid.
        holders: pids by the uuid of the device.
        ranks: run and rank of training processes by the uuid of their device.
        steps, data_waits: seconds of the newest step, and of it for data, by run and rank.
    """

    time_ns: int
    cpu: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    ports: dict[str, float] = field(default_factory=dict)
    cgroups: dict[str, str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    ranks: dict[str, Labels] = field(default_factory=dict)
    steps: dict[Labels, float] = field(default_factory=dict)
    data_waits: dict[Labels, float] = field(default_factory=dict)

    def data_wait_of(self, uuid: str) -> float | None:
        """Share of the newest step of a device's rank that waited for data; None where training does not tell."""
        rank = self.ranks.get(uuid, ())
        step, waited = self.steps.get(rank), self.data_waits.get(rank)
        return min(1.0, waited / step) if step and waited is not None else None


class HostHistory:
    """Looks at the host's counters, as many as the window needs."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=_MOST_LOOKS)

    def observe(self, states: Sequence[SourceState], until_ns: float = inf) -> None:
        """Look, unless the host's source told nothing new.

        Args:
            states: the sources.
            until_ns: what the host told later, it told before the clock was set back.
        """
        time_ns = next((state.collected_ns for state in states if state.name == _HOST), None)
        if time_ns is None or time_ns > until_ns or (self._looks and time_ns <= self._looks[-1].time_ns):
            return
        look = _Look(time_ns)
        for state in states:
            for reading in state.collection.readings:
                if reading.metric in _WANTED:
                    _take(look, reading)
        self._looks.append(look)

    def use_of(self, uuid: str, seconds: float) -> HostUse:
        """What the processes on a device did in the last seconds; None for what is not known."""
        if len(self._looks) < 2:
            return HostUse()
        last = self._looks[-1]
        first = next(look for look in self._looks if last.time_ns - look.time_ns <= seconds * 1e9)
        elapsed = (last.time_ns - first.time_ns) / 1e9
        if elapsed <= 0:
            return HostUse()
        pids = last.holders.get(uuid, set()) & first.holders.get(uuid, set())
        groups = {group for pid in pids for group in _with_parents(last.cgroups.get(pid, ""))}
        cpus = _grown(first.cpu, last.cpu, pids)
        stopped = _grown(first.stopped, last.stopped, groups)
        waited = _grown(first.waited, last.waited, groups) or _grown(first.waited, last.waited, [""])
        waits = [
            wait
            for look in self._looks
            if look.time_ns >= first.time_ns and (wait := look.data_wait_of(uuid)) is not None
        ]
        ports = _grown(first.ports, last.ports, last.ports)
        return HostUse(
            cpus=sum(cpus) / len(cpus) / elapsed if cpus else None,
            stopped_cpus=max(stopped) / elapsed if stopped else None,
            io_wait=min(1.0, max(waited) / elapsed) if waited else None,
            network_bytes=max(ports) / elapsed if ports else None,
            data_wait=sum(waits) / len(waits) if waits else None,
        )


def _take(look: _Look, reading: Reading) -> None:
    labels = dict(reading.labels)
    pid, group = labels.get("pid", ""), labels.get("cgroup", "")
    if reading.metric == _CPU:
        look.cpu[pid] = look.cpu.get(pid, 0.0) + reading.value
    elif reading.metric == _INFO:
        look.cgroups[pid] = group
    elif reading.metric == _STOPPED:
        look.stopped[group] = reading.value
    elif reading.metric in _WAITS and labels.get("resource") == "io" and labels.get("share") == "some":
        look.waited[group] = reading.value
    elif reading.metric in _PORTS:
        way = _PORTS[reading.metric]
        look.ports[way] = look.ports.get(way, 0.0) + reading.value
    elif reading.metric == _RANK:
        look.ranks[labels.get("uuid", "")] = labels_of(run=labels.get("run", ""), rank=labels.get("rank", ""))
    elif reading.metric == _STEP:
        look.steps[reading.labels] = reading.value
    elif reading.metric == _DATA:
        look.data_waits[reading.labels] = reading.value
    elif reading.metric == _HOLDS:
        look.holders.setdefault(labels.get("uuid", ""), set()).add(pid)


def _grown(first: dict[str, float], last: dict[str, float], keys: Iterable[str]) -> list[float]:
    """Growth of those counters that both looks have and that were not reset."""
    return [last[key] - first[key] for key in keys if key in first and key in last and last[key] >= first[key]]


def _with_parents(group: str) -> list[str]:
    """A cgroup and those above it: a limit stands at any level."""
    parts = group.rstrip("/").split("/")
    return ["/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)] if group else []
