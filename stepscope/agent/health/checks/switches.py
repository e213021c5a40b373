"""Checks of NVSwitches: their SXids, and what DCGM reports of their links.

The kernel log has each SXid, DCGM reports the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.checks.links import by_number
from stepscope.agent.health.samples import (
    LATE_NS,
    CheckEvidence,
    CheckSample,
    CounterWindow,
    SampleState,
    TimedValue,
    above,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.hardware.xids import sxid_of
from stepscope.core.metrics.gpu import SWITCH
from stepscope.core.metrics.readings import Labels, Reading, read_labels
from stepscope.core.text.numbers import counted

_MINUTE = 60.0
_LINK_ERRORS = {SWITCH + f"link_{kind}_errors_total" for kind in ("replay", "recovery", "flit", "crc")}
"""Not those that ECC corrected."""
_LINK_ACTIVE, _LINK_ERROR = 2.0, 3.0
"""Of DCGM's state of a switch's link; 1: safe, 0: off, -1: unknown."""
_MAX_NAMED_LINKS = 4


class SwitchChecks:
    """Health checks of all NVSwitches."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._windows: dict[tuple[str, Labels], CounterWindow] = {}
        self._was_active: set[Labels] = set()
        self._counts: dict[Labels, float] = {}
        self._last: dict[Labels, float] = {}
        self._until_quiet: set[tuple[Labels, str]] = set()
        self._until_reset: set[tuple[Labels, str]] = set()

    def saved(self) -> dict[str, Any]:
        """What `restore` takes, as JSON."""
        return {
            "counts": list(self._counts.items()),
            "last": list(self._last.items()),
            "was_active": sorted(self._was_active),
            "until_quiet": sorted(self._until_quiet),
            "until_reset": sorted(self._until_reset),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where an earlier agent of the same boot ended; before the first samples."""
        for known, values in ((self._counts, saved["counts"]), (self._last, saved["last"])):
            known |= {read_labels(labels): float(value) for labels, value in values}
        self._was_active |= set(map(read_labels, saved["was_active"]))
        for codes, pairs in ((self._until_quiet, saved["until_quiet"]), (self._until_reset, saved["until_reset"])):
            codes |= {(read_labels(labels), str(code)) for labels, code in pairs}

    def samples(
        self, readings: Iterable[tuple[Reading, str]], now_ns: int, *, was_reset: bool
    ) -> Iterator[tuple[Labels, CheckSample]]:
        """Results for the newest values and for the SXids since the last call, with the labels of the switch.

        Args:
            readings: of the switches, with the names of their sources.
        """
        if was_reset:
            yield from (
                (switch, CheckSample(code, now_ns, SampleState.OVER)) for switch, code in sorted(self._until_reset)
            )
            self._until_reset.clear()
        entries = list(readings)
        yield from self._links(entries)
        for reading, _ in entries:
            if reading.metric == SWITCH + "sxid_errors_total":
                labels = dict(reading.labels)
                count = int(reading.value - self._counts.get(reading.labels, 0.0))
                self._counts[reading.labels] = reading.value
                number, is_fatal = int(labels["sxid"]), labels["severity"] == "fatal"
                if count > 0:
                    switch: Labels = (("pci_bus_id", labels["pci_bus_id"]),)
                    since_ns = reading.time_ns if now_ns - reading.time_ns > LATE_NS else None
                    sample = self._comes(switch, number, now_ns, count, is_fatal=is_fatal)
                    yield switch, replace(sample, since_ns=since_ns)
            elif reading.metric == SWITCH + "sxid_fatal_last":
                before = self._last.get(reading.labels)
                self._last[reading.labels] = reading.value
                if before is not None and reading.value not in (0.0, before):  # the first may be of long ago
                    yield reading.labels, self._comes(reading.labels, int(reading.value), now_ns, 1, is_fatal=True)
            elif reading.metric == SWITCH + "reset_required":
                message = "the NVSwitch must be reset"
                evidence = CheckEvidence(Severity.CRITICAL, Action.RESET_FABRIC, message)
                is_needed = bool(reading.value)
                code = "nvswitch_reset"
                yield (
                    reading.labels,
                    bad(code, reading.time_ns, evidence) if is_needed else good(code, reading.time_ns),
                )
        for place, code in sorted(self._until_quiet):
            yield place, good(code, now_ns)

    def _links(self, readings: list[tuple[Reading, str]]) -> Iterator[tuple[Labels, CheckSample]]:
        """Results for the links of each switch: errors in a minute, and links that were active and are not."""
        growths: dict[Labels, dict[str, float]] = {}
        down: dict[Labels, set[str]] = {}
        times: dict[tuple[str, Labels], int] = {}
        for reading, source in readings:
            switch = tuple(pair for pair in reading.labels if pair[0] != "link")
            link = dict(reading.labels).get("link", "")
            if reading.metric in _LINK_ERRORS:
                window = self._windows.setdefault((reading.metric, reading.labels), CounterWindow(_MINUTE))
                if window.add(TimedValue(reading.value, reading.time_ns, source)):
                    times["errors", switch] = reading.time_ns
                of_links = growths.setdefault(switch, {})
                of_links[link] = of_links.get(link, 0.0) + window.growth
            elif reading.metric == SWITCH + "link_status":
                times["down", switch] = reading.time_ns
                of_switch = down.setdefault(switch, set())
                if reading.value == _LINK_ACTIVE:
                    self._was_active.add(reading.labels)
                elif reading.value == _LINK_ERROR or (reading.labels in self._was_active and reading.value >= 0):
                    of_switch.add(link)
        limit = self._thresholds.nvlink_errors_per_minute
        for switch, of_links in growths.items():
            if ("errors", switch) in times:
                growth = sum(of_links.values())
                message = f"NVSwitch: {counted(growth, 'error')} in a minute on {_links_text(of_links)}"
                evidence = CheckEvidence(
                    Severity.WARNING, Action.RUN_DIAGNOSTICS, message, growth, limit, "errors per minute"
                )
                yield switch, above("nvswitch_errors", times["errors", switch], evidence, leave=0.0, is_new=True)
        for switch, links in down.items():
            time_ns = times["down", switch]
            if links:
                message = f"NVSwitch: {_links_text(dict.fromkeys(links, 1.0))} of it failed or went down"
                evidence = CheckEvidence(
                    Severity.CRITICAL, Action.RESET_FABRIC, message, float(len(links)), 1.0, "links"
                )
                yield switch, bad("nvswitch_link_down", time_ns, evidence)
            else:
                yield switch, good("nvswitch_link_down", time_ns)

    def _comes(self, switch: Labels, number: int, now_ns: int, count: int, *, is_fatal: bool) -> CheckSample:
        sxid, code = sxid_of(number, is_fatal=is_fatal), f"sxid_{number}"
        is_critical = sxid.severity is Severity.CRITICAL
        (self._until_reset if is_critical else self._until_quiet).add((switch, code))
        evidence = CheckEvidence(sxid.severity, sxid.action, f"SXid {number}: {sxid.sentence}")
        return bad(code, now_ns, evidence, count=count, is_new=True)


def _links_text(growths: dict[str, float]) -> str:
    """The links that count most, or their number where they are many."""
    named = sorted((link for link, growth in growths.items() if growth > 0), key=by_number)
    if len(named) > _MAX_NAMED_LINKS:
        return counted(len(named), "link")
    return f"{'link' if len(named) == 1 else 'links'} {', '.join(named)}" if named else "its links"
