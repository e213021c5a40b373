"""What do all sources say of each GPU at this moment, as one sample?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

from stepscope.agent.source_state import SourceState
from stepscope.core.gpu_catalogue import board_power_watts
from stepscope.core.gpu_metrics import GPU
from stepscope.core.gpu_places import GpuPlaces, Place
from stepscope.core.jobs import device_of
from stepscope.core.readings import Labels, Reading
from stepscope.workflow.fleet_class import GpuFacts, Sample

_STALE_NS = 60_000_000_000
_INSTANCE = "gpu_instance"
_WHOLE = {
    "utilization_ratio": "utilization",
    "memory_bandwidth_busy_ratio": "memory_busy",
    "power_watts": "power_watts",
    "sm_clock_hertz": "clock_hertz",
    "graphics_engine_active_ratio": "engine",
    "sm_active_ratio": "sm",
    "tensor_active_ratio": "tensor",
    "dram_active_ratio": "dram",
    "pcie_transmit_bytes_per_second": "pcie_transmit",
    "pcie_receive_bytes_per_second": "pcie_receive",
    "memory_used_bytes": "memory_used",
    "power_limit_watts": "",
    "sm_clock_max_hertz": "",
    "memory_total_bytes": "",
    "mig_enabled": "",
    "fp64_active_ratio": "",
    "fp32_active_ratio": "",
    "fp16_active_ratio": "",
    "integer_active_ratio": "",
    "nvlink_transmit_bytes_per_second": "",
    "nvlink_receive_bytes_per_second": "",
    "nvlink_data_bytes_per_second": "",
}
"""Metrics that a GPU has once, and the sample's field where they are it."""
_FIELDS = {GPU + metric: metric for metric in _WHOLE}
_WAYS = ("transmit", "receive")
_COUNTERS = frozenset(f"{GPU}{link}_{way}_bytes_total" for link in ("nvlink", "pcie") for way in _WAYS)
_UP = GPU + "up"
_INFO, _REASON, _PROCESSES, _LINKS = (GPU + name for name in ("info", "throttle_reason", "processes", "nvlink_links"))
_WANTED = frozenset(_FIELDS) | _COUNTERS | {_INFO, _REASON, _PROCESSES, _LINKS}


@dataclass(slots=True)
class Told:
    """What the sources say of one GPU or MIG instance; of what two say, the first counts.

    Attributes:
        labels: which it is.
        values: of metrics that it has once, by name without prefix.
        counters: bytes since the driver was loaded and when they were read, by name.
        reasons: throttle reasons that hold; None where none is told of.
        num_processes, num_links: None where not told.
        processes_by: the source that counted them.
        name: of the device.
        newest_ns: time of its newest value.
    """

    labels: Labels
    values: dict[str, float] = field(default_factory=dict)
    counters: dict[str, tuple[float, int]] = field(default_factory=dict)
    reasons: set[str] | None = None
    num_processes: float | None = None
    num_links: float | None = None
    processes_by: str = ""
    name: str = ""
    newest_ns: int = 0

    def facts(self, idle_watts: float | None) -> GpuFacts:
        """What stays the same."""
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

    def sample(self, rates: Mapping[str, float]) -> Sample:
        """The sample.

        Args:
            rates: of counters, bytes/s by name, for what no source tells as a rate.
        """
        told = {name: self.values.get(metric) for metric, name in _WHOLE.items() if name}
        for way in _WAYS:
            if told[f"pcie_{way}"] is None:
                told[f"pcie_{way}"] = rates.get(f"pcie_{way}_bytes_total")
        return Sample(
            self.newest_ns,
            throttle_reasons=None if self.reasons is None else frozenset(self.reasons),
            vector=_most(self.values, [f"{pipe}_active_ratio" for pipe in ("fp64", "fp32", "fp16", "integer")]),
            link_bytes=self._link_bytes(rates),
            num_processes=self.num_processes,
            **told,
        )

    def _link_bytes(self, rates: Mapping[str, float]) -> float | None:
        now = _most(self.values, [f"nvlink_{way}_bytes_per_second" for way in _WAYS])
        if now is None:
            now = _most(rates, [f"nvlink_{way}_bytes_total" for way in _WAYS])
        both = self.values.get("nvlink_data_bytes_per_second")
        return both / 2 if now is None and both is not None else now


def told_of_gpus(states: Sequence[SourceState], until_ns: float = inf) -> dict[Labels, Told]:
    """What is said of each GPU, and of each MIG instance instead of its GPU.

    Args:
        states: the sources, in the order of their trust.
        until_ns: what is newer was read before the clock was set back, and is left out.
    """
    gpus: dict[Place, Told] = {}
    for state in states:
        if state.collected_ns is not None:
            _take_all(gpus, state, state.collected_ns - _STALE_NS, until_ns)
    split = {_gpu(told) for told in gpus.values() if _INSTANCE in dict(told.labels)}
    return {
        told.labels: told
        for told in gpus.values()
        if _INSTANCE in dict(told.labels) or not (told.values.get("mig_enabled") or _gpu(told) in split)
    }


def _take_all(gpus: dict[Place, Told], state: SourceState, oldest_ns: int, until_ns: float) -> None:
    """What one source tells, but for what is older or newer."""
    readings = state.collection.readings
    places = GpuPlaces(reading for reading in readings if reading.metric == _UP)
    labels: Labels | None = None
    told: Told | None = None
    for reading in readings:
        if reading.metric in _WANTED and oldest_ns < reading.time_ns <= until_ns:
            if reading.labels is not labels:  # those of one GPU mostly come one after the other
                labels = reading.labels
                told = _told_of(gpus, labels, places)
            if told is not None:
                _take(told, reading, state.name)


def _told_of(gpus: dict[Place, Told], labels: Labels, places: GpuPlaces) -> Told | None:
    place = places.place(_by_name(labels))
    if place is None:
        return None
    told = gpus.get(place)
    if told is None:
        told = gpus[place] = Told(device_of(labels))
    return told


def _take(told: Told, reading: Reading, source: str) -> None:
    metric = reading.metric
    if metric in _FIELDS:
        told.values.setdefault(_FIELDS[metric], reading.value)
        told.newest_ns = max(told.newest_ns, reading.time_ns)
    elif metric in _COUNTERS:
        told.counters.setdefault(metric.removeprefix(GPU), (reading.value, reading.time_ns))
    elif metric == _INFO:
        told.name = told.name or _by_name(reading.labels).get("name", "")
    elif metric == _REASON:
        holds = {_by_name(reading.labels).get("reason", "")} if reading.value else set()
        told.reasons = holds if told.reasons is None else told.reasons | holds
    elif metric == _LINKS and _by_name(reading.labels).get("state") == "up":
        told.num_links = reading.value
    elif metric == _PROCESSES and told.processes_by in ("", source):
        told.processes_by = source
        told.num_processes = (told.num_processes or 0.0) + reading.value


@lru_cache(maxsize=4096)
def _by_name(labels: Labels) -> Mapping[str, str]:
    """The same labels come every second."""
    return dict(labels)


def _gpu(told: Told) -> str | None:
    return dict(told.labels).get("gpu")


def _most(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    return max((values[name] for name in names if name in values), default=None)
