"""Checks of a GPU's state as the driver reports it: ECC, Xids, throttling, links, fabric. Pure.

Thresholds follow DCGM's, gpud's and NVSentinel's (docs/guides/preflight.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.core.documents.machine_checks import CheckResult, Outcome
from stepscope.core.hardware.health import Severity
from stepscope.core.hardware.xids import xid_of
from stepscope.core.metrics.readings import GPU, Collection, Finding
from stepscope.core.text.numbers import counted, form

_HELD_BYTES = 1024**3
"""More than driver and firmware keep on an unused GPU."""
MAX_REMAPPED_ROWS = 512
"""DCGM warns from this many rows that were remapped after uncorrected errors."""
MAX_RETIRED_PAGES = 63
"""DCGM fails from this many retired pages: the table is full with 64."""
_HARDWARE_REASONS = ("hardware_slowdown", "hardware_thermal", "hardware_power_brake")
MIN_SLOWDOWN_SHARE, MIN_SLOWDOWNS = 0.5, 2
"""Of the samples under load: one slowdown is transient (NVSentinel asks for six in ten minutes)."""
_LOWERED = 0.99
"""Share of the usual power limit: limits are rounded."""
_FABRIC = {
    "failed": (Outcome.FAIL, "the NVLink fabric's registration failed: look at the fabric manager, reset all GPUs"),
    "not_started": (Outcome.FAIL, "the NVLink fabric was not set up: is the fabric manager running?"),
    "in_progress": (Outcome.WARN, "the NVLink fabric is still being set up: wait for the fabric manager"),
}

_XID_OUTCOMES = {Severity.CRITICAL: Outcome.FAIL, Severity.WARNING: Outcome.WARN, Severity.INFO: Outcome.WARN}
"""No application runs here, so even an XID that usually means an application's fault is a warning."""

_Judged = tuple[Outcome, str]
_UNKNOWN: _Judged = (Outcome.SKIPPED, "this GPU or driver does not report it")
_GOOD: _Judged = (Outcome.PASS, "")


@dataclass(frozen=True, slots=True)
class GpuState:
    """NVML's readings of one GPU around a preflight's measurement.

    Attributes:
        before: all readings, before anything ran.
        samples: under load.
        after: all readings, afterwards.
        logged: XIDs of this GPU that the kernel logged meanwhile; None where its log cannot be read.
    """

    before: Collection
    samples: tuple[Collection, ...]
    after: Collection
    logged: tuple[Finding, ...] | None

    def value(self, name: str, *, at_first: bool = False, **labels: str) -> float | None:
        """A value after everything ran, or before."""
        return gpu_value_of(self.before if at_first else self.after, name, **labels)

    def sampled(self, name: str) -> list[float]:
        """The values of all samples under load."""
        return [one.value for sample in self.samples for one in sample.readings if one.metric == GPU + name]


def gpu_value_of(collection: Collection, name: str, **labels: str) -> float | None:
    """Preflight: a GPU's value of this name; the sum where several have these labels, None where none has."""
    values = [
        reading.value
        for reading in collection.readings
        if reading.metric == GPU + name and labels.items() <= dict(reading.labels).items()
    ]
    return sum(values) if values else None


def judge_state(gpu: int, state: GpuState, *, is_board: bool, is_loaded: bool) -> list[CheckResult]:
    """All preflight checks of one GPU's state.

    Args:
        is_board: whether all of its NVLinks are connected by design (SXM), unlike on a card that may have a bridge.
        is_loaded: whether the samples were taken under load: links slow down without.
    """
    lost = next((one for one in (*state.before.missing, *state.after.missing) if not one.metric), None)
    if lost is not None:
        return [CheckResult("driver", (gpu,), Outcome.FAIL, lost.detail or str(lost.reason))]
    checks: tuple[tuple[str, Callable[[GpuState], _Judged]], ...] = (
        ("in_use", _in_use),
        ("ecc", _ecc),
        ("row_remap", _row_remap),
        ("retired_pages", _retired_pages),
        ("xid", _xid),
        ("throttling", _throttling),
        ("pcie_link", lambda state: _pcie_link(state, is_loaded=is_loaded)),
        ("nvlink", lambda state: _nvlink(state, is_board=is_board)),
        ("fabric", _fabric),
    )
    return [
        CheckResult("driver", (gpu,), Outcome.PASS),
        *(CheckResult(check, (gpu,), *judge(state)) for check, judge in checks),
    ]


