"""Checks of the driver: it is usable, all GPUs are present and answer.

Also the recovery action that a GPU's driver asks for, and values that contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.checks.dcgm import DcgmChecks
from stepscope.agent.health.samples import (
    CheckEvidence,
    CheckSample,
    MinuteWindow,
    ObservedGpu,
    ObservedMachine,
    above,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.metrics.readings import GPU, Missing, MissingReason
from stepscope.core.text.numbers import counted

_SILENT: dict[str, tuple[str, Action, str]] = {
    MissingReason.GONE: ("gpu_lost", Action.REBOOT, "the GPU is lost"),
    MissingReason.TIMED_OUT: ("gpu_hung", Action.REBOOT, "the GPU hangs: a call of its driver does not return"),
    MissingReason.FAILED: ("gpu_unreadable", Action.RUN_DIAGNOSTICS, "the GPU cannot be read"),
}
"""Meaning of the reasons why a GPU does not answer. Other reasons are the driver's."""
_RECOVERY = {
    "gpu_reset": (Severity.CRITICAL, Action.RESET_GPU, "a reset of the GPU"),
    "node_reboot": (Severity.CRITICAL, Action.REBOOT, "a reboot"),
    "system_reboot": (Severity.CRITICAL, Action.REBOOT, "a reboot of the whole system"),
    "bus_reset": (Severity.CRITICAL, Action.REBOOT, "a reset of the bus"),
    "drain_and_reset": (Severity.CRITICAL, Action.DRAIN, "no new work, then a reset of the GPU"),
    "drain_p2p": (Severity.WARNING, Action.DRAIN, "no new work between this GPU and others"),
    "recover_imex_domain": (Severity.CRITICAL, Action.RESTART_FABRIC_MANAGER, "a recovery of the IMEX domain"),
}
_CONTRADICTIONS = {
    "profiling_silent": ("profiling_silent", Action.RESTART_COLLECTOR),
    "busy_without_process": ("busy_without_process", Action.RESET_GPU),
    "utilization_stuck": ("busy_without_process", Action.RESET_GPU),
}
"""Findings of collectors: code of the event, and action."""
_STALL_MINUTES = 10


