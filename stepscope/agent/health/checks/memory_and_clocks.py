"""Checks of GPU memory (ECC errors, remapped rows, retired pages), and of slowdowns by heat or the power supply."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.samples import (
    CheckEvidence,
    CheckSample,
    CounterWindow,
    MinuteWindow,
    ObservedGpu,
    SampleState,
    TimedValue,
    above,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.text.numbers import counted

_MINUTE, _WEEK = 60.0, 7 * 86_400.0
_COUNTED_BY_ECC = ("ecc_uncorrected", "ecc_corrected_rate")


class MemoryChecks:
    """Health checks of one GPU's memory."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._corrected = CounterWindow(_MINUTE)
        self._retired = CounterWindow(_WEEK)

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        has_ecc = gpu.values.get("ecc_enabled")
        if has_ecc is not None and not has_ecc.value:
            yield from self._without_ecc(has_ecc.time_ns)
        else:
            yield from self._errors(gpu.values, gpu.is_contained)
        yield from self._rows(gpu.values)
        yield from self._pages(gpu.values)

    def _without_ecc(self, time_ns: int) -> Iterator[CheckSample]:
        """Nothing counts errors. The mode changes with a reset, after which counts of before say nothing."""
        self._corrected = CounterWindow(_MINUTE)
        for code in _COUNTED_BY_ECC:
            yield CheckSample(code, time_ns, SampleState.OVER)

    def _errors(self, values: dict[str, TimedValue], is_contained: bool) -> Iterator[CheckSample]:
        of_all, on_die = values.get("ecc_uncorrected_errors_total"), values.get("sram_uncorrected_errors_total")
        uncorrected = max((one for one in (of_all, on_die) if one), key=lambda one: one.value, default=None)
        if uncorrected is not None:
            where = " on the die (SRAM)" if on_die and uncorrected.value == on_die.value else ""
            errors = f"{counted(uncorrected.value, 'memory error')}{where}"
            message = f"{errors} could not be corrected since the driver was loaded"
            severity, action = Severity.CRITICAL, Action.RESET_GPU
            if is_contained:
                severity, action = Severity.WARNING, Action.RESTART_APP
                message += "; each was contained (XID 94): reset the GPU when it is free"
            evidence = CheckEvidence(severity, action, message, uncorrected.value, 1.0, "errors")
            yield above("ecc_uncorrected", uncorrected.time_ns, evidence, leave=0.0)
        corrected = values.get("ecc_corrected_errors_total")
        if self._corrected.add(corrected) and corrected is not None:
            limits = self._thresholds
            rate = self._corrected.growth / _MINUTE
            limit, severity = limits.corrected_errors_per_second, Severity.WARNING
            if rate >= limits.corrected_errors_critical_per_second:
                limit, severity = limits.corrected_errors_critical_per_second, Severity.CRITICAL
            message = (
                f"{rate:,.1f} memory errors a second are corrected: the memory is wearing out, and calls may stall"
            )
            evidence = CheckEvidence(severity, Action.RUN_DIAGNOSTICS, message, rate, limit, "errors per second")
            leave = limits.corrected_errors_per_second / 2
            yield above("ecc_corrected_rate", corrected.time_ns, evidence, leave=leave, is_new=True)

    def _rows(self, values: dict[str, TimedValue]) -> Iterator[CheckSample]:
        failed, pending = values.get("row_remap_failed"), values.get("row_remap_pending")
        exceeded, has_ecc = values.get("sram_threshold_exceeded"), values.get("ecc_enabled")
        if exceeded is not None and (has_ecc is None or has_ecc.value):
            message = "the memory on the die (SRAM) had more errors than NVIDIA allows: rows of it cannot be replaced"
            yield _flag("sram_threshold", exceeded, Severity.CRITICAL, Action.REPLACE, message)
        if failed is not None:
            message = "a damaged row of memory could not be replaced"
            yield _flag("row_remap_failed", failed, Severity.CRITICAL, Action.REPLACE, message)
        if pending is not None:
            message = "a damaged row of memory is replaced at the next reset"
            yield _flag("row_remap_pending", pending, Severity.WARNING, Action.RESET_GPU, message)
        rows = values.get("remapped_rows_uncorrected_total")
        if rows is not None:
            message = (
                f"{counted(rows.value, 'row of memory was', 'rows of memory were')} "
                "replaced after errors that could not be corrected"
            )
            limit = self._thresholds.remapped_rows
            evidence = CheckEvidence(Severity.WARNING, Action.REPLACE, message, rows.value, limit, "rows")
            yield above("remapped_rows", rows.time_ns, evidence, leave=limit - 1)

    def _pages(self, values: dict[str, TimedValue]) -> Iterator[CheckSample]:
        """Retired pages, before Ampere. Growth of a week is known only since the agent's start."""
        limits = self._thresholds
        single, double = values.get("retired_pages_corrected_total"), values.get("retired_pages_uncorrected_total")
        self._retired.add(double)
        if single is not None and double is not None:
            total, new = single.value + double.value, self._retired.growth
            message = f"{counted(total, 'page of memory is', 'pages of memory are')} retired"
            value, limit, strictly = total, limits.retired_pages, False
            if total < limit and double.value > limits.retired_pages_uncorrected and new > 1:
                message = (
                    f"{counted(double.value, 'page is', 'pages are')} retired after "
                    f"double bit errors, {new:.0f} of them this week"
                )
                value, limit, strictly = double.value, limits.retired_pages_uncorrected, True
            evidence = CheckEvidence(Severity.CRITICAL, Action.REPLACE, message, value, limit, "pages")
            yield above("retired_pages", double.time_ns, evidence, leave=limit, strictly=strictly)
        pending = values.get("retired_pages_pending")
        if pending is not None:
            message = "pages of memory are retired at the next reset"
            yield _flag("retired_pages_pending", pending, Severity.WARNING, Action.RESET_GPU, message)