def _in_use(state: GpuState) -> _Judged:
    used, count = state.value("memory_used_bytes", at_first=True), state.value("processes", at_first=True)
    if count:
        pids = sorted({dict(one.labels)["pid"] for one in state.before.readings if "pid" in dict(one.labels)}, key=int)
        who = f" (pid {', '.join(pids[:5])})" if pids else ""
        holds = counted(count, "process holds", "processes hold")
        return Outcome.WARN, f"{holds} the GPU{who}: what is measured is what is left"
    if used is not None and used > _HELD_BYTES:
        return Outcome.WARN, f"{used / 1024**3:.1f} GiB of its memory are held by nobody that the driver names"
    return _UNKNOWN if used is None and count is None else _GOOD


def _ecc(state: GpuState) -> _Judged:
    enabled = state.value("ecc_enabled")
    uncorrected = state.value("ecc_uncorrected_errors_total")
    if uncorrected:
        errors = counted(uncorrected, "uncorrected memory error")
        return Outcome.FAIL, f"{errors} since the driver was loaded: reset the GPU"
    if enabled is None:
        return _UNKNOWN
    if not enabled:
        return Outcome.WARN, "ECC is off: memory errors go unseen"
    corrected = _rise(state, "ecc_corrected_errors_total")
    if corrected:
        return Outcome.WARN, f"{counted(corrected, 'memory error')} had to be corrected during the preflight"
    return _GOOD


def _row_remap(state: GpuState) -> _Judged:
    failed, pending = state.value("row_remap_failed"), state.value("row_remap_pending")
    if failed is None and pending is None:
        return _UNKNOWN
    if failed:
        return Outcome.FAIL, "a memory row could not be replaced: have the GPU exchanged"
    if pending:
        return Outcome.FAIL, "a memory row waits to be replaced: reset the GPU (nvidia-smi --gpu-reset)"
    rows = state.value("remapped_rows_uncorrected_total") or 0
    if rows >= MAX_REMAPPED_ROWS:
        replaced = counted(rows, "memory row was", "memory rows were")
        return Outcome.WARN, f"{replaced} replaced after uncorrected errors"
    empty = state.value("row_remap_banks", availability="none") or 0
    if empty:
        return Outcome.WARN, f"{counted(empty, 'memory bank has', 'memory banks have')} no spare row left"
    return _GOOD


def _retired_pages(state: GpuState) -> _Judged:
    single, double = state.value("retired_pages_corrected_total"), state.value("retired_pages_uncorrected_total")
    if single is None and double is None:
        return Outcome.SKIPPED, "GPUs from Ampere on replace rows instead"
    retired = (single or 0) + (double or 0)
    if retired >= MAX_RETIRED_PAGES:
        pages = counted(retired, "memory page is", "memory pages are")
        return Outcome.FAIL, f"{pages} retired: have the GPU exchanged"
    if state.value("retired_pages_pending"):
        return Outcome.WARN, "memory pages wait to be retired: reboot"
    return _GOOD


def _xid(state: GpuState) -> _Judged:
    reported = [finding for one in (*state.samples, state.after) for finding in one.findings if finding.code == "xid"]
    numbers = sorted({int(dict(one.labels)["xid"]) for one in (*reported, *(state.logged or ()))})
    if not numbers:
        listens = not any(one.metric == GPU + "xid_errors_total" for one in state.after.missing)
        return _GOOD if listens or state.logged is not None else _UNKNOWN
    gravest = max(map(xid_of, numbers), key=lambda xid: xid.severity.rank)
    others = f" (and {', '.join(str(one) for one in numbers if one != gravest.number)})" if len(numbers) > 1 else ""
    what = f"XID {gravest.number}{others} came: {gravest.sentence} {gravest.action.line}"
    return _XID_OUTCOMES[gravest.severity], what


