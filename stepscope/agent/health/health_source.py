"""Source of health: runs all checks on what the other sources report, and logs when an event begins or ends."""

from __future__ import annotations

import logging
import threading
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
from stepscope.agent.health.lasting import WatchState
from stepscope.agent.health.memory import HealthMemory, RestoredHealth
from stepscope.agent.health.samples import CheckSample, HealthObserver, ObservedGpu, ObservedMachine
from stepscope.agent.polling import SourceState
from stepscope.core.documents.health import NODE
from stepscope.core.hardware.devices import Device, device_in, device_of
from stepscope.core.hardware.health import (
    NOTES,
    Health,
    HealthEvent,
    HealthReport,
    HealthState,
    OperatorNote,
    Severity,
)
from stepscope.core.metrics.agent import GPU_HEALTH, HOST_HEALTH
from stepscope.core.metrics.readings import Collection, Labels, Reading, with_labels
from stepscope.core.text.numbers import counted

_log = logging.getLogger(__name__)

_NOTHING_YET = HealthReport(None, Health(HealthState.UNKNOWN, "nothing was looked at yet"), {}, (), ())


_ANNOUNCE_SECONDS = 1.0
"""Longest that an event waits to be kept before it is announced, so that it is not announced again after a kill."""
_NOTE_SECONDS = 5.0
"""Longest that an operator waits until a note is kept."""
_MAX_OPEN_LINES = 20


class HealthSource:
    """The agent's source of health: checks what the other sources report. Any thread may call its methods.

    Args:
        states: the sources now, in the order of their trust.
        driver_source: name of the one that reads the GPUs' own driver.
        memory: of the health of before; None: nothing is kept.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        driver_source: str,
        *,
        thresholds: HealthThresholds | None = None,
        memory: HealthMemory | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        thresholds = thresholds or HealthThresholds()
        self._states = states
        self._observer = HealthObserver(driver_source, thresholds.stale_seconds)
        self._watch = HealthWatch(thresholds)
        self._memory = memory
        self._wall_clock_ns = wall_clock_ns
        self._lock = threading.Lock()
        self._report = _NOTHING_YET

    def resume(self) -> None:
        """Go on with what an earlier agent knew, if there is a memory; before the first collection."""
        if self._memory is None:
            return
        restored = self._memory.resume()
        if restored is None:
            return
        now_ns = self._wall_clock_ns()
        with self._lock:
            try:
                over = self._watch.restore(restored, now_ns)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                _log.warning("the stored XIDs cannot be read (%s: %s)", type(error).__name__, error)
                over = []
            self._memory.keep(self._watch.state(), over, now_ns)
            self._report = self._watch.report(now_ns)
        for event in over:
            _log.warning("%s", _line(event))
        still_open = [event for event in self._report.open_events if event.severity is not Severity.INFO]
        for event in still_open[:_MAX_OPEN_LINES]:
            _log.warning("%s", _line(event, goes_on=True))
        if len(still_open) > _MAX_OPEN_LINES:
            _log.warning("%d more health events are still open", len(still_open) - _MAX_OPEN_LINES)

    def leave(self) -> None:
        """Keep what was read last, also what was not checked any more; after the last collection."""
        with self._lock:
            self._keep((), self._wall_clock_ns(), has_note=True)

    def collect(self) -> Collection:
        states = self._states()
        now_ns = self._wall_clock_ns()
        with self._lock:
            changes = self._watch.step(self._observer.observe(states, now_ns), now_ns)
            number = self._keep(changes, now_ns)
        if changes and self._memory is not None:
            self._memory.is_written(number, _ANNOUNCE_SECONDS)
        for event in changes:
            _log.warning("%s", _line(event))
        with self._lock:
            self._report = report = self._watch.report(now_ns)
            return Collection(tuple(self._readings(report, now_ns)))

    def report(self) -> HealthReport:
        """Health of all GPUs and the machine, as of the last collection or an operator's note after it."""
        return self._report

    @property
    def is_kept(self) -> bool:
        """Whether this health outlives the agent."""
        return self._memory is not None and self._memory.is_kept is True

    def acknowledge(self, event_id: str, *, by: str, why: str) -> HealthEvent | None:
        """Note that somebody knows of an open event; the event, or None where none has this id."""
        now_ns = self._wall_clock_ns()
        with self._lock:
            event = self._watch.acknowledge(event_id, OperatorNote(by, why, now_ns))
            if event is None:
                return None
            number = self._keep((), now_ns, has_note=True)
            self._report = self._watch.report(self._report.time_ns or now_ns)
        _log.warning("%s: %s is acknowledged by %s: %s", _whose(event), event.code, by, why)
        self._settle(number)
        return event

    def set_healthy(self, target: str, *, by: str, why: str) -> list[HealthEvent] | None:
        """End all open events of a GPU, or of the machine and all in it, by an operator's word.

        Args:
            target: index, UUID or PCI bus id of a GPU, or "node".

        Returns:
            The events that ended; None where there is no such GPU. Nothing in which a condition stands is set healthy.

        Raises:
            StandingConditionError: a condition of this GPU stands.
        """
        now_ns = self._wall_clock_ns()
        with self._lock:
            ended = self._watch.set_healthy(target, OperatorNote(by, why, now_ns))
            if ended is None:
                return None
            number = self._keep(ended, now_ns, has_note=True)
            self._report = self._watch.report(self._report.time_ns or now_ns)
        for event in ended:
            _log.warning("%s: %s is over, set healthy by %s: %s", _whose(event), event.code, by, why)
        if not ended:
            _log.warning("%s is set healthy by %s: %s; no event was open", target, by, why)
        self._settle(number)
        return ended

    def _keep(self, changes: Sequence[HealthEvent], now_ns: int, *, has_note: bool = False) -> int | None:
        if self._memory is None:
            return None
        return self._memory.keep(self._watch.state(), changes, now_ns, has_note=has_note)

    def _settle(self, number: int | None) -> None:
        if self._memory is not None:
            self._memory.is_written(number, _NOTE_SECONDS)

    def _readings(self, report: HealthReport, now_ns: int) -> Iterator[Reading]:
        for device, health in report.gpus.items():
            yield from _states_of(GPU_HEALTH, device.labels(), health, now_ns)
        yield from _states_of(HOST_HEALTH, (), report.machine, now_ns)
        gpus = {device.labels() for device in report.gpus}
        for event in report.open_events:
            labels = with_labels(event.labels, code=event.code, action=event.action, severity=event.severity)
            prefix = _prefix(event.labels, gpus)
            yield Reading(prefix + "_event", 1.0, labels, now_ns)
            if event.acknowledged is not None:
                yield Reading(prefix + "_event_acknowledged", 1.0, labels, now_ns)
        for (whose, code), count in self._watch.totals().items():
            labels = with_labels(whose, code=code)
            yield Reading(_prefix(whose, gpus) + "_events_total", float(count), labels, now_ns)


