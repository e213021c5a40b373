"""Thread that keeps the probe processes busy and publishes snapshots of all GPUs; asking it never waits."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from select import POLLIN, poll

from stepscope.agent.gpus.process import NAMELESS, GpuProbe, ProbeProcess
from stepscope.agent.gpus.supervisor import ProbeSupervisor, ProbeTiming
from stepscope.agent.gpus.targets import ProbeCounts, ProbeSnapshot, ProbeTarget, XidCount
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, with_labels

_log = logging.getLogger(__name__)

_MAX_WAIT_SECONDS = 5.0
"""Between two steps when nothing is due: processes that are to exit are checked."""
_RETRY_SECONDS = 1.0
_GATHER_SECONDS = 0.03
"""For answers that are taken at once: a process sends one for each of its GPUs."""


class GpuProbes:
    """All GPUs of this machine, read by probe processes. A context manager."""

    _thread: threading.Thread

    def __init__(self, timing: ProbeTiming | None = None, *, environment: Mapping[str, str] | None = None) -> None:
        self._timing = timing or ProbeTiming()
        self._environment = environment
        self._supervisor = ProbeSupervisor(self._start_process, self._timing)
        self._known: tuple[ProbeTarget, ...] = ()
        self._known_before: dict[str, Device] = {}
        self._refusal: tuple[MissingReason, str] | None = self._supervisor.refusal
        self._counts = ProbeCounts()
        self._is_closing = threading.Event()
        self._wake_read, self._wake_write = -1, -1

    def __enter__(self) -> GpuProbes:
        self._wake_read, self._wake_write = os.pipe()
        self._is_closing.clear()
        self._thread = threading.Thread(target=self._run, name="stepscope-gpu-probes", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; those that hang are killed after the grace time, and left behind if that fails."""
        self._is_closing.set()
        os.close(self._wake_write)
        self._thread.join()
        os.close(self._wake_read)

    def snapshot(self) -> ProbeSnapshot:
        """All GPUs now; does not block."""
        now_ns, now = time.time_ns(), time.monotonic()
        known, refusal = self._known, self._refusal
        parts = [one.collection(now_ns, now, self._timing.stale) for one in known]
        parts.append(Collection(tuple(self._supervisor.xids.readings())))
        if refusal is not None:
            parts.append(Collection(missing=(Missing("", (), *refusal),)))
        return ProbeSnapshot(Collection.joined(parts), known, self._counts)

    def take_findings(self) -> list[Finding]:
        """XIDs since the last call; each is returned once."""
        return self._supervisor.xids.take()

    def note_kernel_log(self, findings: Iterable[Finding], *, is_before_start: bool = False) -> None:
        """XIDs that the kernel logged (`collectors.kernel_log`): counted for their GPU, once with those from NVML.

        Args:
            is_before_start: they came before the agent started.
        """
        devices = self.places()
        named = []
        for finding in findings:
            further = dict(finding.labels)
            bus_id = further.pop("pci_bus_id", "")
            device = devices.get(bus_id) or Device(pci_bus_id=bus_id)
            named.append(replace(finding, labels=with_labels(device.labels(), **further)))
        self._supervisor.xids.add(named, "kernel_log", is_before_start=is_before_start)

    def places(self) -> dict[str, Device]:
        """GPUs by their PCI bus id, as the driver has them, or had them before the agent was restarted."""
        found = {one.key: one.device for one in self._known if one.device.uuid and not one.key.startswith(NAMELESS)}
        return {**self._known_before, **found}

    def has_no_driver(self) -> bool:
        """Whether no GPU can be asked; False while the driver has not answered yet."""
        return self._refusal is not None and self._refusal[0] is not MissingReason.NOT_YET

    def saved_xids(self) -> list[XidCount]:
        """Counts of XIDs, for a restarted agent."""
        return self._supervisor.xids.saved()

    def restore(self, xids: Iterable[XidCount], places: Mapping[str, Device], resumed: frozenset[str]) -> None:
        """Go on with what an earlier agent knew; see `XidLog.restore`. Before the probes run."""
        self._known_before = dict(places)
        num_of_index = Counter(device.index for device in places.values())
        self._supervisor.known_before = {one.index: one for one in places.values() if num_of_index[one.index] == 1}
        self._supervisor.xids.restore(xids, resumed)

    def _start_process(self) -> GpuProbe:
        return ProbeProcess(self._timing.slow_poll, self._timing.grace, self._environment)

    def _run(self) -> None:
        has_failed = False
        while not self._is_closing.is_set():
            try:
                due = self._supervisor.step(time.monotonic(), time.time_ns())
                self._publish()
                self._wait(min(max(0.0, due - time.monotonic()), _MAX_WAIT_SECONDS))
                has_failed = False
            except Exception:  # the thread's edge, as when file descriptors run out: it goes on when there are some
                if not has_failed:
                    _log.exception("reading the GPUs failed; trying again")
                has_failed = True
                self._is_closing.wait(_RETRY_SECONDS)
        end = time.monotonic() + self._timing.grace + 1.0
        while not self._supervisor.close(time.monotonic()) and time.monotonic() < end:
            time.sleep(0.01)
        self._publish()

    def _wait(self, seconds: float) -> None:
        waited_for = poll()  # a new one each time is a list, where epoll would be a file
        waited_for.register(self._wake_read, POLLIN)
        if self._supervisor.is_waiting:
            if waited_for.poll(1e3 * min(seconds, _GATHER_SECONDS)):
                return
            seconds -= _GATHER_SECONDS
        for probe in self._supervisor.probes():
            waited_for.register(probe, POLLIN)
        waited_for.poll(1e3 * max(0.0, seconds))

    def _publish(self) -> None:
        """Replace what `snapshot` reads as a whole: it needs no lock and never sees half of a step."""
        self._known = self._supervisor.known()
        self._refusal = self._supervisor.refusal
        self._counts = replace(self._supervisor.counts)
