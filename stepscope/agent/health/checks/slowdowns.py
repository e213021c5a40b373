"""Check of slowdowns by heat or by the power supply."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.agent.config.settings import Thresholds
from stepscope.agent.health.observed import ObservedGpu
from stepscope.agent.health.samples import (
    CheckEvidence,
    CheckSample,
    CounterWindow,
    MinuteWindow,
    Sample,
    above,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.text.numbers import counted

_MINUTE = 60.0
_MARGIN_LEAVE_CELSIUS = 3.0
_REASONS = {
    "hardware_power_brake": (Action.CHECK_MECHANICALS, "the power supply's brake"),
    "hardware_thermal": (Action.CHECK_THERMALS, "heat"),
    "hardware_slowdown": (Action.RUN_DIAGNOSTICS, "the hardware's slowdown"),
}
"""The most specific first: the last is set with each of the others."""


class SlowdownChecks:
    """Checks of one GPU's clocks and temperature."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._thermal = CounterWindow(_MINUTE)
        self._minutes = MinuteWindow(thresholds.slowdown_minutes)

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        """Results for the newest values."""
        thermal = gpu.values.get("thermal_violation_seconds_total")
        if self._thermal.add(thermal) and thermal is not None:
            growth, limit = self._thermal.growth, self._thresholds.thermal_seconds_per_minute
            message = f"it was slowed by heat for {growth:.1f} s of a minute"
            evidence = CheckEvidence(
                Severity.WARNING, Action.CHECK_THERMALS, message, growth, limit, "seconds per minute"
            )
            yield above("thermal_violation", thermal.time_ns, evidence, leave=limit / 2, strictly=True, is_new=True)
        margin = gpu.values.get("temperature_margin_celsius")
        if margin is not None:
            yield from self._margin(margin)
        yield from self._hardware(gpu)

    def _margin(self, margin: Sample) -> Iterator[CheckSample]:
        limit = self._thresholds.temperature_margin_celsius
        if margin.value <= limit:
            message = (
                f"{counted(margin.value, 'degree is', 'degrees are')} left up to the temperature at which it slows down"
            )
            evidence = CheckEvidence(
                Severity.WARNING, Action.CHECK_THERMALS, message, margin.value, limit, "degrees Celsius"
            )
            yield bad("temperature_margin", margin.time_ns, evidence)
        elif margin.value >= limit + _MARGIN_LEAVE_CELSIUS:
            yield good("temperature_margin", margin.time_ns)

    def _hardware(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        """Number of the last minutes in which the hardware lowered the clocks: a single one passes."""
        known = {name: sample for name, sample in gpu.by_label("throttle_reason").items() if name in _REASONS}
        if not known:
            return
        time_ns = max(sample.time_ns for sample in known.values())
        self._minutes.add(time_ns, {name for name, sample in known.items() if sample.value})
        share, limit = self._minutes.share, self._thresholds.slowdown_per_minute
        seen = self._minutes.names
        action, why = next((_REASONS[name] for name in _REASONS if name in seen), (Action.NONE, ""))
        message = (
            f"in {self._minutes.count} of {counted(self._thresholds.slowdown_minutes, 'minute')} "
            f"the clocks were lowered by {why}"
        )
        evidence = CheckEvidence(Severity.WARNING, action, message, share, limit, "events per minute")
        yield above("hardware_slowdown", time_ns, evidence, leave=limit / 2, is_new=True)