def _states_of(prefix: str, labels: Labels, health: Health, now_ns: int) -> Iterator[Reading]:
    for state in HealthState:
        yield Reading(prefix, float(state is health.state), with_labels(labels, state=state), now_ns)


def _prefix(labels: Labels, gpus: set[Labels]) -> str:
    is_gpu = labels in gpus or any(name == "gpu" for name, _ in labels)
    return GPU_HEALTH if is_gpu else HOST_HEALTH


def _whose(event: HealthEvent) -> str:
    device = device_of(event.labels)
    return str(device) if device else " ".join(f"{name} {value}" for name, value in event.labels) or "this machine"


def _line(event: HealthEvent, *, goes_on: bool = False) -> str:
    whose = _whose(event)
    if event.ended_ns is not None:
        seconds = (event.ended_ns - event.first_ns) / 1e9
        return f"{whose}: {event.code} is over after {seconds:.0f} s, seen {counted(event.count, 'time')}"
    began = " (since before the agent started)" if event.since_start or goes_on else ""
    return f"{whose}: {event.code}, {event.severity}{began}: {event.message}; {event.action.line}"


_MACHINE = "machine"
_UNCHECKED_SECONDS = 300.0
"""Without a sample for so long, a check counts as not done."""
_ONLY_BY_XIDS = frozenset({"xid_earlier", "xid_repeats"})
"""Codes that need no values of their own and never count as not checked."""
_OF_MACHINE = ("driver_", "gpu_count", "infiniband_", "nvswitch_")
_OVER_BY_REBOOT = ("xid_", "sxid_")
"""Codes of errors that came; all others are conditions, which the next sample shows."""
MAX_SHOWN_AGE_NS = 30 * 86400 * 10**9
"""Of ended events."""


