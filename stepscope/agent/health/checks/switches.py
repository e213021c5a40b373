"""What do the SXids of a machine's NVSwitches say? The kernel log has each, DCGM tells the last.

A critical one stays open until the GPUs were reset, as that is how switches are reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.agent.health.signs import Evidence, Sign, Standing, bad, good
from stepscope.core.fabric_metrics import SWITCH
from stepscope.core.health import Severity
from stepscope.core.readings import Labels, Reading
from stepscope.core.xids import sxid_of


class SwitchChecks:
    """All NVSwitches'."""

    def __init__(self) -> None:
        self._counts: dict[Labels, float] = {}
        self._last: dict[Labels, float] = {}
        self._until_quiet: set[tuple[Labels, str]] = set()
        self._until_reset: set[tuple[Labels, str]] = set()

    def signs(
        self, readings: Iterable[tuple[Reading, str]], now_ns: int, *, was_reset: bool
    ) -> Iterator[tuple[Labels, Sign]]:
        """What came since the last look, with the labels of the switch.

        Args:
            readings: the samples.
            now_ns: ns since the epoch.
            was_reset: a GPU was reset since the last look.
        """
        if was_reset:
            yield from ((switch, Sign(code, now_ns, Standing.OVER)) for switch, code in sorted(self._until_reset))
            self._until_reset.clear()
        for reading, _ in readings:
            if reading.metric == SWITCH + "sxid_errors_total":
                labels = dict(reading.labels)
                count = int(reading.value - self._counts.get(reading.labels, 0.0))
                self._counts[reading.labels] = reading.value
                number, is_fatal = int(labels["sxid"]), labels["severity"] == "fatal"
                if count > 0:
                    switch: Labels = (("pci_bus_id", labels["pci_bus_id"]),)
                    yield switch, self._comes(switch, number, now_ns, count, is_fatal=is_fatal)
            elif reading.metric == SWITCH + "sxid_fatal_last":
                before = self._last.get(reading.labels)
                self._last[reading.labels] = reading.value
                if before is not None and reading.value not in (0.0, before):  # the first may be of long ago
                    yield reading.labels, self._comes(reading.labels, int(reading.value), now_ns, 1, is_fatal=True)
        for place, code in sorted(self._until_quiet):
            yield place, good(code, now_ns)

    def _comes(self, switch: Labels, number: int, now_ns: int, count: int, *, is_fatal: bool) -> Sign:
        sxid, code = sxid_of(number, is_fatal=is_fatal), f"sxid_{number}"
        is_critical = sxid.severity is Severity.CRITICAL
        (self._until_reset if is_critical else self._until_quiet).add((switch, code))
        evidence = Evidence(sxid.severity, sxid.action, f"SXid {number}: {sxid.sentence}")
        return bad(code, now_ns, evidence, count=count, is_new=True)
