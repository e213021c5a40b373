"""How healthy is this machine, for Prometheus and for the agent's API? What happens is logged, begin and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from stepscope.agent.config.health import Thresholds
from stepscope.agent.health.observed import Observer
from stepscope.agent.health.watch import HealthWatch
from stepscope.agent.source_state import SourceState
from stepscope.core.counting import counted
from stepscope.core.health import Health, HealthEvent, HealthReport, HealthState
from stepscope.core.health_metrics import GPU_HEALTH, HOST_HEALTH
from stepscope.core.readings import Collection, Labels, Reading, with_labels

_log = logging.getLogger(__name__)

_NOTHING_YET = HealthReport(None, Health((), HealthState.UNKNOWN, "nothing was looked at yet", (), ()), (), (), ())


class HealthSource:
    """Judges what the other sources say. `events` and `report` may be asked by any thread; they wait for nothing."""

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        driver_source: str,
        *,
        thresholds: Thresholds | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            states: the sources now, in the order of their trust.
            driver_source: name of the one that reads the GPUs' own driver.
            thresholds: settings.
            wall_clock_ns: now, ns since the epoch.
        """
        thresholds = thresholds or Thresholds()
        self._states = states
        self._observer = Observer(driver_source, thresholds.stale_seconds)
        self._watch = HealthWatch(thresholds)
        self._wall_clock_ns = wall_clock_ns
        self._report = _NOTHING_YET

    def collect(self) -> Collection:
        """Look once."""
        states = self._states()
        now_ns = self._wall_clock_ns()
        for event in self._watch.step(self._observer.observe(states, now_ns), now_ns):
            _log.warning("%s", _line(event))
        self._report = report = self._watch.report(now_ns)
        return Collection(tuple(self._readings(report, now_ns)))

    def report(self) -> HealthReport:
        """How everything is, as of the last look."""
        return self._report

    def events(self) -> tuple[HealthEvent, ...]:
        """Open ones, the worst first, then the newest that are over."""
        report = self._report
        return report.open_events + report.ended_events

    def _readings(self, report: HealthReport, now_ns: int) -> Iterator[Reading]:
        for health in report.gpus:
            yield from _states_of(GPU_HEALTH, health, now_ns)
        yield from _states_of(HOST_HEALTH, report.machine, now_ns)
        gpus = {health.labels for health in report.gpus}
        for event in report.open_events:
            labels = with_labels(event.labels, code=event.code, action=event.action, severity=event.severity)
            yield Reading(_prefix(event.labels, gpus) + "_event", 1.0, labels, now_ns)
        for (whose, code), count in self._watch.totals().items():
            labels = with_labels(whose, code=code)
            yield Reading(_prefix(whose, gpus) + "_events_total", float(count), labels, now_ns)


def _states_of(prefix: str, health: Health, now_ns: int) -> Iterator[Reading]:
    for state in HealthState:
        yield Reading(prefix, float(state is health.state), with_labels(health.labels, state=state), now_ns)


def _prefix(labels: Labels, gpus: set[Labels]) -> str:
    is_gpu = labels in gpus or any(name == "gpu" for name, _ in labels)
    return GPU_HEALTH if is_gpu else HOST_HEALTH


def _line(event: HealthEvent) -> str:
    labels = dict(event.labels)
    whose = " ".join(f"{name} {value}" for name, value in labels.items()) or "this machine"
    if "gpu" in labels:
        whose = f"GPU {labels['gpu']} ({labels.get('uuid', '')})".replace(" ()", "")
    if event.ended_ns is not None:
        seconds = (event.ended_ns - event.first_ns) / 1e9
        return f"{whose}: {event.code} is over after {seconds:.0f} s, seen {counted(event.count, 'time')}"
    began = " (since before the agent started)" if event.since_start else ""
    return f"{whose}: {event.code}, {event.severity}{began}: {event.message}; {event.action.line}"
