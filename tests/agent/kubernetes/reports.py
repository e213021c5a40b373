"""Reports of health, as tests of the reporter to Kubernetes need them."""

from __future__ import annotations

from stepscope.core.hardware.devices import device_in
from stepscope.core.hardware.health import Action, Health, HealthEvent, HealthReport, HealthState, Severity
from stepscope.core.metrics.readings import Labels, labels_of

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
_WELL = Health(HealthState.HEALTHY, "")


def labels(gpu: int) -> Labels:
    return labels_of(gpu=gpu, uuid=f"GPU-{gpu}")


def event(
    code: str = "gpu_lost",
    gpu: int = 3,
    *,
    severity: Severity = Severity.CRITICAL,
    first: int = 0,
    since_start: bool = False,
    message: str = "",
) -> HealthEvent:
    first_ns = BEGIN + first * SECOND
    return HealthEvent(
        code,
        labels(gpu),
        severity,
        Action.REBOOT,
        message or f"{code} it is",
        value=None,
        threshold=None,
        unit="",
        first_ns=first_ns,
        last_ns=first_ns,
        ended_ns=None,
        count=1,
        since_start=since_start,
    )


def report(
    *events: HealthEvent, at: int = 0, unknown: str = "", machine: Health = _WELL, has_run: bool = True
) -> HealthReport:
    """Health of four GPUs at a second; GPU 0 is unknown for the given reason."""
    gpus = {device_in(dict(labels(gpu))): _WELL for gpu in range(4)}
    if unknown:
        gpus[device_in(dict(labels(0)))] = Health(HealthState.UNKNOWN, unknown)
    return HealthReport(BEGIN + at * SECOND if has_run else None, machine, gpus, events, ())