def _flag(code: str, sample: TimedValue, severity: Severity, action: Action, message: str) -> CheckSample:
    if sample.value:
        return bad(code, sample.time_ns, CheckEvidence(severity, action, message))
    return good(code, sample.time_ns)


_MARGIN_LEAVE_CELSIUS = 3.0
_LASTING_SECONDS = 30.0
"""So that it is known within a minute."""
_REASONS = {
    "hardware_power_brake": (Action.CHECK_MECHANICALS, "the power supply's brake"),
    "hardware_thermal": (Action.CHECK_THERMALS, "heat"),
    "hardware_slowdown": (Action.RUN_DIAGNOSTICS, "the hardware's slowdown"),
}
"""The most specific first: the last is set with each of the others."""


def _temperature_margin(values: dict[str, TimedValue]) -> TimedValue | None:
    """Degrees left up to the slowdown; before Ada by the two temperatures, as the driver reports none."""
    margin = values.get("temperature_margin_celsius")
    now, slowdown = values.get("temperature_celsius"), values.get("temperature_slowdown_celsius")
    if margin is not None or now is None or slowdown is None:
        return margin
    return now._replace(value=slowdown.value - now.value)


class SlowdownChecks:
    """Health checks of one GPU's clocks and temperature."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._thermal = CounterWindow(_MINUTE)
        self._minutes = MinuteWindow(thresholds.slowdown_minutes)
        self._slow_since_ns: int | None = None
        self._slow_ns: int | None = None

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        thermal = gpu.values.get("thermal_violation_seconds_total")
        if self._thermal.add(thermal) and thermal is not None:
            growth, limit = self._thermal.growth, self._thresholds.thermal_seconds_per_minute
            message = f"it was slowed by heat for {growth:.2g} s of a minute"
            evidence = CheckEvidence(
                Severity.WARNING, Action.CHECK_THERMALS, message, growth, limit, "seconds per minute"
            )
            yield above("thermal_violation", thermal.time_ns, evidence, leave=limit / 2, strictly=True, is_new=True)
        margin = _temperature_margin(gpu.values)
        if margin is not None:
            yield from self._margin(margin)
        yield from self._hardware(gpu)

    def _margin(self, margin: TimedValue) -> Iterator[CheckSample]:
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
        """Minutes in which the hardware lowered the clocks; a single one passes, a time without a break does not."""
        known = {name: sample for name, sample in gpu.by_label("throttle_reason").items() if name in _REASONS}
        if not known:
            return
        time_ns = max(sample.time_ns for sample in known.values())
        active = {name for name, sample in known.items() if sample.value}
        self._minutes.add(time_ns, active)
        lasting_seconds = self._lasting_seconds(time_ns, is_active=bool(active))
        share, limit = self._minutes.share, self._thresholds.slowdown_per_minute
        seen = self._minutes.names
        action, why = next((_REASONS[name] for name in _REASONS if name in seen), (Action.NONE, ""))
        message = (
            f"in {self._minutes.count} of {counted(self._thresholds.slowdown_minutes, 'minute')} "
            f"the clocks were lowered by {why}"
        )
        evidence = CheckEvidence(Severity.WARNING, action, message, share, limit, "events per minute")
        if lasting_seconds >= _LASTING_SECONDS and share < limit:
            message = f"the clocks have been lowered by {why} for {lasting_seconds:.0f} s without a break"
            yield bad("hardware_slowdown", time_ns, CheckEvidence(Severity.WARNING, action, message), is_new=True)
        else:
            yield above("hardware_slowdown", time_ns, evidence, leave=limit / 2, is_new=True)

    def _lasting_seconds(self, time_ns: int, *, is_active: bool) -> float:
        """How long every sample had a slowdown; samples a minute apart are no proof of what was between."""
        last_ns, self._slow_ns = self._slow_ns, time_ns
        if not is_active or last_ns is None or not 0 <= time_ns - last_ns <= self._thresholds.stale_seconds * 1e9:
            self._slow_since_ns = None
        if is_active and self._slow_since_ns is None:
            self._slow_since_ns = time_ns
        return 0.0 if self._slow_since_ns is None else (time_ns - self._slow_since_ns) / 1e9
