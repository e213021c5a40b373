"""Checks of DCGM's own judgement of a GPU, against what the GPU is and what its readings say."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.agent.health.samples import CheckEvidence, CheckSample, CounterWindow, ObservedGpu, bad, good
from stepscope.core.hardware.gpu_catalogue import Nvlink, nvlink_of
from stepscope.core.hardware.health import Action, Severity

_WARNING, _FAILURE = 10, 20
"""Values of DCGM's health status."""
_NVLINK_WATCHES = ("nvlink", "nvswitch")
_NVLINK_ERRORS = "DCGM_FR_NVLINK_ERROR_CRITICAL"
_POWER_CAP = frozenset({"DCGM_FR_CLOCK_THROTTLE_POWER", "DCGM_FR_CLOCKS_EVENT_POWER"})
_OVER_CAP = 1.1
"""A draw of more than this times the cap is not what the cap is for; short peaks above it are usual."""
_MINUTES = 10
_UP_TO_NVLINK_4 = ("nvlink_replay_errors_total", "nvlink_recovery_errors_total")
_CRC = ("nvlink_crc_errors_total", "nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total")
_FROM_NVLINK_5 = tuple(
    f"nvlink_{kind}_total"
    for kind in (
        *("receive_errors", "integrity_errors", "malformed_packets", "dropped_packets", "remote_errors"),
        *("general_errors", "effective_errors", "symbol_errors", "recoveries", "recoveries_failed"),
    )
)


class _NvlinkErrors:
    """Whether the NVLink errors of a GPU grow: for DCGM a single one since the driver's start is a fault."""

    def __init__(self) -> None:
        names = (*_UP_TO_NVLINK_4, *_CRC, *_FROM_NVLINK_5)
        self._windows = {name: CounterWindow(_MINUTES * 60.0) for name in names}
        self._is_known = False
        self.is_read = False

    def add(self, gpu: ObservedGpu) -> None:
        """Add the newest values; only all of a GPU's counters show that there are no errors."""
        has_old = all(name in gpu.values for name in _UP_TO_NVLINK_4) and any(name in gpu.values for name in _CRC)
        self.is_read = has_old or all(name in gpu.values for name in _FROM_NVLINK_5)
        num_new = sum(window.add(gpu.values.get(name)) for name, window in self._windows.items())
        self._is_known = self.is_read and (self._is_known or num_new > 0)

    @property
    def grow(self) -> bool | None:
        """Whether any grew in the last minutes; None: not known."""
        return any(window.growth > 0 for window in self._windows.values()) if self._is_known else None


class DcgmChecks:
    """DCGM's own health checks of one GPU, if its exporter reports them; the worst one counts."""

    def __init__(self) -> None:
        self._nvlink_errors = _NvlinkErrors()

    def samples(self, gpu: ObservedGpu) -> Iterator[CheckSample]:
        self._nvlink_errors.add(gpu)
        reports = []
        for (error, watch), sample in gpu.parts.get("dcgm_health_status", {}).items():
            evidence = _report(gpu, watch, error, value=sample.value)
            if evidence is not None and error == _NVLINK_ERRORS and self._nvlink_errors.is_read:
                if self._nvlink_errors.grow is None:
                    continue  # the next look tells
                if not self._nvlink_errors.grow:
                    message = f"{evidence.message}; not a fault now: its NVLink errors do not grow"
                    evidence = CheckEvidence(Severity.INFO, Action.NONE, message)
            reports.append((evidence, sample))
        failed = [(evidence, sample) for evidence, sample in reports if evidence is not None]
        if failed:
            evidence, sample = max(failed, key=lambda entry: (entry[0].severity.rank, entry[1].value, entry[0].message))
            yield bad("dcgm_health", sample.time_ns, evidence)
        elif reports:
            yield good("dcgm_health", max(sample.time_ns for _, sample in reports))


def _report(gpu: ObservedGpu, watch: str, error: str, *, value: float) -> CheckEvidence | None:
    """What a watch of DCGM's reports, by what the GPU is and its readings say.

    A watch of NVLink on a GPU without NVLink is not a fault of the GPU, nor is a GPU at its power cap.
    """
    if value < _WARNING:
        return None
    severity = Severity.CRITICAL if value >= _FAILURE else Severity.WARNING
    verb = "fails" if severity is Severity.CRITICAL else "warns"
    message = f"DCGM's health check {verb}: {' '.join(filter(None, (watch, error)))}"
    if watch.startswith(_NVLINK_WATCHES) and not any(sample.value for sample in gpu.by_label("nvlink_up").values()):
        nvlink = nvlink_of(gpu.model)
        if nvlink is Nvlink.NONE:
            return CheckEvidence(Severity.INFO, Action.NONE, f"{message}; not a fault: {gpu.model} has no NVLink")
        if nvlink is not Nvlink.BUILT_IN:
            why = f"whether {gpu.model or 'this GPU'} has a bridge" if nvlink else "whether this GPU has NVLink"
            return CheckEvidence(Severity.WARNING, Action.RUN_DIAGNOSTICS, f"{message}; {why} is not known")
    if error in _POWER_CAP and severity is Severity.WARNING:
        return _power_report(gpu, message)
    return CheckEvidence(severity, Action.RUN_DIAGNOSTICS, message)


def _power_report(gpu: ObservedGpu, message: str) -> CheckEvidence:
    """DCGM's warning that the clocks were lowered for power."""
    brake = gpu.by_label("throttle_reason").get("hardware_power_brake")
    if brake is not None and brake.value:
        return CheckEvidence(Severity.WARNING, Action.CHECK_MECHANICALS, f"{message}; the power supply's brake is on")
    power, cap = gpu.values.get("power_watts"), gpu.values.get("power_limit_watts")
    drawn = f": it draws {power.value:.0f} of {cap.value:.0f} W" if power and cap else ""
    if power and cap and power.value > cap.value * _OVER_CAP:
        return CheckEvidence(Severity.WARNING, Action.RUN_DIAGNOSTICS, f"{message}{drawn}")
    return CheckEvidence(
        Severity.INFO, Action.NONE, f"{message}; not a fault{drawn or ', the power cap is meant to work so'}"
    )