def _throttling(state: GpuState) -> _Judged:
    if not state.samples or not any(sample.readings for sample in state.samples):
        return _UNKNOWN
    reasons = [_reasons(sample) for sample in state.samples]
    loaded = [one for one in reasons if "idle" not in one] or reasons
    counts = Counter(reason for one in loaded for reason in one)
    shares = ((reason, count / len(loaded)) for reason, count in sorted(counts.items()))
    what = ", ".join(f"{reason} in {share:.0%} of the samples" for reason, share in shares)
    hardware = max(counts[reason] for reason in _HARDWARE_REASONS)
    if hardware >= MIN_SLOWDOWN_SHARE * len(loaded) and hardware >= MIN_SLOWDOWNS:
        return Outcome.FAIL, f"{what}: look at cooling, power cables and power supplies"
    if hardware or counts["software_thermal"]:
        return Outcome.WARN, f"{what}: look at cooling and power"
    limit, usual = state.value("power_limit_watts"), state.value("power_limit_default_watts")
    if limit is not None and usual is not None and limit < usual * _LOWERED:
        return Outcome.WARN, f"the power limit was lowered to {limit:.0f} of {usual:.0f} W: products are slower"
    return Outcome.PASS, what  # idle, or capped at the power limit, as large products are


def _reasons(sample: Collection) -> set[str]:
    return {
        dict(one.labels)["reason"] for one in sample.readings if one.metric == GPU + "throttle_reason" and one.value
    }


def _pcie_link(state: GpuState, *, is_loaded: bool) -> _Judged:
    width, most = state.value("pcie_link_width"), state.value("pcie_link_width_max")
    best, generation = state.sampled("pcie_link_generation"), state.value("pcie_link_generation_max")
    if width is None or most is None:
        return _UNKNOWN
    if width < most:
        return Outcome.FAIL, f"x{width:.0f} of x{most:.0f} lanes: reseat the GPU or its riser, look for PCIe errors"
    if is_loaded and best and generation is not None and max(best) < generation:
        return Outcome.WARN, f"PCIe {max(best):.0f}.0 under load, GPU and slot can do {generation:.0f}.0"
    return _GOOD


def _nvlink(state: GpuState, *, is_board: bool) -> _Judged:
    up, down = state.value("nvlink_links", state="up"), state.value("nvlink_links", state="down")
    if up is None:
        return Outcome.SKIPPED, "the GPU has no NVLink"
    if not up and not is_board:
        return Outcome.SKIPPED, "no NVLink is connected"
    if down:
        links = f"{down:.0f} of {counted(up + down, 'NVLink')} {form(down, 'is', 'are')}"
        outcome = Outcome.FAIL if is_board else Outcome.WARN
        return outcome, f"{links} down: look for XIDs 74 and 144 to 150, reset the GPU"
    recovered = _rise(state, "nvlink_recovery_errors_total") + _rise(state, "nvlink_recoveries_failed_total")
    return (Outcome.FAIL, f"{counted(recovered, 'recovery')} of NVLinks during the preflight") if recovered else _GOOD


def _fabric(state: GpuState) -> _Judged:
    states = [
        dict(one.labels)["state"] for one in state.after.readings if one.metric == GPU + "fabric_state" and one.value
    ]
    if not states:
        return Outcome.SKIPPED, "the GPU is on no NVLink fabric"
    if states[0] in _FABRIC:
        return _FABRIC[states[0]]
    sick = sorted(
        dict(one.labels)["aspect"]
        for one in state.after.readings
        if one.metric == GPU + "fabric_health" and not one.value
    )
    return (Outcome.FAIL, f"the NVLink fabric is not healthy: {', '.join(sick)}") if sick else _GOOD


def _rise(state: GpuState, name: str) -> float:
    before, after = state.value(name, at_first=True), state.value(name)
    return 0.0 if before is None or after is None else max(0.0, after - before)
