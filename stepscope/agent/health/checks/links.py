"""Checks of links: NVLink errors, links that are down, the fabric; PCIe replays and downgrades; InfiniBand ports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.samples import (
    CheckEvidence,
    CheckSample,
    CounterWindow,
    ObservedGpu,
    TimedValue,
    above,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.metrics.readings import HOST, Labels, Reading
from stepscope.core.text.numbers import counted

_MINUTE = 60.0
_LINK_ERRORS = "nvlink_link_errors_total"
_CRC = (
    ("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total"),
    ("nvlink_crc_errors_total",),
)
_CRC_KINDS = ("crc", "crc_flit", "crc_data")
_BY_MINUTE = (
    (
        "nvlink_replays",
        Severity.WARNING,
        "packets sent again",
        (("nvlink_replay_errors_total",),),
        ("replay",),
    ),
    (
        "nvlink_recoveries",
        Severity.CRITICAL,
        "recoveries of a link",
        (("nvlink_recovery_errors_total",), ("nvlink_recoveries_total",), ("nvlink_recoveries_failed_total",)),
        ("recovery", "recoveries", "recoveries_failed"),
    ),
    (
        "nvlink_errors",
        Severity.CRITICAL,
        "errors received or limits passed",
        (
            ("nvlink_receive_errors_total", "nvlink_integrity_errors_total"),
            ("nvlink_malformed_packets_total", "nvlink_dropped_packets_total"),
            ("nvlink_remote_errors_total", "nvlink_general_errors_total"),
            ("nvlink_effective_errors_total",),
            ("nvlink_symbol_errors_total",),
        ),
        (
            *("receive_errors", "integrity_errors", "malformed_packets", "dropped_packets", "remote_errors"),
            *("general_errors", "effective_errors", "symbol_errors"),
        ),
    ),
)
"""Code, severity, what is counted, the counters, and the kinds of a single link's errors.

