"""Input and results of the health checks: the newest values of GPUs, ports and switches; samples with evidence.

`HealthObserver` joins the values of all sources: of what two report, the first with a fresh value counts, as on the
metrics page. `CounterWindow` has the growth of a counter, `MinuteWindow` the number of the last minutes in which
something happened. A counter that restarts (the driver was reloaded) did not shrink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.metrics.gpu import SWITCH
from stepscope.core.metrics.readings import (
    GPU,
    HOST,
    Collection,
    Labels,
    Missing,
    MissingReason,
    Reading,
    ReadingSelection,
)


class SampleState(Enum):
    """Result of a health check for one sample."""

    GOOD = "good"
    BETWEEN = "between"  # between the thresholds to enter and to leave: begins no episode and ends none
    BAD = "bad"
    OVER = "over"  # cannot hold any longer: the GPU was reset


@dataclass(frozen=True, slots=True)
class CheckEvidence:
    """Evidence of a health check: what is wrong in one sample; fields as in `HealthEvent`."""

    severity: Severity
    action: Action
    message: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""

    def is_worse_than(self, other: CheckEvidence) -> bool:
        """Whether it is worse than earlier evidence of the same episode; equal evidence counts as worse."""
        if self.severity is not other.severity:
            return self.severity.rank > other.severity.rank
        if self.value is None or self.threshold is None or other.value is None or other.threshold is None:
            return True
        return abs(self.value - self.threshold) >= abs(other.value - other.threshold)


LATE_NS = 60 * 10**9
"""Age of an error from which it counts as of its own time: the agent was not running when it came."""


@dataclass(frozen=True, slots=True)
class CheckSample:
    """Result of one health check for one sample.

    Attributes:
        time_ns: of the sample, ns since the epoch; the same sample again counts for nothing.
        evidence: of a bad sample.
        is_new: it has just happened: a counter moved, an XID came. Otherwise a first sample may show an old condition.
        since_ns: when it began, where that was before the sample: an XID that came while the agent was down.
        enter_seconds: how long samples must be bad for an event; None: as long as is usual for the code.
    """

    code: str
    time_ns: int
    state: SampleState
    evidence: CheckEvidence | None = None
    count: int = 1
    is_new: bool = False
    since_ns: int | None = None
    enter_seconds: float | None = None


def bad(
    code: str,
    time_ns: int,
    evidence: CheckEvidence,
    *,
    count: int = 1,
    is_new: bool = False,
    enter_seconds: float | None = None,
) -> CheckSample:
    """Bad sample of a health check, with its evidence."""
    return CheckSample(code, time_ns, SampleState.BAD, evidence, count, is_new, enter_seconds=enter_seconds)


def good(code: str, time_ns: int) -> CheckSample:
    """Good sample of a health check."""
    return CheckSample(code, time_ns, SampleState.GOOD)


def above(
    code: str, time_ns: int, evidence: CheckEvidence, *, leave: float, strictly: bool = False, is_new: bool = False
) -> CheckSample:
    """Sample of a health check that compares a value with a threshold that it must stay below.

    Args:
        evidence: of a bad sample, with value and threshold.
        leave: values up to this are good.
        strictly: a value equal to the threshold is not bad.
    """
    value, threshold = evidence.value, evidence.threshold
    assert value is not None
    assert threshold is not None
    if value > threshold or (value == threshold and not strictly):
        return bad(code, time_ns, evidence, is_new=is_new)
    return CheckSample(code, time_ns, SampleState.GOOD if value <= leave else SampleState.BETWEEN)


_MAX_STEPS = 4096


class TimedValue(NamedTuple):
    """A value for the health checks; `time_ns` is when `source` read it, ns since the epoch."""

    value: float
    time_ns: int
    source: str


class CounterWindow:
    """Growth of a counter in a window of time; growth between two samples is spread evenly over the time between."""

    def __init__(self, seconds: float) -> None:
        self._window_ns = int(seconds * 1e9)
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_MAX_STEPS)
        self._last: TimedValue | None = None

    def add(self, sample: TimedValue | None) -> bool:
        """Add the newest sample; whether growth is known: the sample is new, and there is one before it.

        A lower value, another source or an earlier time restart the window.
        """
        last = self._last
        if sample is None or sample == last:
            return False
        self._last = sample
        restarts = last is None or sample.source != last.source or sample.value < last.value
        if last is None or restarts or sample.time_ns <= last.time_ns:
            self._steps.clear()
            return False
        if sample.value > last.value:
            self._steps.append((last.time_ns, sample.time_ns, sample.value - last.value))
        while self._steps and self._steps[0][1] <= sample.time_ns - self._window_ns:
            self._steps.popleft()
        return True

    @property
    def growth(self) -> float:
        """Growth in the window that ends with the newest sample; 0 before the second sample."""
        if self._last is None:
            return 0.0
        begin_ns = self._last.time_ns - self._window_ns
        return sum(
            amount * (end - max(begin, begin_ns)) / (end - begin)
            for begin, end, amount in self._steps
            if end > begin_ns
        )


_MINUTE_NS = 60 * 10**9


class MinuteWindow:
    """Minutes of the clock in which a health check saw something, among the newest `num_minutes`."""

    def __init__(self, num_minutes: int) -> None:
        self._num_minutes = num_minutes
        self._seen: dict[int, set[str]] = {}

    def add(self, time_ns: int, seen: set[str]) -> None:
        """Add the names that a sample has; `time_ns` since the epoch."""
        newest = time_ns // _MINUTE_NS
        if seen:
            self._seen.setdefault(newest, set()).update(seen)
        self._seen = {
            minute: names for minute, names in self._seen.items() if -self._num_minutes < minute - newest <= 0
        }

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def share(self) -> float:
        return self.count / self._num_minutes

    @property
    def names(self) -> set[str]:
        return set().union(*self._seen.values())


_WHOSE = frozenset({"gpu", "uuid", "pci_bus_id"})
"""Labels that name a whole GPU."""
_OF_GPU = {
    GPU + name: name
    for name in (
        *("utilization_ratio", "power_watts", "power_limit_watts", "energy_joules_total", "up"),
        *("ecc_enabled", "ecc_corrected_errors_total", "ecc_uncorrected_errors_total"),
        *("row_remap_failed", "row_remap_pending"),
        *("remapped_rows_uncorrected_total", "retired_pages_corrected_total", "retired_pages_uncorrected_total"),
        "retired_pages_pending",
        *("pcie_replays_total", "pcie_link_generation", "pcie_link_width"),
        *("pcie_link_generation_max", "pcie_link_width_max"),
        *("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total", "nvlink_replay_errors_total"),
        *("nvlink_recovery_errors_total", "nvlink_recoveries_total", "nvlink_recoveries_failed_total"),
        *("nvlink_receive_errors_total", "nvlink_integrity_errors_total", "nvlink_crc_errors_total"),
        *("nvlink_malformed_packets_total", "nvlink_dropped_packets_total", "nvlink_remote_errors_total"),
        *("nvlink_general_errors_total", "nvlink_effective_errors_total", "nvlink_symbol_errors_total"),
        *("nvlink_link_errors_total", "sram_uncorrected_errors_total", "sram_threshold_exceeded"),
        *("nvlink_effective_bit_error_ratio", "nvlink_symbol_error_ratio", "nvlink_up"),
        *("fabric_state", "fabric_health", "recovery_action", "dcgm_health_status", "throttle_reason"),
        *("thermal_violation_seconds_total", "temperature_margin_celsius"),
        *("temperature_celsius", "temperature_slowdown_celsius"),
        *("xid_errors_total", "process_memory_bytes"),
    )
}
"""Metrics that the checks read, and their names without prefix."""
_NOT_DATED = frozenset({"xid_errors_total"})
"""A count with the time of its last event stays true."""
_OF_MACHINE = frozenset(
    {
        *(HOST + "infiniband_up", HOST + "infiniband_errors_total"),
        *(SWITCH + "sxid_errors_total", SWITCH + "sxid_fatal_last", SWITCH + "reset_required", SWITCH + "link_status"),
        *(SWITCH + f"link_{kind}_errors_total" for kind in ("replay", "recovery", "flit", "crc")),
    }
)
_INFO = GPU + "info"
_MAX_LABEL_SETS = 20_000


@dataclass(slots=True)
class ObservedGpu:
    """One whole GPU as the health checks see it.

    Attributes:
        model: name of the device; empty where no source reports it.
        source: the first that reports whether it answers, else the first that reports the GPU.
        values: by metric without its prefix.
        parts: values with further labels, by metric and the labels' values in the order of their names.
        up: whether it answers; None: not known.
        reason, detail: why it does not answer, or is not known.
        findings: messages of its source, by code.
        looked_ns: when its source was collected last.
        reported_xids: XIDs of a source without counts, with their times.
        page_ns: when a source other than the driver reported it: a dcgm-exporter's page.
        earlier_xids: XIDs that such a page has had since its first collection.
        has_driver_hang: the driver answers for no GPU; set by the watch, as the next.
        is_contained: every uncorrected memory error cost one application only (XID 94).
    """

    device: Device
    source: str
    model: str = ""
    values: dict[str, TimedValue] = field(default_factory=dict)
    parts: dict[str, dict[tuple[str, ...], TimedValue]] = field(default_factory=dict)
    up: TimedValue | None = None
    reason: str = ""
    detail: str = ""
    findings: dict[str, str] = field(default_factory=dict)
    looked_ns: int | None = None
    reported_xids: list[tuple[int, int]] = field(default_factory=list)
    page_ns: int | None = None
    earlier_xids: list[int] = field(default_factory=list)
    has_driver_hang: bool = False
    is_contained: bool = False

    def by_label(self, metric: str) -> dict[str, TimedValue]:
        """Samples of a metric by the value of the first of its further labels."""
        return {first: sample for (first, *_), sample in self.parts.get(metric, {}).items()}


@dataclass(slots=True)
class ObservedMachine:
    """All GPUs, ports and switches of a machine as the health checks see them.

    Attributes:
        machine: readings of ports and switches that are fresh.
        driver: state of the source that reads the driver; None without one.
        places: GPUs whose UUID is known, by their PCI bus id.
    """

    gpus: dict[str, ObservedGpu] = field(default_factory=dict)
    machine: list[tuple[Reading, str]] = field(default_factory=list)
    driver: SourceState | None = None
    places: Mapping[str, Device] = field(default_factory=dict)

    def why_no_driver(self) -> Missing | None:
        """Why no GPU can be asked; None if they can, or no source reads the driver."""
        missing = self.driver.collection.missing if self.driver else ()
        return next((one for one in missing if not one.metric and not one.labels), None)

    def is_drivers_hang(self, gpu: ObservedGpu) -> bool:
        """Whether a GPU does not answer because the driver answers for no GPU."""
        why = self.why_no_driver()
        is_asked = self.driver is not None and gpu.source == self.driver.name
        return is_asked and why is not None and why.reason is MissingReason.TIMED_OUT


class _Whose(NamedTuple):
    """The GPU that a reading is of, and the values of the reading's further labels."""

    device: Device
    further: tuple[str, ...]


