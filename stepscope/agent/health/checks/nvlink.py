"""Do a GPU's NVLinks lose data, are any down, and has it joined the fabric?

Up to NVLink 4 there are counters of checksums, replays and recoveries; from NVLink 5 on ratios of wrong bits and other
counters. A rule whose counters a GPU has not says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.agent.config.health import Thresholds
from stepscope.agent.health.counters import CounterWindow
from stepscope.agent.health.observed import ObservedGpu
from stepscope.agent.health.signs import Evidence, Sign, above, bad, good
from stepscope.core.health import Action, Severity

_MINUTE = 60.0
_CRC = ("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total")
_BY_MINUTE = (
    ("nvlink_replays", Severity.WARNING, "packets sent again", ("nvlink_replay_errors_total",)),
    (
        "nvlink_recoveries",
        Severity.CRITICAL,
        "recoveries of a link",
        ("nvlink_recovery_errors_total", "nvlink_recoveries_total", "nvlink_recoveries_failed_total"),
    ),
    (
        "nvlink_errors",
        Severity.CRITICAL,
        "errors received or limits passed",
        ("nvlink_receive_errors_total", "nvlink_integrity_errors_total"),
    ),
)
"""Code, severity, what is counted, and the counters."""
_FABRIC = {
    "not_started": (Severity.CRITICAL, "it has not begun to join the NVLink fabric: is the fabric manager running?"),
    "in_progress": (Severity.WARNING, "it has been joining the NVLink fabric for too long"),
    "failed": (Severity.CRITICAL, "it could not join the NVLink fabric"),
}
_ASPECTS = {
    "bandwidth": (Severity.CRITICAL, "its bandwidth is lower than it should be"),
    "route": (Severity.CRITICAL, "a route is unhealthy"),
    "route_recovery": (Severity.WARNING, "a route is being recovered"),
    "access_timeout_recovery": (Severity.WARNING, "it recovers from an access that took too long"),
}


class NvlinkChecks:
    """One GPU's."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._windows: dict[str, CounterWindow] = {}
        self._was_up: set[str] = set()

    def signs(self, gpu: ObservedGpu) -> Iterator[Sign]:
        """What the newest samples say."""
        yield from self._checksums(gpu)
        for code, severity, what, names in _BY_MINUTE:
            growth, time_ns = self._growth(gpu, names)
            if time_ns is not None:
                limit = self._thresholds.nvlink_errors_per_minute
                said = f"NVLink: {growth:.0f} {what} in a minute"
                evidence = Evidence(severity, Action.RUN_DIAGNOSTICS, said, growth, limit, "errors per minute")
                yield above(code, time_ns, evidence, leave=0.0, is_new=True)
        yield from self._bit_errors(gpu)
        yield from self._links(gpu)
        yield from self._fabric(gpu)

    def _growth(self, gpu: ObservedGpu, names: tuple[str, ...]) -> tuple[float, int | None]:
        """Growth of the counters together in a minute; the time of the newest, None where none is new."""
        growth, newest_ns = 0.0, None
        for name in names:
            sample = gpu.values.get(name)
            window = self._windows.get(name)
            if window is None:
                window = self._windows[name] = CounterWindow(_MINUTE)
            if window.add(sample) and sample is not None:
                newest_ns = max(newest_ns or 0, sample.time_ns)
            growth += window.growth
        return growth, newest_ns

    def _checksums(self, gpu: ObservedGpu) -> Iterator[Sign]:
        growth, time_ns = self._growth(gpu, _CRC)
        if time_ns is None:
            return
        rate, limits = growth / _MINUTE, self._thresholds
        limit, severity = limits.nvlink_crc_per_second, Severity.WARNING
        said = f"NVLink: {rate:,.1f} wrong checksums a second; it still does its work"
        if rate >= limits.nvlink_crc_critical_per_second:
            limit, severity = limits.nvlink_crc_critical_per_second, Severity.CRITICAL
            said = f"NVLink: {rate:,.1f} wrong checksums a second: it loses time with sending again"
        evidence = Evidence(severity, Action.RUN_DIAGNOSTICS, said, rate, limit, "errors per second")
        leave = limits.nvlink_crc_per_second / 2
        yield above("nvlink_crc_errors", time_ns, evidence, leave=leave, is_new=True)

    def _bit_errors(self, gpu: ObservedGpu) -> Iterator[Sign]:
        """Wrong bits after correction, and wrong symbols. 15e-255 is NVIDIA's zero, 15e-238 that of Blackwell's sum."""
        effective = gpu.values.get("nvlink_effective_bit_error_ratio")
        symbol = gpu.values.get("nvlink_symbol_error_ratio")
        found = [
            (ratio, limit, what)
            for ratio, limit, what in (
                (effective, self._thresholds.nvlink_effective_error_ratio, "bits after correction"),
                (symbol, self._thresholds.nvlink_symbol_error_ratio, "symbols"),
            )
            if ratio is not None
        ]
        for ratio, limit, what in found:
            if ratio.value > limit * (1 + 1e-9):
                said = f"NVLink: {ratio.value:.1e} of all {what} are wrong"
                evidence = Evidence(
                    Severity.CRITICAL, Action.RUN_DIAGNOSTICS, said, ratio.value, limit, "of all received"
                )
                yield bad("nvlink_bit_errors", ratio.time_ns, evidence)
                return
        if found:
            yield good("nvlink_bit_errors", max(ratio.time_ns for ratio, _, _ in found))

    def _links(self, gpu: ObservedGpu) -> Iterator[Sign]:
        """A link that was up and is down. Those that never were up may have nothing at their end."""
        links = {link: sample for (link, *_), sample in gpu.parts.get("nvlink_up", {}).items()}
        if not links:
            return
        self._was_up |= {link for link, sample in links.items() if sample.value}
        down = sorted((link for link in self._was_up & links.keys() if not links[link].value), key=_by_number)
        time_ns = max(sample.time_ns for sample in links.values())
        if down:
            said = f"NVLink {', '.join(down)} {'is' if len(down) == 1 else 'are'} down and was up before"
            evidence = Evidence(Severity.CRITICAL, Action.RUN_DIAGNOSTICS, said, float(len(down)), 1.0, "links")
            yield bad("nvlink_down", time_ns, evidence)
        elif self._was_up:
            yield good("nvlink_down", time_ns)

    def _fabric(self, gpu: ObservedGpu) -> Iterator[Sign]:
        now = {state: sample for (state, *_), sample in gpu.parts.get("fabric_state", {}).items() if sample.value}
        for state, sample in now.items():
            if state in _FABRIC:
                severity, said = _FABRIC[state]
                evidence = Evidence(severity, Action.RESTART_FABRIC_MANAGER, said)
                yield bad("fabric_state", sample.time_ns, evidence)
            elif state == "completed":
                yield good("fabric_state", sample.time_ns)
        aspects = {aspect: sample for (aspect, *_), sample in gpu.parts.get("fabric_health", {}).items()}
        unhealthy = [_ASPECTS[aspect] for aspect, sample in aspects.items() if aspect in _ASPECTS and not sample.value]
        if not aspects:
            return
        time_ns = max(sample.time_ns for sample in aspects.values())
        if unhealthy:
            severity = max((severity for severity, _ in unhealthy), key=lambda one: one.rank)
            said = f"the NVLink fabric: {', '.join(said for _, said in unhealthy)}"
            yield bad("fabric_unhealthy", time_ns, Evidence(severity, Action.RESTART_FABRIC_MANAGER, said))
        else:
            yield good("fabric_unhealthy", time_ns)


def _by_number(link: str) -> tuple[int, str]:
    return (int(link), link) if link.isdecimal() else (1 << 30, link)
