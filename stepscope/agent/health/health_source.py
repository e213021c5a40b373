"""Source of health: runs all checks on what the other sources report, and logs when an event begins or ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.checks.driver import AnswerChecks, DriverChecks
from stepscope.agent.health.checks.links import NvlinkChecks, PcieChecks, PortChecks
from stepscope.agent.health.checks.memory_and_clocks import MemoryChecks, SlowdownChecks
from stepscope.agent.health.checks.switches import SwitchChecks
from stepscope.agent.health.checks.xids import XidChecks
from stepscope.agent.health.episodes import HealthEpisodes, Hysteresis, health_hysteresis_of
from stepscope.agent.health.samples import CheckSample, HealthObserver, ObservedGpu, ObservedMachine
from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import Device, device_of
from stepscope.core.hardware.health import NOTES, Health, HealthEvent, HealthReport, HealthState, Severity
from stepscope.core.metrics.agent import GPU_HEALTH, HOST_HEALTH
from stepscope.core.metrics.readings import Collection, Labels, Reading, with_labels
from stepscope.core.text.numbers import counted

_log = logging.getLogger(__name__)

_NOTHING_YET = HealthReport(None, Health(HealthState.UNKNOWN, "nothing was looked at yet"), {}, (), ())


class HealthSource:
    """The agent's source of health: checks what the other sources report. `report` may be called from any thread.

    Args:
        states: the sources now, in the order of their trust.
        driver_source: name of the one that reads the GPUs' own driver.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        driver_source: str,
        *,
        thresholds: HealthThresholds | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        thresholds = thresholds or HealthThresholds()
        self._states = states
        self._observer = HealthObserver(driver_source, thresholds.stale_seconds)
        self._watch = HealthWatch(thresholds)
        self._wall_clock_ns = wall_clock_ns
        self._report = _NOTHING_YET

    def collect(self) -> Collection:
        states = self._states()
        now_ns = self._wall_clock_ns()
        for event in self._watch.step(self._observer.observe(states, now_ns), now_ns):
            _log.warning("%s", _line(event))
        self._report = report = self._watch.report(now_ns)
        return Collection(tuple(self._readings(report, now_ns)))

    def report(self) -> HealthReport:
        """Health of all GPUs and the machine, as of the last collection."""
        return self._report

    def _readings(self, report: HealthReport, now_ns: int) -> Iterator[Reading]:
        for device, health in report.gpus.items():
            yield from _states_of(GPU_HEALTH, device.labels(), health, now_ns)
        yield from _states_of(HOST_HEALTH, (), report.machine, now_ns)
        gpus = {device.labels() for device in report.gpus}
        for event in report.open_events:
            labels = with_labels(event.labels, code=event.code, action=event.action, severity=event.severity)
            yield Reading(_prefix(event.labels, gpus) + "_event", 1.0, labels, now_ns)
        for (whose, code), count in self._watch.totals().items():
            labels = with_labels(whose, code=code)
            yield Reading(_prefix(whose, gpus) + "_events_total", float(count), labels, now_ns)


def _states_of(prefix: str, labels: Labels, health: Health, now_ns: int) -> Iterator[Reading]:
    for state in HealthState:
        yield Reading(prefix, float(state is health.state), with_labels(labels, state=state), now_ns)


def _prefix(labels: Labels, gpus: set[Labels]) -> str:
    is_gpu = labels in gpus or any(name == "gpu" for name, _ in labels)
    return GPU_HEALTH if is_gpu else HOST_HEALTH


def _line(event: HealthEvent) -> str:
    device = device_of(event.labels)
    whose = str(device) if device else " ".join(f"{name} {value}" for name, value in event.labels) or "this machine"
    if event.ended_ns is not None:
        seconds = (event.ended_ns - event.first_ns) / 1e9
        return f"{whose}: {event.code} is over after {seconds:.0f} s, seen {counted(event.count, 'time')}"
    began = " (since before the agent started)" if event.since_start else ""
    return f"{whose}: {event.code}, {event.severity}{began}: {event.message}; {event.action.line}"


_MACHINE = "machine"
_UNCHECKED_SECONDS = 300.0
"""Without a sample for so long, a check counts as not done."""
_ONLY_BY_XIDS = frozenset({"xid_earlier", "xid_repeats"})
"""Codes that need no values of their own and never count as not checked."""
_OF_MACHINE = ("driver_", "gpu_count", "infiniband_", "nvswitch_")


class GpuCheck(Protocol):
    """Health checks of one GPU, which remember its samples."""

    def samples(self, gpu: ObservedGpu) -> Iterable[CheckSample]:
        """Results for the newest values."""


_GPU_CHECKS: tuple[Callable[[HealthThresholds], GpuCheck], ...] = (
    AnswerChecks,
    MemoryChecks,
    PcieChecks,
    NvlinkChecks,
    SlowdownChecks,
)


@dataclass(slots=True)
class _Gpu:
    device: Device
    checks: tuple[GpuCheck, ...]
    observed: ObservedGpu | None = None