class AnswerChecks:
    """Health checks whether one GPU answers, and of what its driver and DCGM report."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._limit = thresholds.stalls_per_minute
        self._stalls = MinuteWindow(_STALL_MINUTES)
        self._is_silent = False
        self._dcgm = DcgmChecks()

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        """Results for the newest values. A driver that hangs is one event of the machine, not of its GPUs."""
        if gpu.up is not None:
            if not gpu.has_driver_hang or gpu.reason != MissingReason.TIMED_OUT:
                yield from _answers(gpu, gpu.up.time_ns)
            if gpu.up.value:
                yield self._stalling(gpu.up.time_ns, is_back=self._is_silent)
            self._is_silent = gpu.reason == MissingReason.TIMED_OUT
        yield from _recovery(gpu)
        yield from self._dcgm.samples(gpu)
        if gpu.looked_ns is not None and gpu.up is not None and gpu.up.value:
            yield from _contradictions(gpu, gpu.looked_ns)

    def _stalling(self, time_ns: int, *, is_back: bool) -> CheckSample:
        """Answers again before it counts as hung, but stalls repeatedly (NVIDIA/NVSentinel#1748)."""
        self._stalls.add(time_ns, {"stall"} if is_back else set())
        message = f"it did not answer in time, and then did again, in {self._stalls.count} of {_STALL_MINUTES} minutes"
        share, limit = self._stalls.share, self._limit
        evidence = CheckEvidence(Severity.WARNING, Action.RUN_DIAGNOSTICS, message, share, limit, "stalls per minute")
        return above("gpu_stalls", time_ns, evidence, leave=limit / 2, is_new=True)


def _recovery(gpu: ObservedGpu) -> Iterator[CheckSample]:
    for (action, *_), sample in gpu.parts.get("recovery_action", {}).items():
        severity, what, message = _RECOVERY.get(action, (Severity.CRITICAL, Action.CONTACT_SUPPORT, action))
        if action == "none":
            yield good("recovery_action", sample.time_ns)
        elif sample.value:
            yield bad(
                "recovery_action", sample.time_ns, CheckEvidence(severity, what, f"the driver asks for {message}")
            )


def _answers(gpu: ObservedGpu, time_ns: int) -> Iterator[CheckSample]:
    assert gpu.up is not None
    if gpu.up.value:
        for code, _, _ in _SILENT.values():
            yield good(code, time_ns)
        return
    known = _SILENT.get(gpu.reason)
    if known is None:
        return
    code, action, message = known
    detail = gpu.detail.partition("; it answered last")[0]
    if detail:
        message = detail if detail.startswith("the GPU") else f"{message}: {detail}"
    if "needs a reset" in detail:
        action = Action.RESET_GPU
    yield bad(code, time_ns, CheckEvidence(Severity.CRITICAL, action, message))


def _contradictions(gpu: ObservedGpu, time_ns: int) -> Iterator[CheckSample]:
    found = {_CONTRADICTIONS[code]: message for code, message in gpu.findings.items() if code in _CONTRADICTIONS}
    for code, action in dict.fromkeys(_CONTRADICTIONS.values()):
        message = found.get((code, action))
        if message is None:
            yield good(code, time_ns)
        else:
            yield bad(code, time_ns, CheckEvidence(Severity.WARNING, action, message))


_DRIVER = {
    MissingReason.VERSION_MISMATCH: ("driver_mismatch", Action.RELOAD_DRIVER),
    MissingReason.TIMED_OUT: ("driver_hung", Action.REBOOT),
    MissingReason.FAILED: ("driver_failed", Action.RELOAD_DRIVER),
    MissingReason.NOT_INSTALLED: ("driver_gone", Action.RELOAD_DRIVER),
}
"""Why no GPU can be asked. A machine without a driver has none to lose: `driver_gone` needs GPUs that it showed."""
_COUNT = "gpu_count"


class DriverChecks:
    """Health checks of the machine's driver and the number of its GPUs."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self._expected = thresholds.expected_gpus
        self._had_gpus = False

    def samples(self, observed: ObservedMachine) -> Iterator[CheckSample]:
        driver = observed.driver
        if driver is None or driver.collected_ns is None:
            return
        readings = driver.collection.readings
        self._had_gpus = self._had_gpus or any(one.metric == GPU + "up" and one.value for one in readings)
        why, time_ns = observed.why_no_driver(), driver.collected_ns
        if why is not None and why.reason is MissingReason.NOT_YET:
            return
        if why is None:
            yield from (good(code, time_ns) for code, _ in _DRIVER.values())
            yield from self._count(observed, time_ns)
            return
        code, action = _DRIVER.get(why.reason, ("", Action.NONE))
        if code and (code != "driver_gone" or self._had_gpus):
            message = f"no GPU can be asked: {why.detail}" if why.detail else "no GPU can be asked"
            yield bad(code, time_ns, CheckEvidence(Severity.CRITICAL, action, message))
        else:  # a driver that never was there may have failed to load
            yield from self._count(observed, time_ns, why)

    def _count(
        self, observed: ObservedMachine, time_ns: int, why_no_driver: Missing | None = None
    ) -> Iterator[CheckSample]:
        known = [gpu for gpu in observed.gpus.values() if not gpu.device.pci_bus_id]
        there = sum(1 for gpu in known if gpu.reason != MissingReason.NOT_ON_PAGE)
        if there < self._expected:
            yield bad(_COUNT, time_ns, self._too_few(there, why_no_driver))
        else:
            yield good(_COUNT, time_ns)

    def _too_few(self, there: int, why_no_driver: Missing | None) -> CheckEvidence:
        action, message = Action.REBOOT, f"the driver knows {there} of {counted(self._expected, 'GPU')}"
        if why_no_driver is not None:
            action, detail = Action.RELOAD_DRIVER, why_no_driver.detail or why_no_driver.reason.value
            message = f"{there} of {counted(self._expected, 'GPU')} are known, and no driver can be asked: {detail}"
        return CheckEvidence(Severity.CRITICAL, action, message, float(there), float(self._expected), "GPUs")