class StandingConditionError(Exception):
    """A GPU cannot be set healthy while this event's condition stands.

    Attributes:
        event: the open event.
    """

    def __init__(self, event: HealthEvent) -> None:
        self.event = event
        super().__init__(event.code)


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
        self._buses: dict[str, str] = {}
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
        oldest_ns = now_ns - MAX_SHOWN_AGE_NS
        ended = tuple(one for one in reversed(self._episodes.ended) if (one.ended_ns or 0) >= oldest_ns)
        return HealthReport(now_ns, self._machine(others, now_ns), health, tuple(event for _, event in events), ended)

    def totals(self) -> dict[tuple[Labels, str], int]:
        return dict(self._episodes.totals)

    def acknowledge(self, event_id: str, note: OperatorNote) -> HealthEvent | None:
        """See `HealthEpisodes.acknowledge`."""
        return self._episodes.acknowledge(event_id, note)

    def set_healthy(self, target: str, note: OperatorNote) -> list[HealthEvent] | None:
        """End the events of a GPU, or of all; a GPU that no source reports any more is forgotten. None: no such GPU.

        Raises:
            StandingConditionError: see `HealthSource.set_healthy`.
        """
        if target == NODE:
            keys = self._episodes.keys()
        else:
            keys = {key for key, gpu in self._gpus.items() if target in (gpu.device.index, key, self._buses.get(key))}
        if not keys and target != NODE:
            return None
        standing = {
            key: event
            for key, event in self._episodes.open_events()
            if key in keys and self._stands(key, event, note.time_ns)
        }
        if standing and target != NODE:
            raise StandingConditionError(next(iter(standing.values())))
        keys -= standing.keys()
        ended = []
        for key in sorted(keys):
            ended += self._episodes.set_healthy(key, note)
            if key in self._gpus and self._gpus[key].observed is None:
                del self._gpus[key]
                self._episodes.forget(key, note.time_ns)
        return ended

    def _stands(self, key: str, event: HealthEvent, now_ns: int) -> bool:
        """Whether the newest look still showed the condition of an open event."""
        is_away = key in self._gpus and self._gpus[key].observed is None
        return not is_away and self._episodes.stands(key, event.code, now_ns)

    def state(self) -> WatchState:
        """What a restarted agent needs to go on."""
        episodes = self._episodes.lasting()
        keys = {one.key for one in episodes}
        gpus = {key: gpu.device.labels() for key, gpu in self._gpus.items() if key in keys}
        return WatchState(
            tuple(episodes),
            tuple((labels, code, count) for (labels, code), count in self._episodes.totals.items()),
            gpus,
            {key: self._buses[key] for key in gpus if key in self._buses},
            self._xids.saved(),
            self._switches.saved(),
        )

    def restore(self, restored: RestoredHealth, now_ns: int) -> list[HealthEvent]:
        """Go on where an earlier agent ended, before the first step; the events that a reboot since has ended.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the XIDs are damaged; the events are restored.
        """
        state = restored.watch
        self._episodes.restore(state.episodes, restored.ended, state.totals)
        self._buses = dict(state.buses)
        for key, labels in state.gpus.items():
            self._gpus[key] = self._new_gpu(device_in(dict(labels)))
        if not restored.is_same_boot:
            return self._episodes.end_codes(lambda code: code.startswith(_OVER_BY_REBOOT), now_ns)
        self._xids.restore(state.xids)
        self._switches.restore(state.switches)
        return []

    def _new_gpu(self, device: Device) -> _Gpu:
        return _Gpu(device, tuple(check(self._thresholds) for check in _GPU_CHECKS))

    def _name(self, observed: ObservedMachine, now_ns: int) -> list[HealthEvent]:
        """Remove GPUs that are known by their UUID now, or in whose place is another; the events that end with them."""
        named = {gpu.device.index for gpu in observed.gpus.values() if gpu.device.uuid}
        ghosts = []
        for key, gpu in self._gpus.items():
            device = gpu.device
            is_named = device.index in named or device.pci_bus_id in observed.places
            instead = observed.places.get(self._buses.get(key, ""))
            is_replaced = instead is not None and instead.key != key and instead.key in observed.gpus
            if key not in observed.gpus and ((not device.uuid and is_named) or is_replaced):
                ghosts.append(key)
        self._buses |= {device.key: place for place, device in observed.places.items()}
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
                known = self._gpus[key] = self._new_gpu(seen.device)
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
