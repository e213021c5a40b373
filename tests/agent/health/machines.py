"""A machine to watch: values of its GPUs, ports and switches, look after look, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.health_source import HealthWatch
from stepscope.agent.health.samples import HealthObserver
from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import device_in
from stepscope.core.hardware.health import Health, HealthEvent
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, Missing, Reading, labels_of, with_labels

SECOND = 10**9
START = 1_700_000_000 * SECOND
LABELS = labels_of(gpu=0, uuid="GPU-0")
DRIVER = "nvml"


def labels_of_gpu(index: int) -> Labels:
    """Labels of a GPU."""
    return labels_of(gpu=index, uuid=f"GPU-{index}")


def _labels(index: int, values: Mapping[str, float]) -> Labels:
    """A GPU with the value "nameless" has not told its name yet."""
    return labels_of(gpu=index) if "nameless" in values else labels_of_gpu(index)


class Machine:
    """Values by GPU stay until they are changed; each look dates them anew.

    Attributes:
        now_ns: the time, ns since the epoch.
        gpus: values of each GPU by its metric without prefix; `name{label=value,...}` has further labels.
        readings: others, as metric, value and labels.
        missing, findings: of the GPUs' source.
        driver_missing: of the driver's own source, where that is another and there.
        changes: events that began or ended, in order.
    """

    def __init__(self, num_gpus: int = 1, *, source: str = DRIVER, thresholds: HealthThresholds | None = None) -> None:
        thresholds = thresholds or HealthThresholds()
        self.now_ns = START
        self.gpus: dict[int, dict[str, float]] = {index: {"up": 1.0} for index in range(num_gpus)}
        self.readings: dict[tuple[str, Labels], float] = {}
        self.missing: list[Missing] = []
        self.findings: list[Finding] = []
        self.driver_missing: list[Missing] = []
        self.changes: list[HealthEvent] = []
        self._source = source
        self._observer = HealthObserver(DRIVER, thresholds.stale_seconds)
        self._watch = HealthWatch(thresholds)

    def set(self, values: Mapping[str, float | None], gpu: int = 0) -> None:
        """Change values of a GPU; None takes one away."""
        for name, value in values.items():
            if value is None:
                self.gpus[gpu].pop(name, None)
            else:
                self.gpus[gpu][name] = value

    def look(self, seconds: float = 10.0, *, is_stale: bool = False) -> list[HealthEvent]:
        """Let time pass and look; the events that began or ended.

        Args:
            seconds: since the last look.
            is_stale: the sources say what they said before, with its old time.
        """
        self.now_ns += int(seconds * SECOND)
        if not is_stale:
            self._states = self._said()
        changes = self._watch.step(self._observer.observe(self._states, self.now_ns), self.now_ns)
        self.changes += changes
        return changes

    def looks(self, times: int, seconds: float = 10.0) -> list[HealthEvent]:
        """Look again and again at the same values."""
        return [change for _ in range(times) for change in self.look(seconds)]

    def grow(self, name: str, by: float, *, times: int = 6, seconds: float = 10.0, gpu: int = 0) -> list[HealthEvent]:
        """Look while a counter grows."""
        changes = []
        for _ in range(times):
            self.gpus[gpu][name] = self.gpus[gpu].get(name, 0.0) + by
            changes += self.look(seconds)
        return changes

    def health(self, gpu: int = 0) -> Health:
        """How a GPU is."""
        return self._watch.report(self.now_ns).gpus[device_in(dict(labels_of_gpu(gpu)))]

    def num_gpus(self) -> int:
        """How many GPUs are told of."""
        return len(self._watch.report(self.now_ns).gpus)

    def machine(self) -> Health:
        """How the machine beside them is."""
        return self._watch.report(self.now_ns).machine

    def open(self) -> list[HealthEvent]:
        """Open events."""
        return list(self._watch.report(self.now_ns).open_events)

    def codes(self) -> list[str]:
        """Their codes."""
        return [event.code for event in self.open()]

    def _said(self) -> tuple[SourceState, ...]:
        of_gpus = [
            _reading(GPU + name, value, _labels(index, values), self.now_ns)
            for index, values in self.gpus.items()
            for name, value in values.items()
        ]
        others = [Reading(name, value, labels, self.now_ns) for (name, labels), value in self.readings.items()]
        collection = Collection(tuple(of_gpus), tuple(self.missing), tuple(self.findings))
        driver = SourceState(DRIVER, Collection((), tuple(self.driver_missing)), self.now_ns)
        return (
            *((driver,) if self.driver_missing else ()),
            SourceState(self._source, collection, self.now_ns),
            SourceState("others", Collection(tuple(others)), self.now_ns),
        )


def _reading(name: str, value: float, labels: Labels, time_ns: int) -> Reading:
    metric, _, further = name.partition("{")
    pairs = dict(pair.split("=") for pair in further.rstrip("}").split(",") if pair)
    return Reading(metric, value, with_labels(labels, **pairs), time_ns)


def codes_of(events: Iterable[HealthEvent]) -> list[str]:
    """Codes of events that began."""
    return [event.code for event in events if event.ended_ns is None]