_Use = tuple[str, tuple[str, ...]]
"""A metric, without its prefix if it is a GPU's, and the values of the reading's further labels."""
_INFOS = ReadingSelection(lambda metric, labels: (labels, metric) if metric == _INFO else None)


class HealthObserver:
    """Joins the states of the sources for the health checks. Remembers which GPU labels name, and the models."""

    def __init__(self, driver_source: str, stale_seconds: float) -> None:
        self._driver_source = driver_source
        self._stale_ns = int(stale_seconds * 1e9)
        self._whose: dict[Labels, _Whose | None] = {}
        self._wanted = ReadingSelection(self._use_of)
        self._places: dict[str, Device] = {}
        self._models: dict[str, str] = {}

    def observe(self, states: Sequence[SourceState], now_ns: int) -> ObservedMachine:
        """All that the sources, in the order of their trust, report now."""
        observed = ObservedMachine()
        for state in states:
            for info, _, _, _ in _INFOS.of(state.collection.readings):
                self._learn(dict(info))
        for state in states:
            if state.name == self._driver_source:
                observed.driver = state
            collection = state.collection
            self._read(observed, state.name, collection.readings, now_ns)
            looked_ns = state.collected_ns
            if looked_ns is not None and looked_ns > now_ns - self._stale_ns:
                self._explain(observed, state.name, collection, looked_ns)
        observed.places = dict(self._places)
        for key, gpu in observed.gpus.items():
            gpu.model = self._models.get(key, "")
        return observed

    def _learn(self, info: Mapping[str, str]) -> None:
        """Note the PCI bus id of a GPU, so that errors of that place count for it, and its model."""
        place, uuid, model = info.get("pci_bus_id"), info.get("uuid"), info.get("name")
        if place and uuid and place not in self._places:
            self._places[place] = Device(uuid, info.get("gpu", ""))
            self._whose.clear()
            self._wanted = ReadingSelection(self._use_of)
        device = device_in(info)
        device = self._places.get(device.pci_bus_id, device)
        if model and device.key and not device.instance:
            self._models.setdefault(device.key, model)

    def _use_of(self, metric: str, labels: Labels) -> tuple[Device | Labels, _Use] | None:
        """The GPU of a reading, or the labels of one of the machine's, and what it is for the checks."""
        name = _OF_GPU.get(metric)
        if name is not None:
            whose = self._whose_is(labels)
            return None if whose is None else (whose.device, (name, whose.further))
        return (labels, (metric, ())) if metric in _OF_MACHINE else None

    def _read(self, observed: ObservedMachine, source: str, readings: Sequence[Reading], now_ns: int) -> None:
        oldest_ns = now_ns - self._stale_ns
        for whose, uses, values, time_ns in self._wanted.of(readings):
            is_fresh = time_ns > oldest_ns
            if not isinstance(whose, Device):
                observed.machine += [
                    (Reading(name, value, whose, time_ns), source)
                    for (name, _), value in zip(uses, values, strict=True)
                    if is_fresh or name.startswith(SWITCH)
                ]
                continue
            gpu = _gpu_in(observed, whose, source) if is_fresh else None
            for (name, further), value in zip(uses, values, strict=True):
                if is_fresh or name in _NOT_DATED:
                    gpu = gpu or _gpu_in(observed, whose, source)
                    self._read_gpu(gpu, name, further, TimedValue(value, time_ns, source))

    def _read_gpu(self, gpu: ObservedGpu, name: str, further: tuple[str, ...], sample: TimedValue) -> None:
        source = sample.source
        if name == "xid_errors_total":  # some have the PCI bus id alone: they came before the UUID was known
            counts = gpu.parts.setdefault(name, {})
            before = counts.get(further)
            counts[further] = sample if before is None else before._replace(value=before.value + sample.value)
        elif name == "up":
            if source != self._driver_source and sample.value:
                gpu.page_ns = sample.time_ns
            if gpu.up is None:
                gpu.up, gpu.source, gpu.reason = sample, source, further[0] if further else ""
        elif further:
            gpu.parts.setdefault(name, {}).setdefault(further, sample)
        else:
            gpu.values.setdefault(name, sample)

    def _explain(self, observed: ObservedMachine, source: str, collection: Collection, looked_ns: int) -> None:
        """Add findings of a source, and why it has no values of a GPU."""
        for gpu in observed.gpus.values():
            if gpu.source == source:
                gpu.looked_ns = looked_ns
        for missing in collection.missing:
            whose = self._whose_is(missing.labels) if not missing.metric and missing.labels else None
            if whose is not None and not whose.further:
                gpu = _gpu_in(observed, whose.device, source)
                if gpu.source == source and not gpu.detail:
                    gpu.reason, gpu.detail = missing.reason.value, missing.detail
        for finding in collection.findings:
            whose = self._whose_is(tuple(pair for pair in finding.labels if pair[0] in _WHOSE))
            found = observed.gpus.get(whose.device.key) if whose is not None else None
            if found is not None and finding.code == "xid_earlier":
                found.earlier_xids.append(int(dict(finding.labels)["xid"]))
            if found is None or found.source != source:
                continue
            if finding.code != "xid":
                found.findings.setdefault(finding.code, finding.message)
            elif source != self._driver_source:  # its XIDs are counted
                found.reported_xids.append((int(dict(finding.labels)["xid"]), finding.time_ns))

    def _whose_is(self, labels: Labels) -> _Whose | None:
        """The GPU that labels name; None of MIG instances and of what is not a GPU's."""
        try:
            return self._whose[labels]
        except KeyError:
            pass
        if len(self._whose) >= _MAX_LABEL_SETS:
            self._whose.clear()
        device = device_in(dict(labels))
        if device.key and not device.instance:
            device = self._places.get(device.pci_bus_id, device)
            self._whose[labels] = _Whose(device, tuple(value for name, value in labels if name not in _WHOSE))
        else:
            self._whose[labels] = None
        return self._whose[labels]


def _gpu_in(observed: ObservedMachine, device: Device, source: str) -> ObservedGpu:
    gpu = observed.gpus.get(device.key)
    if gpu is None:
        gpu = observed.gpus[device.key] = ObservedGpu(device, source, reason=MissingReason.NOT_YET.value)
    return gpu
