"""Is the driver usable, are all GPUs there, and how are the machine's InfiniBand ports?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.agent.config.health import Thresholds
from stepscope.agent.health.counters import Sample
from stepscope.agent.health.observed import Observed
from stepscope.agent.health.signs import Evidence, Sign, bad, good
from stepscope.core.counting import counted
from stepscope.core.gpu_metrics import GPU
from stepscope.core.health import Action, Severity
from stepscope.core.host_metrics import HOST
from stepscope.core.readings import Labels, Missing, MissingReason, Reading

_DRIVER = {
    MissingReason.VERSION_MISMATCH: ("driver_mismatch", Action.RELOAD_DRIVER),
    MissingReason.TIMED_OUT: ("driver_hung", Action.REBOOT),
    MissingReason.FAILED: ("driver_failed", Action.RELOAD_DRIVER),
    MissingReason.NOT_INSTALLED: ("driver_gone", Action.RELOAD_DRIVER),
}
"""Why no GPU can be asked. A machine without a driver has none to lose: `driver_gone` needs GPUs that it showed."""
_COUNT = "gpu_count"
_UP = GPU + "up"


class DriverChecks:
    """The machine's driver and the number of its GPUs."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._expected = thresholds.expected_gpus
        self._had_gpus = False

    def signs(self, observed: Observed) -> Iterator[Sign]:
        """What the newest look says."""
        driver = observed.driver
        if driver is None or driver.collected_ns is None:
            return
        self._had_gpus = self._had_gpus or any(one.metric == _UP and one.value for one in driver.collection.readings)
        why, time_ns = observed.why_no_driver(), driver.collected_ns
        if why is not None and why.reason is MissingReason.NOT_YET:
            return
        if why is None:
            yield from (good(code, time_ns) for code, _ in _DRIVER.values())
            yield from self._count(observed, time_ns)
            return
        code, action = _DRIVER.get(why.reason, ("", Action.NONE))
        if code and (code != "driver_gone" or self._had_gpus):
            said = f"no GPU can be asked: {why.detail}" if why.detail else "no GPU can be asked"
            yield bad(code, time_ns, Evidence(Severity.CRITICAL, action, said))
        else:  # a driver that never was there may have failed to load
            yield from self._count(observed, time_ns, why)

    def _count(self, observed: Observed, time_ns: int, why_no_driver: Missing | None = None) -> Iterator[Sign]:
        message = observed.findings.get(_COUNT, "")
        if self._expected:
            there = sum(1 for gpu in observed.gpus.values() if "pci_bus_id" not in dict(gpu.labels))
            if there < self._expected:
                yield bad(_COUNT, time_ns, self._too_few(there, why_no_driver))
                return
        if message:
            yield bad(_COUNT, time_ns, Evidence(Severity.CRITICAL, Action.REBOOT, message))
        else:
            yield good(_COUNT, time_ns)

    def _too_few(self, there: int, why_no_driver: Missing | None) -> Evidence:
        action, said = Action.REBOOT, f"the driver knows {there} of {counted(self._expected, 'GPU')}"
        if why_no_driver is not None:
            action, detail = Action.RELOAD_DRIVER, why_no_driver.detail or why_no_driver.reason.value
            said = f"{there} of {counted(self._expected, 'GPU')} are known, and no driver can be asked: {detail}"
        return Evidence(Severity.CRITICAL, action, said, float(there), float(self._expected), "GPUs")


class PortChecks:
    """The InfiniBand ports. A port that never was up may have no cable: it is not missed."""

    def __init__(self) -> None:
        self._was_up: set[Labels] = set()
        self._downs: dict[Labels, Sample] = {}

    def signs(self, readings: Iterable[tuple[Reading, str]]) -> Iterator[tuple[Labels, Sign]]:
        """What the newest samples say, with the labels of the port."""
        ups: dict[Labels, Reading] = {}
        downs: dict[Labels, Sample] = {}
        for reading, source in readings:
            if reading.metric == HOST + "infiniband_up":
                ups[reading.labels] = reading
            elif ("kind", "link_downed") in reading.labels:
                port = tuple(pair for pair in reading.labels if pair[0] != "kind")
                downs[port] = Sample(reading.value, reading.time_ns, source)
        for port, up in ups.items():
            yield from ((port, sign) for sign in self._port(port, up, downs.get(port)))

    def _port(self, port: Labels, up: Reading, downs: Sample | None) -> Iterator[Sign]:
        name = " port ".join(value for _, value in port)
        was_up = port in self._was_up
        before = self._downs.get(port)
        if downs is not None:
            self._downs[port] = downs
        if not up.value:
            if was_up:
                said = f"InfiniBand {name} is down and was up before"
                evidence = Evidence(Severity.CRITICAL, Action.CHECK_NETWORK, said)
                yield bad("infiniband_port_down", up.time_ns, evidence)
            return
        self._was_up.add(port)
        yield good("infiniband_port_down", up.time_ns)
        if before is None or downs is None:
            return
        times = downs.value - before.value
        if times > 0:
            said = f"InfiniBand {name} went down and came up again"
            evidence = Evidence(Severity.WARNING, Action.CHECK_NETWORK, said)
            yield bad("infiniband_port_flaps", up.time_ns, evidence, count=int(times), is_new=True)
        else:
            yield good("infiniband_port_flaps", up.time_ns)
