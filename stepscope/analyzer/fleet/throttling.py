"""Is a busy GPU slowed, and by what?"""

from __future__ import annotations

from stepscope.analyzer.fleet.limits import Limits
from stepscope.analyzer.fleet.window import Window
from stepscope.core.analysis import Evidence
from stepscope.core.causes import Reason

_BUSY = 0.5
_SLOWED = 0.9
_KINDS = (
    (Reason.HEAT, frozenset({"hardware_thermal", "software_thermal"})),
    (Reason.HARDWARE_SLOWDOWN, frozenset({"hardware_slowdown", "hardware_power_brake"})),
    (Reason.POWER_CAP, frozenset({"software_power_cap"})),
    (Reason.CLOCK_SETTING, frozenset({"application_clocks", "sync_boost", "display_clocks"})),
)
"""The first that holds counts. NVML sets `hardware_slowdown` beside `hardware_thermal`: heat is asked for first."""
_FAULTS = (Reason.HEAT, Reason.HARDWARE_SLOWDOWN)


def throttle_of(window: Window, limits: Limits) -> tuple[Reason, list[Evidence]] | None:
    """Why it is slowed and the evidence; None where it is not, or that is not known.

    Hardware and thermal reasons count with any loss of clock. A power cap is normal under load (recorded: clocks down
    to 0.87 of their highest), and a clock that somebody set is a setting: both count where little clock is left.
    """
    busy, clock, highest = window.busy, window.mean.clock_hertz, window.facts.clock_max_hertz
    told = [sample.throttle_reasons for sample in window.samples if sample.throttle_reasons is not None]
    if busy is None or busy < _BUSY or not told:
        return None
    ratio = clock / highest if clock is not None and highest else None
    for reason, names in _KINDS:
        share = sum(not names.isdisjoint(reasons) for reasons in told) / len(told)
        is_fault = reason in _FAULTS
        least = _SLOWED if is_fault else limits.clock_low
        if share < limits.throttle_share or (ratio is None and not is_fault) or (ratio is not None and ratio > least):
            continue
        evidence = [Evidence(f"throttled_by_{reason}_ratio", share, "ratio", limits.throttle_share)]
        if ratio is not None:
            evidence.append(Evidence("clock_of_highest_ratio", ratio, "ratio", least))
        return reason, evidence
    return None