Counters of one group are added up. Groups may count the same errors: the largest counts.
"""
_COUNTERS = frozenset(
    name for groups in (_CRC, *(groups for *_, groups, _ in _BY_MINUTE)) for names in groups for name in names
)
_MAX_NAMED_LINKS = 4
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
    "wrong_system_guid": (Severity.CRITICAL, "the system's GUID is wrong"),
    "wrong_chassis_serial": (Severity.CRITICAL, "the chassis' serial number is wrong"),
    "no_partition": (Severity.CRITICAL, "it is in no partition"),
    "too_few_links": (Severity.CRITICAL, "it has too few NVLinks"),
    "incompatible_firmware": (Severity.CRITICAL, "its firmware does not match the fabric's"),
    "invalid_location": (Severity.CRITICAL, "its location is invalid"),
    "invalid_gpu_state": (Severity.CRITICAL, "it is in an invalid state"),
}
_OVERALL_ASPECTS = {
    "configuration": (Severity.CRITICAL, "its configuration is wrong"),
    "summary": (Severity.CRITICAL, "the driver calls it unhealthy"),
    "capacity": (Severity.WARNING, "the driver calls its capacity limited"),
}
"""These count where no aspect says what it is."""


class NvlinkChecks:
    """Health checks of one GPU's NVLinks and fabric."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._windows: dict[str, CounterWindow] = {}
        self._links: dict[tuple[str, ...], CounterWindow] = {}
        self._counted_ns: int | None = None
        self._was_up: set[str] = set()
        self._has_joined = False

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        self._watch_links(gpu)
        yield from self._checksums(gpu)
        for code, severity, what, groups, kinds in _BY_MINUTE:
            growth, time_ns = self._growth(gpu, groups, kinds)
            if time_ns is not None:
                limit = self._thresholds.nvlink_errors_per_minute
                message = f"NVLink: {growth:,.0f} {what} in a minute{self._where(kinds)}"
                evidence = CheckEvidence(severity, Action.RUN_DIAGNOSTICS, message, growth, limit, "errors per minute")
                yield above(code, time_ns, evidence, leave=0.0, is_new=True)
        yield from self._bit_errors(gpu)
        yield from self._links_up(gpu)
        yield from self._fabric(gpu)

    def _watch_links(self, gpu: ObservedGpu) -> None:
        """Note the growth of each link's errors. A link whose count appears later had none before."""
        times = [sample.time_ns for name, sample in gpu.values.items() if name in _COUNTERS]
        for key, sample in gpu.parts.get(_LINK_ERRORS, {}).items():
            window = self._links.get(key)
            if window is None:
                window = self._links[key] = CounterWindow(_MINUTE)
                if self._counted_ns is not None and len(key) > 1:
                    window.add(TimedValue(0.0, self._counted_ns, sample.source))
            window.add(sample)
        self._counted_ns = max(times, default=self._counted_ns)

    def _growth(
        self, gpu: ObservedGpu, groups: tuple[tuple[str, ...], ...], kinds: tuple[str, ...]
    ) -> tuple[float, int | None]:
        """Growth in a minute of the group of counters that grew most; the time of the newest, None where none is new.

        DCGM reports some kinds as a count without a link.
        """
        growths, newest_ns = [0.0], None
        for names in groups:
            growth = 0.0
            for name in names:
                sample = gpu.values.get(name)
                window = self._windows.setdefault(name, CounterWindow(_MINUTE))
                if window.add(sample) and sample is not None:
                    newest_ns = max(newest_ns or 0, sample.time_ns)
                growth += window.growth
            growths.append(growth)
        for key, sample in gpu.parts.get(_LINK_ERRORS, {}).items():
            if len(key) == 1 and key[0] in kinds:
                growths.append(self._links[key].growth)
                newest_ns = max(newest_ns or 0, sample.time_ns)
        return max(growths), newest_ns

    def _where(self, kinds: tuple[str, ...]) -> str:
        """The links that have at least half of the worst one's errors of these kinds, in brackets."""
        growths: dict[str, float] = {}
        for (kind, *link), window in self._links.items():
            if kind in kinds and link:
                growths[link[0]] = growths.get(link[0], 0.0) + window.growth
        worst = max(growths.values(), default=0.0)
        named = sorted((link for link, growth in growths.items() if worst and growth >= worst / 2), key=by_number)
        if not named:
            return ""
        if len(named) > _MAX_NAMED_LINKS:
            return f" ({counted(len(named), 'link')})"
        return f" ({'link' if len(named) == 1 else 'links'} {', '.join(named)})"

    def _checksums(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        growth, time_ns = self._growth(gpu, _CRC, _CRC_KINDS)
        if time_ns is None:
            return
        rate, limits = growth / _MINUTE, self._thresholds
        limit, severity = limits.nvlink_crc_per_second, Severity.WARNING
        where = self._where(_CRC_KINDS)
        message = f"NVLink: {rate:,.1f} wrong checksums a second{where}; it still does its work"
        if rate >= limits.nvlink_crc_critical_per_second:
            limit, severity = limits.nvlink_crc_critical_per_second, Severity.CRITICAL
            message = f"NVLink: {rate:,.1f} wrong checksums a second{where}: it loses time with sending again"
        evidence = CheckEvidence(severity, Action.RUN_DIAGNOSTICS, message, rate, limit, "errors per second")
        leave = limits.nvlink_crc_per_second / 2
        yield above("nvlink_crc_errors", time_ns, evidence, leave=leave, is_new=True)

    def _bit_errors(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        """Bit errors after correction, and symbol errors. NVIDIA's zero is 15e-255, of Blackwell's sum 15e-238."""
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
                message = f"NVLink: {ratio.value:.1e} of all {what} are wrong"
                evidence = CheckEvidence(
                    Severity.CRITICAL, Action.RUN_DIAGNOSTICS, message, ratio.value, limit, "of all received"
                )
                yield bad("nvlink_bit_errors", ratio.time_ns, evidence)
                return
        if found:
            yield good("nvlink_bit_errors", max(ratio.time_ns for ratio, _, _ in found))

    def _links_up(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        """Links that were up and are down; those that were never up may be unconnected."""
        links = gpu.by_label("nvlink_up")
        if not links:
            return
        self._was_up |= {link for link, sample in links.items() if sample.value}
        down = sorted((link for link in self._was_up & links.keys() if not links[link].value), key=by_number)
        time_ns = max(sample.time_ns for sample in links.values())
        if down:
            message = f"NVLink {', '.join(down)} {'is' if len(down) == 1 else 'are'} down and was up before"
            evidence = CheckEvidence(Severity.CRITICAL, Action.RUN_DIAGNOSTICS, message, float(len(down)), 1.0, "links")
            yield bad("nvlink_down", time_ns, evidence)
        elif self._was_up:
            yield good("nvlink_down", time_ns)

    def _fabric(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        now = {state: sample for state, sample in gpu.by_label("fabric_state").items() if sample.value}
        for state, sample in now.items():
            if state in _FABRIC:
                severity, message = _FABRIC[state]
                evidence = CheckEvidence(severity, Action.RESTART_FABRIC_MANAGER, message)
                enter_seconds = _LEFT_FABRIC_SECONDS if self._has_joined else None
                yield bad("fabric_state", sample.time_ns, evidence, enter_seconds=enter_seconds)
            elif state == "completed":
                self._has_joined = True
                yield good("fabric_state", sample.time_ns)
        aspects = gpu.by_label("fabric_health")
        wrong = [aspect for aspect, sample in aspects.items() if not sample.value]
        unhealthy = [_ASPECTS[aspect] for aspect in wrong if aspect in _ASPECTS]
        unhealthy = unhealthy or [_OVERALL_ASPECTS[aspect] for aspect in _OVERALL_ASPECTS if aspect in wrong][:1]
        if not aspects:
            return
        time_ns = max(sample.time_ns for sample in aspects.values())
        if unhealthy:
            severity = max((severity for severity, _ in unhealthy), key=lambda one: one.rank)
            message = f"the NVLink fabric: {', '.join(message for _, message in unhealthy)}"
            yield bad("fabric_unhealthy", time_ns, CheckEvidence(severity, Action.RESTART_FABRIC_MANAGER, message))
        else:
            yield good("fabric_unhealthy", time_ns)


_LEFT_FABRIC_SECONDS = 30.0
"""A GPU that was in the fabric and is not any more is not one that takes its time to join it."""


def by_number(link: str) -> tuple[int, str]:
    """Order of links by their number."""
    return (int(link), link) if link.isdecimal() else (1 << 30, link)


_REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""In a minute, by generation (DcgmHealthWatch.cpp)."""
_FASTEST, _WIDEST = 6, 16
_MAX_DOUBLINGS = 8
"""Between two generations, each twice as fast as the one before; more is a wrong value."""
_SETTLED_NS = 5 * 10**9
"""A GPU must have been busy for so long for its link to run at full speed."""


def pcie_replay_limit(generation: int, lanes: int) -> int:
    """Usual number of replays of a PCIe link in a minute: 16 for generation 4 x16, 31 for 5 x16."""
    per_lane = _REPLAYS_PER_LANE.get(generation, _REPLAYS_PER_LANE[_FASTEST])
    return math.ceil(per_lane * lanes)


class PcieChecks:
    """Health checks of one GPU's PCIe link."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._thresholds = thresholds
        self._replays = CounterWindow(_MINUTE)
        self._busy_since_ns: int | None = None

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        values = gpu.values
        generation, width = values.get("pcie_link_generation"), values.get("pcie_link_width")
        best_generation = values.get("pcie_link_generation_max")
        best_width = values.get("pcie_link_width_max")
        replays = values.get("pcie_replays_total")
        if self._replays.add(replays) and replays is not None:
            yield self._losing(replays.time_ns, best_generation or generation, width or best_width)
        is_settled = self._is_settled(values.get("utilization_ratio"), generation)
        if generation and width and best_generation and best_width and best_width.value > 0:
            is_best = generation.value >= best_generation.value and width.value >= best_width.value
            if is_best:
                yield good("pcie_downgrade", generation.time_ns)
            elif is_settled:
                doublings = min(max(generation.value - best_generation.value, -_MAX_DOUBLINGS), _MAX_DOUBLINGS)
                share = 2.0**doublings * width.value / best_width.value
                message = (
                    f"PCIe runs at generation {generation.value:.0f} x{width.value:.0f} under load; GPU and slot can "
                    f"both do {best_generation.value:.0f} x{best_width.value:.0f}"
                )
                evidence = CheckEvidence(
                    Severity.WARNING, Action.CHECK_MECHANICALS, message, share, 1.0, "of the link's bandwidth"
                )
                yield bad("pcie_downgrade", generation.time_ns, evidence)

    def _losing(self, time_ns: int, generation: TimedValue | None, width: TimedValue | None) -> CheckSample:
        """The limit is that of the best generation, as an idle link lowers its own; of the fastest if none is known."""
        of_link = pcie_replay_limit(
            int(generation.value) if generation else _FASTEST, int(width.value) if width else _WIDEST
        )
        limit = of_link * self._thresholds.pcie_replays_factor
        growth = self._replays.growth
        message = (
            f"{counted(growth, 'packet')} had to be sent again over PCIe in a minute; "
            f"up to {limit:.0f} a minute is usual"
        )
        evidence = CheckEvidence(
            Severity.WARNING, Action.CHECK_MECHANICALS, message, growth, limit, "replays per minute"
        )
        return above("pcie_replays", time_ns, evidence, leave=limit / 2, strictly=True, is_new=True)

    def _is_settled(self, utilization: TimedValue | None, link: TimedValue | None) -> bool:
        """Whether the GPU had been under load for a while when its link was read."""
        if utilization is None or utilization.value < self._thresholds.busy_ratio:
            self._busy_since_ns = None
        elif self._busy_since_ns is None or utilization.time_ns < self._busy_since_ns:
            self._busy_since_ns = utilization.time_ns
        return (
            link is not None and self._busy_since_ns is not None and link.time_ns - self._busy_since_ns >= _SETTLED_NS
        )


class PortChecks:
    """Health checks of the InfiniBand ports. A port that was never up may have no cable and is not reported."""

    def __init__(self) -> None:
        self._was_up: set[Labels] = set()
        self._downs: dict[Labels, TimedValue] = {}

    def samples(self, readings: Iterable[tuple[Reading, str]]) -> Iterator[tuple[Labels, CheckSample]]:
        """Results for the newest values, with the labels of the port."""
        ups: dict[Labels, Reading] = {}
        downs: dict[Labels, TimedValue] = {}
        for reading, source in readings:
            if reading.metric == HOST + "infiniband_up":
                ups[reading.labels] = reading
            elif ("kind", "link_downed") in reading.labels:
                port = tuple(pair for pair in reading.labels if pair[0] != "kind")
                downs[port] = TimedValue(reading.value, reading.time_ns, source)
        for port, up in ups.items():
            yield from ((port, sample) for sample in self._port(port, up, downs.get(port)))

    def _port(self, port: Labels, up: Reading, downs: TimedValue | None) -> Iterator[CheckSample]:
        name = " port ".join(value for _, value in port)
        was_up = port in self._was_up
        before = self._downs.get(port)
        if downs is not None:
            self._downs[port] = downs
        if not up.value:
            if was_up:
                message = f"InfiniBand {name} is down and was up before"
                evidence = CheckEvidence(Severity.CRITICAL, Action.CHECK_NETWORK, message)
                yield bad("infiniband_port_down", up.time_ns, evidence)
            return
        self._was_up.add(port)
        yield good("infiniband_port_down", up.time_ns)
        if before is None or downs is None:
            return
        times = downs.value - before.value
        if times > 0:
            message = f"InfiniBand {name} went down and came up again"
            evidence = CheckEvidence(Severity.WARNING, Action.CHECK_NETWORK, message)
            yield bad("infiniband_port_flaps", up.time_ns, evidence, count=int(times), is_new=True)
        else:
            yield good("infiniband_port_flaps", up.time_ns)