class HealthWatch:
    """Health of a machine. GPUs are remembered: one that is no longer reported is unknown, not healthy."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._hysteresis = health_hysteresis_of(thresholds)
        self._xid_hysteresis = Hysteresis(0.0, thresholds.xid_leave_seconds)
        self._episodes = HealthEpisodes(self._hysteresis_of, gap_seconds=thresholds.stale_seconds)
        self._gpus: dict[str, _Gpu] = {}
        self._xids = XidChecks(thresholds)
        self._driver = DriverChecks(thresholds)
        self._ports = PortChecks()
        self._switches = SwitchChecks(thresholds)

    def step(self, observed: ObservedMachine, now_ns: int) -> list[HealthEvent]:
        """Check an observation; the events that began or ended with it, in order."""
        changes = self._name(observed, now_ns)
        for key, labels, sample in self._samples(observed, now_ns):
            event = self._episodes.observe(key, labels, sample)
            if event is not None:
                changes.append(event)
        return changes

    def report(self, now_ns: int) -> HealthReport:
        """Health after the last step; `now_ns` is the time of that step."""
        events = self._episodes.open_events()
        health = {
            gpu.device: self._health(key, gpu, [event for whose, event in events if whose == key], now_ns)
            for key, gpu in sorted(self._gpus.items(), key=lambda entry: _order(entry[1].device))
        }
        others = [event for whose, event in events if whose not in self._gpus]
        ended = tuple(reversed(self._episodes.ended))
        return HealthReport(now_ns, self._machine(others, now_ns), health, tuple(event for _, event in events), ended)

    def totals(self) -> dict[tuple[Labels, str], int]:
        return dict(self._episodes.totals)

    def _name(self, observed: ObservedMachine, now_ns: int) -> list[HealthEvent]:
        """Remove GPUs that are known by their UUID now; the events that end with them."""
        named = {gpu.device.index for gpu in observed.gpus.values() if gpu.device.uuid}
        ghosts = []
        for key, gpu in self._gpus.items():
            device = gpu.device
            is_named = device.index in named or device.pci_bus_id in observed.places
            if not device.uuid and key not in observed.gpus and is_named:
                ghosts.append(key)
        for key in ghosts:
            del self._gpus[key]
        return [event for key in ghosts for event in self._episodes.forget(key, now_ns)]

    def _hysteresis_of(self, code: str) -> Hysteresis:
        return self._hysteresis.get(code, self._xid_hysteresis)

    def _samples(self, observed: ObservedMachine, now_ns: int) -> Iterator[tuple[str, Labels, CheckSample]]:
        for gpu in self._gpus.values():
            gpu.observed = None
        for key, seen in observed.gpus.items():
            known = self._gpus.get(key)
            if known is None:
                checks = tuple(check(self._thresholds) for check in _GPU_CHECKS)
                known = self._gpus[key] = _Gpu(seen.device, checks)
            known.device, known.observed = seen.device, seen
        for key, sample in self._xids.samples(observed.gpus, now_ns):
            yield key, self._gpus[key].device.labels(), sample
        for key, seen in observed.gpus.items():
            seen.is_contained, seen.has_driver_hang = self._xids.is_contained(key), observed.is_drivers_hang(seen)
            labels = seen.device.labels()
            for check in self._gpus[key].checks:
                for sample in check.samples(seen):
                    yield key, labels, sample
        for sample in self._driver.samples(observed):
            yield _MACHINE, (), sample
        for port, sample in self._ports.samples(observed.machine):
            yield f"port {port}", port, sample
        for switch, sample in self._switches.samples(observed.machine, now_ns, was_reset=self._xids.was_reset):
            yield f"switch {switch}", switch, sample

    def _health(self, key: str, gpu: _Gpu, events: list[HealthEvent], now_ns: int) -> Health:
        unchecked = tuple(
            code for code in self._hysteresis if not code.startswith(_OF_MACHINE) and self._is_old(key, code, now_ns)
        )
        codes = tuple(event.code for event in events)
        state, reason = _worst(events)
        seen = gpu.observed
        if state is HealthState.HEALTHY and (seen is None or seen.up is None or not seen.up.value):
            state = HealthState.UNKNOWN
            message = (seen.detail or seen.reason) if seen is not None else ""
            reason = message or "no source reports new values of it"
        return Health(state, reason, codes, unchecked)

    def _is_old(self, key: str, code: str, now_ns: int) -> bool:
        last_ns = self._episodes.last_ns(key, code)
        return code not in _ONLY_BY_XIDS and (last_ns is None or now_ns - last_ns > _UNCHECKED_SECONDS * 1e9)

    def _machine(self, events: list[HealthEvent], now_ns: int) -> Health:
        state, reason = _worst(events)
        unchecked = tuple(
            code for code in self._hysteresis if code.startswith("driver_") and self._is_old(_MACHINE, code, now_ns)
        )
        if state is HealthState.HEALTHY and unchecked:
            state, reason = HealthState.UNKNOWN, "no GPU driver was asked, or it is not there"
        return Health(state, reason, tuple(event.code for event in events), unchecked)


def _worst(events: list[HealthEvent]) -> tuple[HealthState, str]:
    """State and reason by open events, the worst first; events of severity info count only as notes."""
    bad = [event for event in events if event.severity is not Severity.INFO]
    if not bad:
        return HealthState.HEALTHY, next((event.message for event in events if event.code in NOTES), "")
    is_critical = bad[0].severity is Severity.CRITICAL
    return (HealthState.FAILED if is_critical else HealthState.DEGRADED), bad[0].message


def _order(device: Device) -> tuple[int, Labels]:
    return (int(device.index) if device.index.isdecimal() else 1 << 30, device.labels())
